"""What mainline Megatron-LM cannot run, or accepts and then runs wrongly.

The arithmetic rules are those of `hetcli.perf.rules`; here are the ones of placement and of
features. Source: `validate_args`, `parallel_state.py` and `schedules.py` of core 0.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.export.placement import DEFAULT_ORDER, REPLICA_ORDER, Placement, RankOrder, place
from hetcli.export.planned import Planned, configuration
from hetcli.export.refuse import refuse_spread, unsupported
from hetcli.perf import rules
from hetcli.spec.plan import Plan

__all__ = ["check_plan", "place_plan", "without_fused_attention"]

TARGET: Final = "megatron"
_ORDERS: Final[Sequence[RankOrder]] = (DEFAULT_ORDER, REPLICA_ORDER)


def check_plan(planned: Planned) -> None:
    """Refuse what Megatron-LM cannot express, then what its own validators refuse.

    Raises:
        UnsupportedByTargetError: with the rule, the nearest legal plan and the command that plans.
    """
    for check in (_shape, _schedule, _memory, _attention):
        check(planned)
    try:
        rules.check(configuration(planned.plan, "megatron"), planned.model, planned.hardware)
    except (ConfigurationError, InfeasibleError) as error:
        raise unsupported(TARGET, error.what, why=error.why, nearest=error.fix) from error


def place_plan(planned: Planned) -> Placement:
    """Ranks and hosts in one of Megatron-LM's two rank orders.

    Raises:
        UnsupportedByTargetError: neither order gives every node a contiguous block of ranks, a
            tensor-parallel group spans nodes, or a node would need two sets of options.
    """
    plan = planned.plan
    placement = place(plan, _ORDERS)
    if placement is None:
        raise unsupported(
            TARGET,
            "this placement: a node holds ranks that do not follow each other",
            why="torchrun numbers the processes node by node, and ranks are stage by stage, or "
            "replica by replica with --use-tp-pp-dp-mapping; there is no third order",
            nearest="whole stages or whole replicas on consecutive nodes",
        )
    refuse_spread(TARGET, plan)
    _refuse_second_order(planned, placement)
    _refuse_two_recomputes(plan, placement)
    return placement


def _refuse_second_order(planned: Planned, placement: Placement) -> None:
    """Ranks in replica order leave no room for an expert mesh of another data parallelism."""
    degrees = planned.plan.parallelism
    experts = degrees.expert_parallel * degrees.expert_tensor_parallel
    dense = degrees.tensor_parallel * degrees.context_parallel
    if placement.order == REPLICA_ORDER and planned.has_experts and experts != dense:
        raise unsupported(
            TARGET,
            f"an expert mesh of {experts} ranks with replicas on consecutive nodes",
            why="with --use-tp-pp-dp-mapping experts and dense layers need equal data parallelism: "
            f"expert_parallel x expert_tensor_parallel = tp x cp = {dense}",
            nearest="whole stages on consecutive nodes, or an expert mesh of that size",
        )


def _refuse_two_recomputes(plan: Plan, placement: Placement) -> None:
    for host in placement.hosts:
        wishes = {
            (plan.stages[stage].recompute, plan.stages[stage].recompute_layers)
            for stage in host.stages
        }
        if len(wishes) > 1:
            raise unsupported(
                TARGET,
                f"stages {', '.join(map(str, host.stages))} on {host.name} with unlike recompute",
                why="the options of a node hold for all of its processes",
                nearest="one recompute setting for the stages of a node",
                flags="--recompute full",
            )


def _shape(planned: Planned) -> None:
    plan = planned.plan
    micro_batches = {
        (replica.micro_batches, replica.micro_batch_size)
        for stage in plan.stages
        for replica in stage.replicas
    }
    for wrong, what, why in (
        (
            len({stage.pipeline for stage in plan.stages}) > 1,
            "pipelines of different shapes",
            "every replica is the same pipeline",
        ),
        (
            len({stage.tensor_parallel for stage in plan.stages}) > 1,
            "different tensor_parallel in different stages",
            "--tensor-model-parallel-size is one number",
        ),
        (
            len({len(stage.replicas) for stage in plan.stages}) > 1,
            "different data_parallel in different stages",
            "data parallelism is the world divided by tp x pp x cp, one number",
        ),
        (
            len(micro_batches) > 1,
            "unequal micro-batches of replicas",
            "--micro-batch-size is one number, and every replica runs as many of them",
        ),
    ):
        if wrong:
            raise unsupported(
                TARGET, what, why=why, nearest="a plan of the grid space, equal in every replica"
            )


def _schedule(planned: Planned) -> None:
    degrees = planned.plan.parallelism
    legal = "interleaved" if degrees.virtual_stages > 1 else "1f1b"
    # Without a pipeline there is nothing to schedule, whatever the plan calls it.
    if degrees.pipeline_parallel == 1 and degrees.virtual_stages == 1:
        return
    if degrees.schedule != legal:
        raise unsupported(
            TARGET,
            f"the {degrees.schedule} schedule with {degrees.virtual_stages} chunks a stage",
            why="it runs 1F1B, interleaved when a stage has several chunks",
            nearest=f"the {legal} schedule",
            flags=f"--schedule {legal}",
        )
    if legal == "interleaved" and not rules.interleaving_is_legal(
        degrees.pipeline_parallel, degrees.gradient_accumulation
    ):
        raise unsupported(
            TARGET,
            f"{degrees.gradient_accumulation} micro-batches interleaved over "
            f"{degrees.pipeline_parallel} stages",
            why="validate_args accepts it and the schedule fails: a group of micro-batches is as "
            "large as the pipeline, and the last one whole or at least that large",
            nearest=f"a multiple of {degrees.pipeline_parallel} micro-batches, or 1f1b",
            flags="--schedule 1f1b",
        )


def _memory(planned: Planned) -> None:
    degrees = planned.plan.parallelism
    if degrees.zero_stage > 1:
        raise unsupported(
            TARGET,
            f"ZeRO stage {degrees.zero_stage}",
            why="its distributed optimizer shards optimizer states only",
            nearest="zero_stage 1",
            flags="--zero 1",
        )
    if degrees.offload == "optimizer+parameters":
        raise unsupported(
            TARGET,
            "parameters in host memory",
            why="--optimizer-cpu-offload moves optimizer states only",
            nearest="offload optimizer",
            flags="--offload optimizer",
        )
    if degrees.overlap_param_gather and degrees.zero_stage == 0:
        raise unsupported(
            TARGET,
            "an overlapped parameter gather without the distributed optimizer",
            why="--overlap-param-gather needs --use-distributed-optimizer",
            nearest="zero_stage 1",
            flags="--zero 1",
        )


def without_fused_attention(planned: Planned) -> list[str]:
    """The used device types on which Transformer Engine has its unfused attention only."""
    return [gpu.name for gpu in planned.gpus if not rules.has_fused_attention(gpu)]


def _attention(planned: Planned) -> None:
    degrees = planned.plan.parallelism
    asked = (degrees.attention, degrees.context_parallel)
    if all(rules.runs_attention("megatron", gpu, *asked) for gpu in planned.gpus):
        return
    names = " and ".join(without_fused_attention(planned))
    why = (
        "Transformer Engine has neither flash nor cuDNN attention below compute capability "
        f"{rules.FUSED_ATTENTION_CAPABILITY}"
    )
    if degrees.attention == "flash":
        raise unsupported(
            TARGET,
            f"flash attention on {names}",
            why=why,
            nearest="the attention that each device type has",
            flags="--attention auto",
        )
    raise unsupported(
        TARGET,
        f"context_parallel {degrees.context_parallel} on {names}",
        why=f"{why}, and the unfused attention needs whole sequences",
        nearest="context_parallel 1",
        flags="--cp 1",
    )
