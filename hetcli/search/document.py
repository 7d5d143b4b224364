"""plan.json from a configuration and its prediction, and the configuration back from plan.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal, get_args

import hetcli
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    ScheduleName,
    Stage,
)
from hetcli.perf.hardware import Hardware
from hetcli.perf.prediction import Breakdown, Prediction
from hetcli.search.options import Asked
from hetcli.search.unequal import gradient_weight, weights_note
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import Model
from hetcli.spec.plan import (
    Alternative,
    Certificate,
    Comparisons,
    Inputs,
    MemoryEntry,
    Parallelism,
    Plan,
    PlanDevice,
    PlanReplica,
    PlanStage,
    Predicted,
    PredictedDevice,
    PredictedStage,
    Search,
    Target,
)
from hetcli.spec.workload import Pretrain

__all__ = [
    "alternative",
    "configuration_of",
    "given_document",
    "parallelism",
    "plan_document",
]


def plan_document(
    configuration: Configuration,
    prediction: Prediction,
    *,
    cluster: Cluster,
    model: Model,
    workload: Pretrain,
    hardware: Hardware,
    target: Target,
    certificate: Certificate,
    alternatives: Sequence[Alternative],
    space: Literal["grid", "free", "given"],
    seen: int,
    scored: int,
    pruned: Mapping[str, int],
    complete: bool,
    notes: Sequence[str] = (),
    front: Sequence[Alternative] = (),
    comparisons: Comparisons | None = None,
    asked: Mapping[str, Asked] | None = None,
) -> Plan:
    """Everything that is known of a configuration as one document."""
    used = set(configuration.devices)
    weights = weights_note(configuration)
    idle = tuple(
        PlanDevice(node=device.node, index=device.index)
        for node in hardware.nodes
        for device in node.device_ids
        if device not in used
    )
    return Plan(
        hetcli_version=hetcli.__version__,
        inputs=Inputs(cluster=cluster, model=model, workload=workload),
        target=target,
        parallelism=parallelism(configuration),
        stages=_stages(configuration, hardware),
        predicted=_predicted(configuration, prediction, hardware, workload),
        certificate=certificate,
        alternatives=tuple(alternatives),
        front=tuple(front),
        comparisons=comparisons,
        search=Search(
            space=space,
            seen=seen,
            scored=scored,
            pruned=dict(sorted(pruned.items())),
            complete=complete,
            idle_devices=idle,
            asked=dict(asked or {}),
        ),
        assumptions=prediction.assumptions,
        notes=(*configuration.notes, *((weights,) if weights else ()), *notes),
    )


def given_document(
    configuration: Configuration,
    prediction: Prediction,
    *,
    reason: str,
    cluster: Cluster,
    model: Model,
    workload: Pretrain,
    hardware: Hardware,
    target: Target,
    notes: Sequence[str] = (),
    asked: Mapping[str, Asked] | None = None,
) -> Plan:
    """The document of a configuration that no search found; `reason` says why it has no bound."""
    return plan_document(
        configuration,
        prediction,
        cluster=cluster,
        model=model,
        workload=workload,
        hardware=hardware,
        target=target,
        certificate=Certificate(lower_bound_s=None, gap=None, reason=reason),
        alternatives=(),
        space="given",
        seen=1,
        scored=1,
        pruned={},
        complete=True,
        notes=notes,
        asked=asked,
    )


def parallelism(configuration: Configuration) -> Parallelism:
    """The degrees of a configuration; unlike tensor degrees show as the largest."""
    first = configuration.pipelines[0].stages[0]
    widths = {stage.data_parallel for stage in configuration.stages}
    return Parallelism(
        tensor_parallel=max(stage.tensor_parallel for stage in configuration.stages),
        pipeline_parallel=configuration.pipeline_parallel,
        data_parallel=widths.pop() if configuration.is_grid and len(widths) == 1 else None,
        context_parallel=configuration.context_parallel,
        expert_parallel=configuration.expert_parallel,
        expert_tensor_parallel=configuration.expert_tensor_parallel,
        virtual_stages=len(first.chunks),
        sequence_parallel=configuration.sequence_parallel,
        micro_batch_size=configuration.micro_batch_size,
        global_batch=configuration.global_batch,
        gradient_accumulation=max(
            replica.micro_batches for stage in configuration.stages for replica in stage.replicas
        ),
        zero_stage=configuration.zero_stage,
        offload=configuration.offload,
        schedule=configuration.schedule,
        precision=configuration.precision,
        attention=configuration.attention,
        overlap_grad_reduce=configuration.overlap_grad_reduce,
        overlap_param_gather=configuration.overlap_param_gather,
    )


def _device(device: DeviceId) -> PlanDevice:
    return PlanDevice(node=device.node, index=device.index)


def _stages(configuration: Configuration, hardware: Hardware) -> tuple[PlanStage, ...]:
    return tuple(
        PlanStage(
            pipeline=number,
            layers=stage.layer_count,
            first_layer=stage.chunks[0].first,
            chunks=tuple(chunk.count for chunk in stage.chunks),
            gpu=" + ".join(
                dict.fromkeys(
                    hardware.node_of(device).device_type.name
                    for replica in stage.replicas
                    for device in replica.devices
                )
            ),
            tensor_parallel=stage.tensor_parallel,
            recompute=stage.recompute.granularity,
            recompute_layers=stage.recompute.layers,
            devices=tuple(
                _device(device) for replica in stage.replicas for device in replica.devices
            ),
            replicas=tuple(
                PlanReplica(
                    devices=tuple(map(_device, replica.devices)),
                    micro_batches=replica.micro_batches,
                    micro_batch_size=replica.micro_batch_size,
                    gradient_weight=gradient_weight(replica, configuration.global_batch),
                )
                for replica in stage.replicas
            ),
        )
        for number, pipeline in enumerate(configuration.pipelines)
        for stage in pipeline.stages
    )


def _predicted(
    configuration: Configuration, prediction: Prediction, hardware: Hardware, workload: Pretrain
) -> Predicted:
    tokens = configuration.global_batch * configuration.sequence
    cost = prediction.cost_per_step
    steps = None if workload.tokens is None else -(-workload.tokens // tokens)
    return Predicted(
        step_time_s=prediction.step_time_s,
        tokens_per_s=prediction.tokens_per_s,
        tokens_per_s_per_device=prediction.tokens_per_s / len(configuration.devices),
        model_flops=prediction.model_flops,
        mfu=prediction.mfu,
        cost_per_step=cost,
        cost_per_million_tokens=None if cost is None else cost / tokens * 1e6,
        breakdown_s=_breakdown(prediction.breakdown),
        stages=tuple(
            PredictedStage(
                stage=stage.stage,
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                send_s=stage.send_s,
                busy_s=stage.busy_s,
                gradient_sync_s=stage.gradient_sync_s,
                optimizer_s=stage.optimizer_s,
                breakdown_s=_breakdown(stage.breakdown),
                origin=stage.origin,
            )
            for stage in prediction.stages
        ),
        devices=tuple(
            PredictedDevice(
                node=device.node,
                index=device.index,
                gpu=hardware.node_of(device).device_type.name,
                stage=entry.stage,
                replica=entry.replica,
                peak_memory_bytes=entry.peak_bytes,
                capacity_bytes=entry.capacity_bytes,
                headroom_bytes=entry.headroom_bytes,
                items=items,
            )
            for entry in prediction.memory
            for items in [
                tuple(
                    MemoryEntry(name=item.name, memory_bytes=item.nbytes, origin=item.origin)
                    for item in entry.items
                )
            ]
            for device in entry.devices
        ),
        origin=prediction.origin,
        training_time_s=None if steps is None else steps * prediction.step_time_s,
        training_cost=None if steps is None or cost is None else steps * cost,
    )


def _breakdown(breakdown: Breakdown) -> dict[str, float]:
    return asdict(breakdown)


def alternative(rank: int, configuration: Configuration, prediction: Prediction) -> Alternative:
    """A plan of the ranking in short: where it spends most, and its fullest device."""
    parts = _breakdown(prediction.breakdown)
    worst = prediction.worst_device
    degrees = parallelism(configuration)
    return Alternative(
        rank=rank,
        mapping=_mapping(degrees),
        parallelism=degrees,
        layers=tuple(stage.layer_count for stage in configuration.stages),
        step_time_s=prediction.step_time_s,
        tokens_per_s=prediction.tokens_per_s,
        cost_per_step=prediction.cost_per_step,
        bound_by=max(parts, key=lambda name: parts[name]),
        breakdown_s=parts,
        worst_device=str(worst.devices[0]),
        headroom_bytes=worst.headroom_bytes,
    )


def _mapping(degrees: Parallelism) -> str:
    """`tp8 pp4 dp2 mbs1` and what else is not 1."""
    parts = [
        f"tp{degrees.tensor_parallel}",
        f"pp{degrees.pipeline_parallel}",
        f"dp{degrees.data_parallel or '*'}",
    ]
    for name, value in (
        ("cp", degrees.context_parallel),
        ("ep", degrees.expert_parallel),
        ("vp", degrees.virtual_stages),
    ):
        if value > 1:
            parts.append(f"{name}{value}")
    if degrees.expert_tensor_parallel not in (1, degrees.tensor_parallel):
        parts.append(f"etp{degrees.expert_tensor_parallel}")
    parts.append(f"mbs{degrees.micro_batch_size}")
    return " ".join(parts)


def configuration_of(plan: Plan) -> Configuration:
    """The configuration that a plan describes: the inverse of `plan_document`."""
    degrees = plan.parallelism
    schedules: tuple[ScheduleName, ...] = get_args(ScheduleName)
    schedule = next(name for name in schedules if name == degrees.schedule)
    return Configuration(
        pipelines=_pipelines(plan),
        micro_batch_size=degrees.micro_batch_size,
        global_batch=degrees.global_batch,
        sequence=plan.inputs.workload.sequence,
        precision=degrees.precision,
        framework="deepspeed" if plan.target == "deepspeed" else "megatron",
        context_parallel=degrees.context_parallel,
        expert_parallel=degrees.expert_parallel,
        expert_tensor_parallel=degrees.expert_tensor_parallel,
        sequence_parallel=degrees.sequence_parallel,
        zero_stage=degrees.zero_stage,
        offload=degrees.offload,
        schedule=schedule,
        overlap_grad_reduce=degrees.overlap_grad_reduce,
        overlap_param_gather=degrees.overlap_param_gather,
        attention=degrees.attention,
    )


def _pipelines(plan: Plan) -> tuple[Pipeline, ...]:
    grouped: dict[int, list[PlanStage]] = {}
    for stage in plan.stages:
        grouped.setdefault(stage.pipeline, []).append(stage)
    return tuple(Pipeline(tuple(_pipeline_stages(members))) for members in grouped.values())


def _pipeline_stages(members: list[PlanStage]) -> list[Stage]:
    """Chunk c of all stages precedes chunk c + 1, so first layers follow from the counts."""
    ranges: list[list[LayerRange]] = [[] for _ in members]
    first = members[0].first_layer
    for chunk in range(len(members[0].chunks)):
        for position, stage in enumerate(members):
            ranges[position].append(LayerRange(first, stage.chunks[chunk]))
            first += stage.chunks[chunk]
    return [
        Stage(
            chunks=tuple(chunks),
            tensor_parallel=stage.tensor_parallel,
            replicas=tuple(
                Replica(
                    tuple(DeviceId(device.node, device.index) for device in replica.devices),
                    replica.micro_batches,
                    replica.micro_batch_size,
                )
                for replica in stage.replicas
            ),
            recompute=Recompute(stage.recompute, stage.recompute_layers),
        )
        for stage, chunks in zip(members, ranges, strict=True)
    ]
