"""A plan as a run of torchtitan, whose --config names a function that makes the configuration.

`module_fqns_per_model_part`, the modules of every stage, is misread when it is given as an option,
so that the configuration is a Python file. Source: torchtitan 0.3 (config/configs.py, trainer.py,
distributed/pipeline_parallel.py, models/llama3) and torch.distributed.pipelining.schedules.
"""

from __future__ import annotations

from pprint import pformat
from typing import Any, Final

from hetcli.errors import ConfigurationError, InfeasibleError, UnsupportedByTargetError
from hetcli.export.launch import LaunchFile
from hetcli.export.placement import DEFAULT_ORDER, Placement, place
from hetcli.export.planned import Planned, configuration
from hetcli.export.program import Program
from hetcli.export.refuse import refuse_spread, unsupported
from hetcli.export.templating import render_template
from hetcli.perf import rules
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    Positions,
    Rotary,
    RotaryScaling,
)

__all__ = ["DEFAULT_VERSION", "VERSIONS", "program"]

VERSIONS: Final = ("0.3",)
DEFAULT_VERSION: Final = "0.3"
TARGET: Final = "torchtitan"
# The models that its configuration registry builds in plain precision, by their function: hidden
# size, layers, heads, KV heads, feed-forward size and vocabulary. (Its 405B is float8.)
FLAVORS: Final = {
    "llama3_8b": (4096, 32, 32, 8, 14336, 128256),
    "llama3_70b": (8192, 80, 64, 8, 28672, 128256),
}
# The rotary embedding of all of them (ComplexRoPE with scaling "llama").
POSITIONS: Final = Positions(
    kind="rope",
    rotary=Rotary(
        base=500000.0,
        scaling=RotaryScaling(
            kind="llama3",
            factor=8.0,
            original_max_sequence=8192,
            low_frequency_factor=1.0,
            high_frequency_factor=4.0,
        ),
    ),
)
PRECISIONS: Final = {"bf16": "bfloat16", "fp32": "float32"}
SCHEDULES: Final = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


def program(planned: Planned, version: str) -> tuple[Program, Placement]:
    """What every rank runs, and where.

    Raises:
        UnsupportedByTargetError: torchtitan cannot run the plan or build the model.
    """
    flavor = _flavor(planned.model)
    _check(planned)
    placement = place(planned.plan, (DEFAULT_ORDER,))
    if placement is None:
        raise _refused(
            "this placement: a node holds ranks that do not follow each other",
            "the mesh of devices is stage by stage",
            "whole stages on consecutive nodes",
        )
    refuse_spread(TARGET, planned.plan, plans="megatron")
    text = render_template(
        "torchtitan/titan_plan.py.j2",
        flavor=flavor,
        recompute=planned.plan.stages[0].recompute == "full",
        training=_literal(_training(planned)),
        parallelism=_literal(_parallelism(planned)),
    )
    notes = list(planned.vendor_notes)
    if planned.plan.parallelism.zero_stage == 1:
        notes.append(
            "torchtitan has no ZeRO-1: gradients are sharded too, which needs less memory."
        )
    return (
        Program(
            template="torchtitan/program.sh.j2",
            files=(LaunchFile("titan_plan.py", text),),
            settings={"torchtitan_version": version, "steps": planned.steps},
            user_variables=("HF_ASSETS_PATH", "DATASET", "DATASET_PATH", "TRAIN_STEPS"),
            steps_before=(
                "Set `HF_ASSETS_PATH` to the folder of the model's tokenizer.",
                "Optional: `DATASET`, `DATASET_PATH`, `TRAIN_STEPS`; the rest is in "
                "`titan_plan.py`.",
            ),
            notes=tuple(notes),
        ),
        placement,
    )


def _literal(values: dict[str, Any]) -> str:
    """A dict as Python source."""
    return (
        "{\n"
        + "".join(
            f"    {name!r}: {pformat(value, width=92, compact=True)},\n"
            for name, value in values.items()
        )
        + "}"
    )


def _refused(what: str, why: str, nearest: str, flags: str = "") -> UnsupportedByTargetError:
    return unsupported(TARGET, what, why=why, nearest=nearest, flags=flags, plans="megatron")


def _flavor(model: Model) -> str:
    """The function of torchtitan's registry that builds exactly this model."""
    for name, (hidden, layers, heads, kv_heads, size, vocabulary) in FLAVORS.items():
        layer = Layer(
            attention=GroupedQueryAttention(
                heads=heads, kv_heads=kv_heads, head_dim=hidden // heads
            ),
            feed_forward=DenseFeedForward(size=size),
        )
        built = Model(
            name=name,
            architecture="llama",
            hidden_size=hidden,
            vocab_size=vocabulary,
            max_sequence=model.max_sequence,
            layers=(LayerRun(count=layers, layer=layer),),
            positions=POSITIONS,
        )
        if built == model.model_copy(update={"name": name, "source": "", "notes": ()}):
            return name
    raise UnsupportedByTargetError(
        f"torchtitan cannot build {model.name}",
        why=f"hetcli exports what torchtitan's registry has: {', '.join(FLAVORS)} of Llama 3.1",
        fix="hetcli export --target generic, or hetcli plan --target megatron",
    )


