"""Random plans that a target can run, and ways to make it refuse them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from plans import cluster, group, llama, make_plan, uneven_plan, with_stage_tensor

from hetcli.catalog.presets import find_preset
from hetcli.perf.configuration import Recompute
from hetcli.spec.plan import Plan

GPUS = ("H100-SXM5-80GB", "A100-SXM4-80GB", "RTX-4090")
RECOMPUTE = (Recompute(), Recompute("selective"), Recompute("full"), Recompute("full", 1))


def _split(draw: st.DrawFn, layers: int, parts: int) -> list[int]:
    """`layers` in `parts` parts, none empty."""
    cuts = draw(
        st.lists(
            st.integers(1, layers - 1), min_size=parts - 1, max_size=parts - 1, unique=True
        ).map(sorted)
    )
    edges = [0, *cuts, layers]
    return [stop - start for start, stop in pairwise(edges)]


def feasible(target: str) -> st.SearchStrategy[Plan]:
    """Plans that `target` runs."""
    if target == "flagscale":
        return uneven()
    if target == "torchtitan":
        return titanic()
    if target == "generic":
        return st.one_of(uneven(), even("megatron"), even("deepspeed"))
    return even(target)


@st.composite
def uneven(draw: st.DrawFn) -> Plan:
    """One to four nodes of a stage or two each; nodes differ in tensor and data parallelism."""
    gpus = draw(st.lists(st.sampled_from(GPUS), min_size=1, max_size=4).map(sorted))
    where = cluster(*(group(f"node-{number}", gpu) for number, gpu in enumerate(gpus)))
    sequences = 8 * draw(st.integers(1, 2))
    shapes = []
    for _ in gpus:
        tensor, stages = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2)))
        data = 8 // stages // tensor
        shapes += [(tensor, data, sequences // data)] * stages
    layers = draw(st.integers(max(2, len(shapes)), 48))
    counts = _split(draw, layers, len(shapes))
    return uneven_plan(
        where,
        llama(layers),
        [(count, *shape) for count, shape in zip(counts, shapes, strict=True)],
        micro_batches=len(shapes) * draw(st.integers(1, 3)),
        precision=draw(st.sampled_from(("bf16", "fp16", "fp32"))),
        recompute=draw(st.sampled_from(RECOMPUTE)),
        zero_stage=draw(st.sampled_from((0, 1))),
        sequence_parallel=draw(st.booleans()),
    )


@st.composite
def titanic(draw: st.DrawFn) -> Plan:
    """A plan of the model that torchtitan has, in one mesh."""
    counts = draw(st.lists(st.sampled_from((4, 8)), min_size=1, max_size=4))
    where = cluster(
        *(
            group(f"node-{number}", draw(st.sampled_from(GPUS)), gpus=count)
            for number, count in enumerate(counts)
        )
    )
    tensor = draw(st.sampled_from((1, 2, 4)))
    groups = sum(counts) // tensor
    stages = draw(st.sampled_from([p for p in range(1, 17) if groups % p == 0]))
    turns = draw(st.sampled_from((1, 2))) if stages > 1 else 1
    parts = _split(draw, 32, stages * turns)
    return make_plan(
        where,
        find_preset("llama-3.1-8b"),
        [parts[stage::stages] for stage in range(stages)],
        tensor=tensor,
        data=groups // stages,
        micro_batches=stages * draw(st.integers(1, 4)),
        micro_batch_size=draw(st.sampled_from((1, 2, 3))),
        recompute=draw(st.sampled_from((Recompute(), Recompute("full")))),
        precision=draw(st.sampled_from(("bf16", "fp32"))),
        zero_stage=draw(st.sampled_from((0, 1, 2, 3))),
        sequence_parallel=tensor > 1 and draw(st.booleans()),
    )


@st.composite
def even(draw: st.DrawFn, target: Any) -> Plan:
    """A plan of the grid space, on one to four nodes of unlike kinds and sizes."""
    counts = draw(st.lists(st.sampled_from((2, 4, 8)), min_size=1, max_size=4))
    where = cluster(
        *(
            group(f"node-{number}", draw(st.sampled_from(GPUS)), gpus=count)
            for number, count in enumerate(counts)
        )
    )
    tensor = draw(st.sampled_from([t for t in (1, 2, 4, 8) if all(n % t == 0 for n in counts)]))
    groups = sum(counts) // tensor
    stages = draw(st.sampled_from([p for p in range(1, 17) if groups % p == 0]))
    megatron = target == "megatron"
    turns = draw(st.sampled_from((1, 2))) if megatron and stages > 1 else 1
    layers = draw(st.integers(max(2, stages * turns), 48))
    parts = _split(draw, layers, stages * turns)
    chunks = [parts[stage::stages] for stage in range(stages)]
    zero = draw(st.sampled_from((0, 1) if megatron or stages > 1 else (0, 1, 2, 3)))
    return make_plan(
        where,
        llama(layers),
        chunks,
        tensor=tensor,
        data=groups // stages,
        micro_batches=stages * draw(st.integers(1, 4)),
        micro_batch_size=draw(st.sampled_from((1, 2, 3))),
        sequence=draw(st.sampled_from((1024, 4096))),
        target=target,
        recompute=draw(st.sampled_from(RECOMPUTE)),
        precision=draw(st.sampled_from(("bf16", "fp16", "fp32"))),
        zero_stage=zero,
        overlap_param_gather=megatron and zero == 1,
        offload=draw(st.sampled_from(("none", "optimizer"))),
    )


@dataclass(frozen=True)
class Break:
    """A change that a target refuses, where it applies, and words of the rule."""

    name: str
    applies: Callable[[Plan], bool]
    change: Callable[[Plan], Plan]
    rule: str

    def __repr__(self) -> str:
        return self.name


def degrees(**change: Any) -> Callable[[Plan], Plan]:
    return lambda plan: plan.model_copy(
        update={"parallelism": plan.parallelism.model_copy(update=change)}
    )


def model(**change: Any) -> Callable[[Plan], Plan]:
    def changed(plan: Plan) -> Plan:
        other = plan.inputs.model.model_copy(update=change)
        return plan.model_copy(update={"inputs": plan.inputs.model_copy(update={"model": other})})

    return changed


def _old_cards(plan: Plan) -> Plan:
    """The same nodes with cards that lack bf16."""
    old = plan.inputs.cluster
    where = cluster(
        *(group(n, "V100-SXM2-32GB", gpus=g.gpus) for g in old.nodes for n in g.node_names)
    )
    inputs = plan.inputs.model_copy(update={"cluster": where})
    return plan.model_copy(update={"inputs": inputs})


def _more_micro_batches(plan: Plan) -> Plan:
    """The first replica takes one micro-batch from the second one, in every stage."""
    stages = []
    for stage in plan.stages:
        one, two, *rest = stage.replicas
        replicas = (
            one.model_copy(update={"micro_batches": one.micro_batches + 1}),
            two.model_copy(update={"micro_batches": two.micro_batches - 1}),
            *rest,
        )
        stages.append(stage.model_copy(update={"replicas": replicas}))
    return plan.model_copy(update={"stages": tuple(stages)})


def _wide(plan: Plan) -> bool:
    return plan.parallelism.tensor_parallel > 1 and plan.parallelism.pipeline_parallel > 1


def _several(plan: Plan) -> bool:
    data = min(len(stage.replicas) for stage in plan.stages)
    return data > 1 and plan.parallelism.gradient_accumulation > 1


def _unlike_ends(plan: Plan) -> bool:
    return plan.stages[0].tensor_parallel != plan.stages[-1].tensor_parallel


def _always(_: Plan) -> bool:
    return True


def _has_fp8(plan: Plan) -> bool:
    return not any("A100" in stage.gpu for stage in plan.stages)


def _pipelined(plan: Plan) -> bool:
    return plan.parallelism.pipeline_parallel > 1


COMMON = (
    Break("schedule", _pipelined, degrees(schedule="zb-h1"), "1F1B"),
    Break(
        "bf16 before ampere",
        lambda plan: plan.parallelism.precision == "bf16",
        _old_cards,
        "bf16 needs compute capability 8.0",
    ),
)
MEGATRON = (
    *COMMON,
    Break(
        "tensor parallel a stage",
        _wide,
        lambda plan: with_stage_tensor(plan, 0, 1),
        "--tensor-model-parallel-size is one number",
    ),
    Break("micro-batches", _several, _more_micro_batches, "--micro-batch-size is one number"),
    Break("scaled embedding", _always, model(embedding_scale=64.0), "no option scales it"),
    Break("zero 2", _always, degrees(zero_stage=2), "shards optimizer states only"),
    Break(
        "parameters on the host",
        _always,
        degrees(offload="optimizer+parameters"),
        "moves optimizer states only",
    ),
    Break(
        "gather",
        lambda plan: plan.parallelism.zero_stage == 0,
        degrees(overlap_param_gather=True),
        "--overlap-param-gather needs",
    ),
)
DEEPSPEED = (
    *COMMON,
    Break(
        "tensor parallel a stage",
        _wide,
        lambda plan: with_stage_tensor(plan, 0, 1),
        "one mesh of pipeline x data x tensor",
    ),
    Break("micro-batches", _several, _more_micro_batches, "every rank accumulates over as many"),
    Break("prediction", _always, model(prediction_layers=1), "next token only"),
    Break("zero 2 with a pipeline", _pipelined, degrees(zero_stage=2), "ZeRO-2 and ZeRO-3"),
    Break("fp8", _has_fp8, degrees(precision="fp8"), "bf16, fp16 or fp32"),
    Break(
        "parameters on the host",
        lambda plan: plan.parallelism.zero_stage < 3,
        degrees(offload="optimizer+parameters"),
        "only ZeRO-3",
    ),
)
FLAGSCALE = (
    *COMMON,
    Break("scaled embedding", _always, model(embedding_scale=64.0), "no option scales it"),
    Break("zero 2", _always, degrees(zero_stage=2), "shards optimizer states only"),
    Break("micro-batches", _several, _more_micro_batches, "one number a mesh"),
    Break("tied embeddings", _unlike_ends, model(tied_embeddings=True), "share the embedding"),
)
TORCHTITAN = (
    *COMMON,
    Break("another model", _always, model(vocab_size=128000), "registry"),
    Break("fp16", _always, degrees(precision="fp16"), "bf16 and fp32"),
    Break("offload", _always, degrees(offload="optimizer"), "was not planned"),
    Break("micro-batches", _several, _more_micro_batches, "every rank has one batch size"),
)
BREAKS = {
    "megatron": MEGATRON,
    "deepspeed": DEEPSPEED,
    "flagscale": FLAGSCALE,
    "torchtitan": TORCHTITAN,
}
