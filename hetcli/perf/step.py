"""One optimizer step of a configuration: time, memory and money. The judge of every plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hetcli.perf.chains import chains
from hetcli.perf.compute import optimizer_time
from hetcli.perf.configuration import Configuration, Pipeline, Stage
from hetcli.perf.filling import PipelineTime, pipeline_time
from hetcli.perf.flops import model_flops
from hetcli.perf.hardware import Hardware
from hetcli.perf.memory import stage_memory
from hetcli.perf.money import cost_per_step
from hetcli.perf.prediction import Breakdown, DeviceMemory, Prediction, StagePrediction
from hetcli.perf.stage import Costs, Pass
from hetcli.perf.synchronisation import Synchronisation, exposed, synchronisation
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import Model
from hetcli.spec.workload import Pretrain

__all__ = ["micro_exposed", "predict"]


@dataclass(frozen=True, slots=True)
class _StageEnd:
    """What one stage of one pipeline does after its last micro-batch."""

    sync: Synchronisation
    exposed_reduce_s: float
    exposed_gather_s: float
    optimizer_s: float


def _others(configuration: Configuration, pipeline: Pipeline, stage: Stage) -> list[Stage]:
    """Stages of other pipelines that hold a layer of `stage`."""
    mine = [(chunk.first, chunk.stop) for chunk in stage.chunks if chunk.count]
    return [
        other
        for each in configuration.pipelines
        if each is not pipeline
        for other in each.stages
        if any(
            chunk.first < stop and first < chunk.stop
            for chunk in other.chunks
            if chunk.count
            for first, stop in mine
        )
    ]


def _stage_end(
    configuration: Configuration,
    pipeline: Pipeline,
    index: int,
    time: PipelineTime,
    hardware: Hardware,
    model: Model,
    workload: Pretrain,
) -> _StageEnd:
    stage = pipeline.stages[index]
    sync = synchronisation(
        configuration,
        model,
        stage,
        _others(configuration, pipeline, stage),
        hardware,
        first=index == 0,
        last=index == len(pipeline.stages) - 1,
    )
    chain = time.slowest
    reduce_s, gather_s = exposed(
        sync,
        configuration,
        layers=stage.layer_count,
        forward_s=chain.forward(index).total,
        backward_s=chain.backward(index).total,
    )
    kinds = {hardware.node_of(replica.devices[0]).device_type for replica in stage.replicas}
    update = max(
        optimizer_time(sync.state_parameters, kind, workload.optimizer, configuration.offload)
        for kind in kinds
    )
    measured = chain.stages[index].update_s
    if measured is not None and configuration.offload == "none":
        # ZeRO gives every data-parallel rank its part of the update.
        update = measured / (stage.data_parallel if configuration.zero_stage else 1)
    return _StageEnd(sync, reduce_s, gather_s, update)


def micro_exposed(sync: Synchronisation, forward: Pass, backward: Pass) -> float:
    """Seconds of a micro-batch that ZeRO-3's gathers and reductions stick out of the compute."""
    ahead, back = sync.micro_gather_s, sync.micro_gather_s + sync.micro_reduce_s
    least = sync.micro_exposed
    return max(ahead * least, ahead - forward.total) + max(back * least, back - backward.total)


def _stage_prediction(
    number: int, index: int, time: PipelineTime, end: _StageEnd
) -> StagePrediction:
    chain = time.slowest
    batches = chain.micro_batches
    forward, backward = chain.forward(index), chain.backward(index)
    both = (forward + backward) * batches
    send = time.sending_s[index] + both.receive
    busy = both.total - both.receive + send
    micro = batches * micro_exposed(end.sync, forward, backward)
    parts = Breakdown(
        compute=both.compute,
        tensor_parallel=both.tensor_parallel,
        context_parallel=both.context_parallel,
        expert_parallel=both.expert_parallel,
        pipeline_p2p=send,
        pipeline_bubble=max(0.0, time.makespan_s - busy),
        data_parallel=end.exposed_reduce_s + end.exposed_gather_s + micro,
        optimizer=end.optimizer_s,
    )
    return StagePrediction(
        stage=number,
        forward_s=forward.total,
        backward_s=backward.total,
        send_s=send / batches,
        busy_s=busy,
        gradient_sync_s=end.sync.reduce_s + end.sync.gather_s,
        optimizer_s=end.optimizer_s,
        breakdown=parts,
        origin=chain.stages[index].origin,
    )