def _check(planned: Planned) -> None:
    plan, degrees = planned.plan, planned.plan.parallelism
    stages = plan.stages
    shapes = {
        (
            stage.pipeline,
            stage.tensor_parallel,
            len(stage.replicas),
            r.micro_batches,
            r.micro_batch_size,
        )
        for stage in stages
        for r in stage.replicas
    }
    sequence, context = planned.sequence, degrees.context_parallel
    # Trainer.__init__ asks for both at once, where each rank of a context group has two chunks.
    parts = degrees.tensor_parallel * (2 * context if context > 1 else 1)
    for wrong, what, why, nearest, flags in (
        (
            len(shapes) > 1,
            "replicas or stages of different shapes",
            "ranks form one mesh, and every rank has one batch size",
            "a plan of the grid space, equal in every replica",
            "",
        ),
        (
            len(stages) > 1 and degrees.schedule not in SCHEDULES,
            f"the {degrees.schedule} schedule",
            "hetcli writes 1F1B and Interleaved1F1B",
            "the 1f1b schedule",
            "--schedule 1f1b",
        ),
        (
            degrees.virtual_stages == 1 and degrees.gradient_accumulation < len(stages),
            f"{degrees.gradient_accumulation} micro-batches in {len(stages)} stages",
            "torch's Schedule1F1B needs as many micro-batches as stages",
            f"{len(stages)} micro-batches or more",
            f"--pp {degrees.gradient_accumulation}",
        ),
        (
            degrees.virtual_stages > 1 and degrees.gradient_accumulation % len(stages) > 0,
            f"{degrees.gradient_accumulation} micro-batches interleaved over {len(stages)} stages",
            f"Interleaved1F1B then runs rounds of other sizes than {len(stages)}, which is not the "
            "planned order, or refuses",
            f"a multiple of {degrees.pipeline_parallel} micro-batches",
            "",
        ),
        (
            any(count == 0 for stage in stages for count in stage.chunks),
            "a stage without layers",
            "a part of the model has a layer",
            "at least one layer a stage",
            "",
        ),
        (
            degrees.precision not in PRECISIONS,
            degrees.precision,
            "hetcli writes its bf16 and fp32 training",
            "bf16",
            "--precision bf16",
        ),
        (
            len({stage.recompute for stage in stages}) > 1
            or any(s.recompute == "selective" or s.recompute_layers is not None for s in stages),
            "recompute of some layers or of the attention only",
            "its full activation checkpointing holds for all layers; its selective one keeps other "
            "activations than planned",
            "recompute none or full",
            "--recompute full",
        ),
        (
            degrees.offload != "none",
            f"offload {degrees.offload}",
            "its offload moves gradients too, which was not planned",
            "offload none",
            "",
        ),
        (
            degrees.sequence_parallel and sequence % parts > 0,
            f"sequence parallelism over {degrees.tensor_parallel} ranks with context_parallel "
            f"{context} and {sequence} tokens",
            f"{sequence} % {parts} = {sequence % parts}",
            f"a sequence that {parts} divides",
            "--tp 1",
        ),
    ):
        if wrong:
            raise _refused(what, why, nearest, flags)
    try:
        rules.check(configuration(plan, "fsdp"), planned.model, planned.hardware)
    except (ConfigurationError, InfeasibleError) as error:
        raise _refused(error.what, error.why, error.fix) from error


def _training(planned: Planned) -> dict[str, Any]:
    degrees = planned.plan.parallelism
    pipelined = degrees.pipeline_parallel > 1
    local = degrees.micro_batch_size * (degrees.gradient_accumulation if pipelined else 1)
    return {
        "local_batch_size": local,
        "global_batch_size": degrees.global_batch,
        "seq_len": planned.sequence,
        "mixed_precision_param": PRECISIONS[degrees.precision],
        # CUDA graphs do not go with a pipeline.
        "disable_cuda_graphs": pipelined,
    }


def _parallelism(planned: Planned) -> dict[str, Any]:
    degrees = planned.plan.parallelism
    replicas, shards = degrees.data_parallel or 1, 1
    if degrees.zero_stage:
        replicas, shards = shards, replicas
    values: dict[str, Any] = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if degrees.zero_stage == 3 else "never",
        "tensor_parallel_degree": degrees.tensor_parallel,
        "enable_sequence_parallel": degrees.sequence_parallel,
        "context_parallel_degree": degrees.context_parallel,
        "pipeline_parallel_degree": degrees.pipeline_parallel,
    }
    if degrees.pipeline_parallel > 1:
        values |= {
            "pipeline_parallel_schedule": SCHEDULES[degrees.schedule],
            "pipeline_parallel_microbatch_size": degrees.micro_batch_size,
            "module_fqns_per_model_part": _parts(planned),
        }
    return values


def _parts(planned: Planned) -> list[list[str]]:
    """The modules of every part; chunk c of all stages precedes chunk c + 1."""
    stages = planned.plan.stages
    counts = [stage.chunks[chunk] for chunk in range(len(stages[0].chunks)) for stage in stages]
    parts, first = [], 0
    for count in counts:
        parts.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts
