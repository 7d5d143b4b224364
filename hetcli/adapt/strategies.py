"""Ways to go on with what is left of a plan, from the smallest change to the largest.

Each takes the configuration that ran and the hardware that is left, and gives the configuration to
go on with, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from hetcli.adapt.elastic import elastic_batches
from hetcli.adapt.shares import Clock, fastest_split, shrunk_layers, split_batches
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Replica,
)
from hetcli.perf.hardware import Hardware
from hetcli.perf.rules.degrees import legal_tensor_parallel
from hetcli.perf.stage import Costs
from hetcli.spec.model.architecture import Model

__all__ = [
    "STRATEGIES",
    "candidates",
    "drop_replicas",
    "evened",
    "lost_devices",
    "renamed",
    "reroute",
    "resplit",
    "shrink_tensor_groups",
    "substitute",
]

RESPLIT = "re-split the layers"
REROUTE = "re-route micro-batches"
Strategy = Callable[[Configuration, Model, Hardware], Configuration | None]


def lost_devices(configuration: Configuration, hardware: Hardware) -> frozenset[DeviceId]:
    """Devices of the configuration that the hardware no longer has."""
    left = {device for node in hardware.nodes for device in node.device_ids}
    return frozenset(device for device in configuration.devices if device not in left)


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

    Applies when stages are not equally fast and no device is lost.
    """
    if lost_devices(configuration, hardware) or not _plain(configuration):
        return None
    clock = Clock(configuration, Costs(model), hardware)
    pipelines = []
    for pipeline in configuration.pipelines:
        times = [
            max(clock.seconds(pipeline, at, replica) for replica in stage.replicas)
            for at, stage in enumerate(pipeline.stages)
        ]
        if len({layer_s for layer_s, _ in times}) > 1:
            micro_batches = max(each.micro_batches for each in pipeline.stages[0].replicas)
            layers = fastest_split(model.layer_count, times, micro_batches)
            pipeline = _with_layers(pipeline, layers)
        pipelines.append(pipeline)
    changed = replace(configuration, pipelines=tuple(pipelines))
    return None if changed == configuration else changed


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
    # Sequence parallelism gives every tensor rank as many tokens.
    tokens = configuration.sequence if configuration.sequence_parallel else 0
    degrees = [degree for degree in legal_tensor_parallel(model) if tokens % degree == 0]
    alone = max(stage.data_parallel for stage in configuration.stages) == 1 and (
        configuration.is_grid
    )
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
            smaller = _shrunk(pipeline, chain, lost, degrees, alone=alone)
            if smaller is None:
                return None
            pipelines.append(smaller)
    return _balanced(replace(configuration, pipelines=tuple(pipelines)), model, hardware)


def _shrunk(
    pipeline: Pipeline,
    chain: Sequence[Replica],
    lost: frozenset[DeviceId],
    degrees: Sequence[int],
    *,
    alone: bool,
) -> Pipeline | None:
    """One chain without its lost devices; None when a stage would have none.

    Unless it is `alone`, others hold the same layers: gradients add up slice by slice only where
    the new degree divides the old one.
    """
    before = [stage.tensor_parallel for stage in pipeline.stages]
    after, members = [], []
    for replica, old in zip(chain, before, strict=True):
        left = [device for device in replica.devices if device not in lost]
        fitting = [
            degree for degree in degrees if degree <= len(left) and (alone or old % degree == 0)
        ]
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
    clock = Clock(configuration, Costs(model), hardware)
    chains: list[tuple[int, Sequence[Replica]]] = []
    speeds = []
    for number, pipeline in enumerate(configuration.pipelines):
        for chain in _chains(pipeline) or ():
            chains.append((number, chain))
            speeds.append(clock.speed(pipeline, chain))
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
    if configuration.pipeline_parallel == 1:
        # There is no rest of the pipeline: the replica is dropped.
        return None
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


def substitute(
    configuration: Configuration, _model: Model, hardware: Hardware
) -> Configuration | None:
    """Put an unused node in the place of each that lost a device, index by index."""
    used = {device.node for device in configuration.devices}
    spare = [node for node in hardware.nodes if node.name not in used]
    places: dict[str, str] = {}
    for name in sorted({device.node for device in lost_devices(configuration, hardware)}):
        needed = {device.index for device in configuration.devices if device.node == name}
        fitting = next((node for node in spare if needed <= set(node.devices)), None)
        if fitting is None:
            return None
        spare.remove(fitting)
        places[name] = fitting.name
    return renamed(configuration, places) if places else None


def renamed(configuration: Configuration, places: Mapping[str, str]) -> Configuration:
    """The same with other nodes in the places of some."""

    def at(device: DeviceId) -> DeviceId:
        return DeviceId(places.get(device.node, device.node), device.index)

    def moved(replica: Replica) -> Replica:
        return replace(replica, devices=tuple(map(at, replica.devices)))

    return replace(
        configuration,
        pipelines=tuple(
            Pipeline(
                tuple(
                    replace(stage, replicas=tuple(map(moved, stage.replicas)))
                    for stage in pipeline.stages
                )
            )
            for pipeline in configuration.pipelines
        ),
    )


# From the smallest change to the largest.
STRATEGIES: Mapping[str, Strategy] = {
    "put a spare in its place": substitute,
    "exclude from the tensor group": shrink_tensor_groups,
    RESPLIT: resplit,
    REROUTE: reroute,
    "drop the replica": drop_replicas,
}


def candidates(
    configuration: Configuration, model: Model, hardware: Hardware, tolerance: float = 0.0
) -> Iterator[tuple[str, Configuration]]:
    """Every way that applies, with its name.

    What is left is also re-split and re-routed, where its devices are not equally fast, and shared
    out evenly, where another batch within `tolerance` (a share) allows that.
    """
    for name, strategy in STRATEGIES.items():
        found = strategy(configuration, model, hardware)
        if found is None:
            continue
        yield name, found
        for more, further in ((RESPLIT, resplit), (REROUTE, reroute)):
            done = name in (more, REROUTE)
            changed = None if done else further(found, model, hardware)
            if changed is not None:
                name, found = f"{name}, {more}", changed
                yield name, found
        even = evened(found, tolerance)
        if even is not None:
            yield f"{name}, share out evenly", even


def evened(configuration: Configuration, tolerance: float) -> Configuration | None:
    """The same with as many micro-batches for each replica, and the nearest batch that allows it.

    None where they are equal already, replicas are unlike, or the band has no such batch.
    """
    if not configuration.is_grid or len({s.data_parallel for s in configuration.stages}) > 1:
        return None
    counts = {r.micro_batches for stage in configuration.stages for r in stage.replicas}
    if len(counts) == 1:
        return None
    samples = configuration.stages[0].data_parallel * configuration.micro_batch_size
    batches = elastic_batches(samples, configuration.global_batch, tolerance)
    if not batches:
        return None
    batch = min(batches, key=lambda each: abs(each.global_batch - configuration.global_batch))
    [pipeline] = configuration.pipelines
    chains = _chains(pipeline) or []
    shared = _pipeline(pipeline, chains, [batch.samples] * len(chains))
    return replace(configuration, pipelines=(shared,), global_batch=batch.global_batch)
