"""A plan as a run of mainline Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from hetcli.catalog.gpu import Gpu
from hetcli.export.megatron.checks import (
    check_plan,
    place_plan,
    without_fused_attention,
)
from hetcli.export.megatron.layout import plan_layout
from hetcli.export.megatron.model import model_arguments
from hetcli.export.placement import REPLICA_ORDER, Placement
from hetcli.export.planned import Planned
from hetcli.export.program import Argument, ArgumentGroup, Program, Variable
from hetcli.perf import rules
from hetcli.spec.plan import Parallelism, PlanStage

__all__ = ["DEFAULT_VERSION", "VERSIONS", "program"]

# Releases of Megatron core whose own parser and validators judge the arguments in the tests. Wheels
# before 0.17 hold neither.
VERSIONS: Final = ("0.17", "0.18", "0.19")
DEFAULT_VERSION: Final = "0.19"
# torch.distributed's default for Megatron-LM, and how many steps a collective may take longer.
MINIMUM_TIMEOUT_MINUTES: Final = 10
TIMEOUT_STEPS: Final = 20
# The kernel of `--moe-grouped-gemm` (CUTLASS grouped GEMM) asserts this compute capability.
GROUPED_GEMM_CAPABILITY: Final = 8.0
# What templates/megatron/program.sh.j2 reads from the user's environment.
USER_VARIABLES: Final = (
    "MEGATRON_PATH",
    "DATA_PATH",
    "DATA_SPLIT",
    "TOKENIZER_MODEL",
    "CHECKPOINT_DIR",
    "SAVE_INTERVAL",
    "TRAIN_ITERS",
    "LR",
    "MIN_LR",
    "LR_WARMUP_ITERS",
    "LOG_INTERVAL",
    "EVAL_ITERS",
    "EVAL_INTERVAL",
    "SEED",
)


def program(planned: Planned, version: str) -> tuple[Program, Placement]:
    """What every rank runs, and where.

    Raises:
        UnsupportedByTargetError: Megatron-LM cannot run the plan or build the model.
    """
    check_plan(planned)
    placement = place_plan(planned)
    grouped = all(_has_grouped_gemm(gpu) for gpu in planned.gpus)
    groups: tuple[ArgumentGroup, ...] = (
        ArgumentGroup(
            "MODEL", model_arguments(planned.model, planned.sequence, grouped_gemm=grouped)
        ),
        ArgumentGroup("PARALLELISM", tuple(_parallelism(planned, placement))),
        ArgumentGroup("BATCH", tuple(_batch(planned.plan.parallelism))),
        ArgumentGroup("PRECISION", tuple(_precision(planned.plan.parallelism))),
    )
    recompute = {
        host.rank: _recompute(planned.plan.stages[host.stages[0]]) for host in placement.hosts
    }
    of_node: dict[int, tuple[ArgumentGroup, ...]] = {}
    if len(set(recompute.values())) > 1:
        of_node = {rank: (ArgumentGroup("RECOMPUTE", its),) for rank, its in recompute.items()}
    elif recompute[0]:
        groups += (ArgumentGroup("RECOMPUTE", recompute[0]),)
    return (
        Program(
            template="megatron/program.sh.j2",
            groups=groups,
            node_groups=of_node,
            variables=(
                Variable(
                    "CUDA_DEVICE_MAX_CONNECTIONS",
                    "1",
                    "Megatron-LM overlaps communication by the order of kernel launches",
                ),
            ),
            settings={
                "megatron_version": version,
                "steps": planned.steps,
                "node_array": "RECOMPUTE" if of_node else "",
            },
            user_variables=USER_VARIABLES,
            steps_before=(
                f"Set `MEGATRON_PATH` to a checkout of Megatron-LM (branch `core_r{version}.0`).",
                "Optional: `DATA_PATH` and `TOKENIZER_MODEL` (mock data otherwise), "
                "`CHECKPOINT_DIR`, `TRAIN_ITERS`, `LR`; `common.sh` lists all.",
            ),
            notes=_notes(planned, placement, bool(of_node)),
        ),
        placement,
    )


def _has_grouped_gemm(gpu: Gpu) -> bool:
    capability = gpu.compute_capability
    return capability is not None and float(capability) >= GROUPED_GEMM_CAPABILITY


def _parallelism(planned: Planned, placement: Placement) -> Iterator[Argument]:
    plan = planned.plan
    degrees = plan.parallelism
    yield Argument("--tensor-model-parallel-size", (str(degrees.tensor_parallel),))
    yield Argument("--pipeline-model-parallel-size", (str(degrees.pipeline_parallel),))
    yield Argument("--context-parallel-size", (str(degrees.context_parallel),))
    if degrees.context_parallel > 1:
        yield Argument("--cp-comm-type", ("p2p",), "ring attention")
    if degrees.pipeline_parallel > 1:
        layout = plan_layout(
            [stage.chunks for stage in plan.stages], planned.model.prediction_layers
        )
        layout.check(
            layers=planned.model.layer_count,
            prediction_layers=planned.model.prediction_layers,
            pipeline_parallel=degrees.pipeline_parallel,
        )
        counts = " ".join(str(stage.layers) for stage in plan.stages)
        yield Argument(
            "--pipeline-model-parallel-layout", (layout.render(),), f"layers a stage: {counts}"
        )
    if placement.order == REPLICA_ORDER:
        yield Argument("--use-tp-pp-dp-mapping", why="replicas are on consecutive nodes")
    if degrees.sequence_parallel and degrees.tensor_parallel > 1:
        yield Argument("--sequence-parallel")
    if planned.has_experts:
        yield Argument("--expert-model-parallel-size", (str(degrees.expert_parallel),))
        yield Argument("--expert-tensor-parallel-size", (str(degrees.expert_tensor_parallel),))
    yield from _optimizer(planned)
    if planned.vendors == ("cpu",):
        yield Argument("--distributed-backend", ("gloo",), "the devices are CPUs")
    elif planned.joining_backend == "gloo":
        yield Argument("--distributed-backend", ("gloo",), "it joins devices of several vendors")
    yield Argument("--distributed-timeout-minutes", (str(_timeout_minutes(planned)),))


def _optimizer(planned: Planned) -> Iterator[Argument]:
    degrees = planned.plan.parallelism
    yield Argument("--optimizer", (planned.plan.inputs.workload.optimizer,))
    if degrees.zero_stage == 1:
        yield Argument("--use-distributed-optimizer", why="zero_stage 1")
    if degrees.overlap_grad_reduce:
        yield Argument("--overlap-grad-reduce")
    if degrees.overlap_param_gather:
        yield Argument("--overlap-param-gather")
    if degrees.offload == "optimizer":
        yield Argument("--optimizer-cpu-offload", why="offload optimizer")
        yield Argument("--use-precision-aware-optimizer")


def _timeout_minutes(planned: Planned) -> int:
    """Collectives wait for the slowest stage: many steps, at least the framework's default."""
    seconds = TIMEOUT_STEPS * planned.plan.predicted.step_time_s
    return max(MINIMUM_TIMEOUT_MINUTES, math.ceil(seconds / 60))


def _batch(degrees: Parallelism) -> Iterator[Argument]:
    yield Argument("--micro-batch-size", (str(degrees.micro_batch_size),))
    yield Argument(
        "--global-batch-size",
        (str(degrees.global_batch),),
        f"{degrees.micro_batch_size} x dp {degrees.data_parallel} x "
        f"{degrees.gradient_accumulation} micro-batches",
    )


def _precision(degrees: Parallelism) -> Iterator[Argument]:
    match degrees.precision:
        case "bf16":
            yield Argument("--bf16")
        case "fp16":
            yield Argument("--fp16")
        case "fp8":
            yield Argument("--bf16")
            yield Argument("--fp8-format", ("hybrid",))
    if degrees.precision in ("bf16", "fp8"):
        yield Argument("--accumulate-allreduce-grads-in-fp32", why="gradients are kept in fp32")
    if degrees.attention != "auto":
        yield Argument("--attention-backend", (degrees.attention,))


def _recompute(stage: PlanStage) -> tuple[Argument, ...]:
    match stage.recompute:
        case "selective":
            return (Argument("--recompute-granularity", ("selective",)),)
        case "full":
            # `block`: the first layers of every chunk, and all of one that has no more.
            layers = stage.recompute_layers
            return (
                Argument("--recompute-granularity", ("full",)),
                Argument("--recompute-method", ("uniform" if layers is None else "block",)),
                Argument("--recompute-num-layers", (str(1 if layers is None else layers),)),
            )
        case _:
            return ()


def _notes(planned: Planned, placement: Placement, unlike_recompute: bool) -> tuple[str, ...]:
    notes = [*planned.vendor_notes]
    plain = without_fused_attention(planned)
    if plain:
        # `--transformer-impl local` is no way out: its RMSNorm refuses sequence parallelism, and
        # its modules order parameters unlike those of Transformer Engine.
        notes.append(
            f"{', '.join(plain)}: compute capability below {rules.FUSED_ATTENTION_CAPABILITY}. "
            "Transformer Engine runs there with its unfused attention, chosen rank by rank; for "
            "Volta it must be built with CUDA 12, as CUDA 13 compiles for 7.5 and later."
        )
    if unlike_recompute:
        notes.append(
            "Nodes recompute unlike numbers of layers. Megatron-LM takes such options per process "
            "but does not document it; checkpoints record those of rank 0."
        )
    if len({host.processes for host in placement.hosts}) > 1:
        notes.append(
            "Nodes run unlike numbers of processes: leave --async-save off, its worker picks "
            "devices by the global rank."
        )
    return tuple(notes)