def predict(
    configuration: Configuration, *, model: Model, workload: Pretrain, hardware: Hardware
) -> Prediction:
    """Time, memory and money of one optimizer step of `configuration`.

    The breakdown is that of the stage with the most work in the slowest pipeline; what it waits
    for is its bubble, what comes after the last backward pass is counted once for all.
    """
    costs = Costs(model)
    times = [
        pipeline_time(chains(configuration, pipeline, hardware, costs), configuration.schedule)
        for pipeline in configuration.pipelines
    ]
    stages: list[StagePrediction] = []
    ends: list[_StageEnd] = []
    reduced = 0.0
    for pipeline, time in zip(configuration.pipelines, times, strict=True):
        for index in range(len(pipeline.stages)):
            end = _stage_end(configuration, pipeline, index, time, hardware, model, workload)
            ends.append(end)
            stages.append(_stage_prediction(len(stages), index, time, end))
            reduced = max(reduced, time.finish_s[index] + end.exposed_reduce_s)
    slowest = max(range(len(times)), key=lambda position: times[position].makespan_s)
    makespan = times[slowest].makespan_s
    offset = sum(len(each.stages) for each in configuration.pipelines[:slowest])
    own = range(offset, offset + len(configuration.pipelines[slowest].stages))
    binding = max(own, key=lambda number: stages[number].busy_s)
    optimizer = max(end.optimizer_s for end in ends)
    gather = max(end.exposed_gather_s for end in ends)
    micro = stages[binding].breakdown.data_parallel - (
        ends[binding].exposed_reduce_s + ends[binding].exposed_gather_s
    )
    breakdown = replace(
        stages[binding].breakdown,
        pipeline_bubble=makespan - stages[binding].busy_s,
        data_parallel=micro + (reduced - makespan) + gather,
        optimizer=0.0 if configuration.offload != "none" else optimizer,
        offload=optimizer if configuration.offload != "none" else 0.0,
    )
    step = breakdown.total
    flops = configuration.global_batch * model_flops(model, configuration.sequence)
    return Prediction(
        step_time_s=step,
        tokens_per_s=configuration.global_batch * configuration.sequence / step,
        model_flops=flops,
        mfu=_mfu(configuration, hardware, flops, step),
        cost_per_step=cost_per_step(configuration, hardware, step),
        breakdown=breakdown,
        stages=tuple(stages),
        memory=_memory(configuration, model, hardware),
        origin=Origin.MEASURED.weakest(*(stage.origin for stage in stages)),
        assumptions=hardware.assumptions,
    )


def _mfu(
    configuration: Configuration, hardware: Hardware, flops: float, step: float
) -> float | None:
    """None when a device has no data-sheet peak for the precision."""
    peak = 0.0
    for device in configuration.devices:
        own = hardware.node_of(device).device_type.gpu.peak_flops.get(configuration.precision)
        if own is None:
            return None
        peak += own
    return flops / (step * peak)


def _memory(
    configuration: Configuration, model: Model, hardware: Hardware
) -> tuple[DeviceMemory, ...]:
    entries = []
    number = 0
    for at, pipeline in enumerate(configuration.pipelines):
        for index, stage in enumerate(pipeline.stages):
            known = {}
            for position, replica in enumerate(stage.replicas):
                kind = hardware.node_of(replica.devices[0]).device_type
                key = (kind, replica.micro_batch_size, replica.micro_batches)
                if key not in known:
                    known[key] = stage_memory(configuration, model, hardware, at, index, position)
                capacity = min(
                    hardware.node_of(device).device_type.memory_bytes for device in replica.devices
                )
                entries.append(
                    DeviceMemory(number, position, replica.devices, known[key], capacity)
                )
            number += 1
    return tuple(entries)
