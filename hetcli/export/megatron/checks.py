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
from hetcli.export.refuse import unsupported
from hetcli.perf import rules
from hetcli.spec.model.architecture import MoeFeedForward
from hetcli.spec.plan import Plan

__all__ = ["FUSED_ATTENTION_CAPABILITY", "check_plan", "place_plan", "without_fused_attention"]

TARGET: Final = "megatron"
# Transformer Engine is compiled for compute capability 7.0 and later, but below 8.0 it leaves out
# every attention backend except the unfused one, which in turn cannot split sequences over ranks
# (transformer_engine/common/CMakeLists.txt; get_attention_backend in
# pytorch/attention/dot_product_attention/utils.py of release 2.9).
FUSED_ATTENTION_CAPABILITY: Final = 8.0
_ORDERS: Final[Sequence[RankOrder]] = (DEFAULT_ORDER, REPLICA_ORDER)


def check_plan(planned: Planned) -> None:
    """Refuse what Megatron-LM cannot express, then what its own validators refuse.

    Raises:
        UnsupportedByTargetError: with the rule, the nearest legal plan and the command that plans.
    """
    for check in (_shape, _schedule, _memory, _vendors, _experts, _sequence, _attention):
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
    tensor = plan.parallelism.tensor_parallel
    for first in range(0, placement.world, tensor):
        nodes = dict.fromkeys(device.node for device in placement.devices[first : first + tensor])
        if len(nodes) > 1:
            raise unsupported(
                TARGET,
                f"a tensor-parallel group over {' and '.join(nodes)}",
                why="Megatron-LM accepts it and then sends every layer's activations over the "
                "network",
                nearest="tensor-parallel groups inside one node",
                flags="--tp <at most the devices of a node>",
            )
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


def _vendors(planned: Planned) -> None:
    if len(planned.vendors) > 1:
        raise unsupported(
            TARGET,
            f"devices of {' and '.join(planned.vendors)} in one job",
            why="its collective libraries, NCCL and RCCL, do not talk to each other",
            nearest="the devices of one vendor",
        )


def _experts(planned: Planned) -> None:
    degrees = planned.plan.parallelism
    routed = [
        layer.feed_forward
        for layer in planned.model.each_layer()
        if isinstance(layer.feed_forward, MoeFeedForward)
    ]
    if routed and degrees.tensor_parallel > 1 and not degrees.sequence_parallel:
        raise unsupported(
            TARGET,
            f"experts with tensor_parallel {degrees.tensor_parallel} without sequence parallelism",
            why="it only warns, and then every rank routes every token",
            nearest="sequence_parallel, or tensor_parallel 1",
            flags="--tp 1",
        )
    if degrees.expert_tensor_parallel > 1 and any(moe.bias for moe in routed):
        raise unsupported(
            TARGET,
            f"expert_tensor_parallel {degrees.expert_tensor_parallel} for experts with biases",
            why="TransformerConfig: biases of experts need expert_tensor_parallel 1",
            nearest="expert_tensor_parallel 1",
            flags="--etp 1",
        )


def _sequence(planned: Planned) -> None:
    degrees = planned.plan.parallelism
    share = planned.sequence // degrees.context_parallel
    if degrees.sequence_parallel and share % degrees.tensor_parallel:
        raise unsupported(
            TARGET,
            f"sequence parallelism over {degrees.tensor_parallel} ranks of {share} tokens",
            why=f"{share} % {degrees.tensor_parallel} = {share % degrees.tensor_parallel}",
            nearest="a sequence that context x tensor parallelism divides",
            flags="--tp 1",
        )
    if degrees.precision == "fp8" and planned.model.hidden_size % 16:
        raise unsupported(
            TARGET,
            f"fp8 with the hidden size {planned.model.hidden_size}",
            why="fp8 matrix products need dimensions that are multiples of 16",
            nearest="bf16",
            flags="--precision bf16",
        )


def without_fused_attention(planned: Planned) -> list[str]:
    """The used device types on which Transformer Engine has its unfused attention only."""
    return [
        gpu.name
        for gpu in planned.gpus
        if gpu.compute_capability is not None
        and float(gpu.compute_capability) < FUSED_ATTENTION_CAPABILITY
    ]


def _attention(planned: Planned) -> None:
    degrees = planned.plan.parallelism
    names = " and ".join(without_fused_attention(planned))
    if not names:
        return
    why = (
        "Transformer Engine has neither flash nor cuDNN attention below compute capability "
        f"{FUSED_ATTENTION_CAPABILITY}"
    )
    if degrees.attention == "flash":
        raise unsupported(
            TARGET,
            f"flash attention on {names}",
            why=why,
            nearest="the attention that each device type has",
            flags="--attention auto",
        )
    if degrees.context_parallel > 1:
        raise unsupported(
            TARGET,
            f"context_parallel {degrees.context_parallel} on {names}",
            why=f"{why}, and the unfused attention needs whole sequences",
            nearest="context_parallel 1",
            flags="--cp 1",
        )
