"""Ways to go on with what is left of a plan, from the smallest change to the largest.

Each takes the configuration that ran and the hardware that is left, and gives the configuration to
go on with, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from hetcli.perf.compute import layer_time, shape_of
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Replica,
    Stage,
)
from hetcli.perf.hardware import Hardware
from hetcli.perf.rules.degrees import legal_tensor_parallel
from hetcli.spec.model.architecture import Model

__all__ = [
    "STRATEGIES",
    "candidates",
    "drop_replicas",
    "lost_devices",
    "reroute",
    "resplit",
    "shrink_tensor_groups",
    "shrunk_layers",
    "split_batches",
]

Strategy = Callable[[Configuration, Model, Hardware], Configuration | None]


def lost_devices(configuration: Configuration, hardware: Hardware) -> frozenset[DeviceId]:
    """Devices of the configuration that the hardware no longer has."""
    left = {device for node in hardware.nodes for device in node.device_ids}
    return frozenset(device for device in configuration.devices if device not in left)


def shrunk_layers(layers: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Layers of each stage when tensor-parallel degrees shrink from `before` to `after`.

    ResiHP (arXiv 2605.06374): each stage keeps floor(layers x after / before); the others go one
    by one to the stage where (layers + 1) / after is smallest.
    """
    kept = [count * new // old for count, old, new in zip(layers, before, after, strict=True)]
    for _ in range(sum(layers) - sum(kept)):
        at = min(range(len(kept)), key=lambda stage: ((kept[stage] + 1) / after[stage], stage))
        kept[at] += 1
    return kept


def split_batches(total: int, speeds: Sequence[float]) -> list[int] | None:
    """Micro-batches in proportion to speeds, so that the slowest is done as early as can be.

    Each gets at least one; None when there are fewer micro-batches than takers.
    """
    if total < len(speeds):
        return None
    counts = [1] * len(speeds)
    for _ in range(total - len(speeds)):
        at = min(range(len(speeds)), key=lambda k: ((counts[k] + 1) / speeds[k], k))
        counts[at] += 1
    return counts


def _plain(configuration: Configuration) -> bool:
    """Whether replicas stand alone: no experts or contexts spread over them, one chunk a stage."""
    return (
        configuration.expert_parallel == configuration.context_parallel == 1
        and configuration.expert_tensor_parallel == 1
        and all(len(stage.chunks) == 1 for stage in configuration.stages)
    )


def _chains(pipeline: Pipeline) -> list[tuple[Replica, ...]] | None:
    """Replica r of every stage, r by r; None where stages have unlike numbers of them."""
    widths = {stage.data_parallel for stage in pipeline.stages}
    if len(widths) > 1:
        return None
    return list(zip(*(stage.replicas for stage in pipeline.stages), strict=True))


def _is_hit(chain: Sequence[Replica], lost: frozenset[DeviceId]) -> bool:
    return any(device in lost for replica in chain for device in replica.devices)


def _pipeline(
    pipeline: Pipeline,
    chains: Sequence[Sequence[Replica]],
    batches: Sequence[int],
) -> Pipeline:
    """The pipeline with these chains, each with its number of micro-batches."""
    return Pipeline(
        tuple(
            replace(
                stage,
                replicas=tuple(
                    replace(chain[at], micro_batches=count)
                    for chain, count in zip(chains, batches, strict=True)
                ),
            )
            for at, stage in enumerate(pipeline.stages)
        )
    )


def resplit(configuration: Configuration, model: Model, hardware: Hardware) -> Configuration | None:
    """The same devices with as many layers each as their speed allows.

    Applies when a stage became slow and none was lost.
    """
    if lost_devices(configuration, hardware) or not _plain(configuration):
        return None
    pipelines = []
    for pipeline in configuration.pipelines:
        rates = [
            1 / _layer_s(configuration, stage, stage.replicas, model, hardware)
            for stage in pipeline.stages
        ]
        if len(rates) == 1 or len(set(rates)) == 1:
            pipelines.append(pipeline)
            continue
        layers = _fastest_split(model.layer_count, rates)
        pipelines.append(_with_layers(pipeline, layers))
    changed = replace(configuration, pipelines=tuple(pipelines))
    return None if changed == configuration else changed


def _layer_s(
    configuration: Configuration,
    stage: Stage,
    replicas: Sequence[Replica],
    model: Model,
    hardware: Hardware,
) -> float:
    """Seconds of one layer's forward and backward pass on the slowest of the replicas."""
    kinds = {
        hardware.node_of(device).device_type for replica in replicas for device in replica.devices
    }
    layer = next(iter(model.each_layer()))
    times = (layer_time(layer, model, shape_of(configuration, stage, kind), kind) for kind in kinds)
    return max(time.forward_s + time.backward_s for time in times)


def _fastest_split(layers: int, rates: Sequence[float]) -> list[int]:
    """Layers one by one to the stage that is done first with one more: exact for a bottleneck."""
    counts = [0] * len(rates)
    for _ in range(layers):
        at = min(range(len(rates)), key=lambda k: ((counts[k] + 1) / rates[k], k))
        counts[at] += 1
    return counts


def _with_layers(pipeline: Pipeline, layers: Sequence[int]) -> Pipeline:
    stages, first = [], 0
    for stage, count in zip(pipeline.stages, layers, strict=True):
        stages.append(replace(stage, chunks=(LayerRange(first, count),)))
        first += count
    return Pipeline(tuple(stages))


def shrink_tensor_groups(
    configuration: Configuration, model: Model, hardware: Hardware
) -> Configuration | None:
    """Leave the lost devices out of their tensor groups, and move layers to the other stages.

    A replica that lost a device becomes a pipeline of its own. Applies while every group keeps a
    device.
    """
    lost = lost_devices(configuration, hardware)
    if not lost or not _plain(configuration):
        return None
    pipelines: list[Pipeline] = []
    degrees = legal_tensor_parallel(model)
    for pipeline in configuration.pipelines:
        chains = _chains(pipeline)
        if chains is None:
            return None
        whole = [chain for chain in chains if not _is_hit(chain, lost)]
        if whole:
            kept = [chain[0].micro_batches for chain in whole]
            pipelines.append(_pipeline(pipeline, whole, kept))
        for chain in chains:
            if not _is_hit(chain, lost):
                continue
            smaller = _shrunk(pipeline, chain, lost, degrees)
            if smaller is None:
                return None
            pipelines.append(smaller)
    return _balanced(replace(configuration, pipelines=tuple(pipelines)), model, hardware)


def _shrunk(
    pipeline: Pipeline, chain: Sequence[Replica], lost: frozenset[DeviceId], degrees: Sequence[int]
) -> Pipeline | None:
    """One chain without its lost devices; None when a stage would have none."""
    before = [stage.tensor_parallel for stage in pipeline.stages]
    after, members = [], []
    for replica in chain:
        left = [device for device in replica.devices if device not in lost]
        fitting = [degree for degree in degrees if degree <= len(left)]
        if not fitting:
            return None
        after.append(fitting[-1])
        members.append(tuple(left[: fitting[-1]]))
    layers = shrunk_layers([stage.layer_count for stage in pipeline.stages], before, after)
    stages, first = [], 0
    for stage, replica, degree, devices, count in zip(
        pipeline.stages, chain, after, members, layers, strict=True
    ):
        stages.append(
            replace(
                stage,
                chunks=(LayerRange(first, count),),
                tensor_parallel=degree,
                replicas=(replace(replica, devices=devices),),
            )
        )
        first += count
    return Pipeline(tuple(stages))


def _balanced(
    configuration: Configuration, model: Model, hardware: Hardware
) -> Configuration | None:
    """The same with the micro-batches in proportion to how fast every chain is."""
    chains: list[tuple[int, Sequence[Replica]]] = []
    speeds = []
    for number, pipeline in enumerate(configuration.pipelines):
        for chain in _chains(pipeline) or ():
            chains.append((number, chain))
            speeds.append(_chain_speed(configuration, pipeline, chain, model, hardware))
    sizes = {replica.micro_batch_size for _, chain in chains for replica in chain}
    if len(sizes) > 1:
        return None
    total, rest = divmod(configuration.global_batch, sizes.pop())
    batches = None if rest else split_batches(total, speeds)
    if batches is None:
        return None
    pipelines = []
    for number, pipeline in enumerate(configuration.pipelines):
        own = [
            (chain, count)
            for (at, chain), count in zip(chains, batches, strict=True)
            if at == number
        ]
        pipelines.append(
            _pipeline(pipeline, [chain for chain, _ in own], [count for _, count in own])
        )
    return replace(configuration, pipelines=tuple(pipelines))


def _chain_speed(
    configuration: Configuration,
    pipeline: Pipeline,
    chain: Sequence[Replica],
    model: Model,
    hardware: Hardware,
) -> float:
    """Micro-batches in a unit of time: what its slowest stage lets through."""
    return 1 / max(
        max(stage.layer_count, 1) * _layer_s(configuration, stage, [replica], model, hardware)
        for stage, replica in zip(pipeline.stages, chain, strict=True)
    )


def reroute(configuration: Configuration, model: Model, hardware: Hardware) -> Configuration | None:
    """The other replicas of a stage also do the work of one that lost a device.

    The rest of its pipeline goes on as before. Applies while every stage keeps a whole replica.
    Without a lost device, micro-batches go from slow replicas to fast ones.
    """
    lost = lost_devices(configuration, hardware)
    if not _plain(configuration):
        return None
    if not lost:
        changed = _balanced(configuration, model, hardware)
        return None if changed == configuration else changed
    pipelines = []
    for pipeline in configuration.pipelines:
        stages = []
        for stage in pipeline.stages:
            whole = [each for each in stage.replicas if not lost.intersection(each.devices)]
            total = sum(each.micro_batches for each in stage.replicas)
            batches = split_batches(total, [1.0] * len(whole)) if whole else None
            if batches is None:
                return None
            stages.append(
                replace(
                    stage,
                    replicas=tuple(
                        replace(each, micro_batches=count)
                        for each, count in zip(whole, batches, strict=True)
                    )
                    if len(whole) < stage.data_parallel
                    else stage.replicas,
                )
            )
        pipelines.append(Pipeline(tuple(stages)))
    return replace(configuration, pipelines=tuple(pipelines))


def drop_replicas(
    configuration: Configuration, model: Model, hardware: Hardware
) -> Configuration | None:
    """Go on without the data-parallel members that lost a device; the others share their batch."""
    lost = lost_devices(configuration, hardware)
    if not lost:
        return None
    pipelines = []
    for pipeline in configuration.pipelines:
        chains = _chains(pipeline)
        if chains is None:
            return None
        whole = [chain for chain in chains if not _is_hit(chain, lost)]
        if whole:
            pipelines.append(
                _pipeline(pipeline, whole, [chain[0].micro_batches for chain in whole])
            )
    if not pipelines:
        return None
    return _balanced(replace(configuration, pipelines=tuple(pipelines)), model, hardware)


STRATEGIES: Mapping[str, Strategy] = {
    "exclude from the tensor group": shrink_tensor_groups,
    "re-split the layers": resplit,
    "re-route micro-batches": reroute,
    "drop the replica": drop_replicas,
}


def candidates(
    configuration: Configuration, model: Model, hardware: Hardware
) -> Iterator[tuple[str, Configuration]]:
    """Every way that applies, with its name."""
    for name, strategy in STRATEGIES.items():
        found = strategy(configuration, model, hardware)
        if found is not None:
            yield name, found
