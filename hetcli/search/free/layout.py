"""A mix with every device named: pipelines of one shape together, wide groups first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    Stage,
)
from hetcli.search.families import Problem
from hetcli.search.free.columns import Column
from hetcli.search.free.costs import blank
from hetcli.search.pools import Pool

__all__ = ["Order", "configuration", "merged"]


Order = Literal["stages", "replicas", "whole runs"]


@dataclass(frozen=True, slots=True)
class _Slot:
    """One stage of one replica of one shape that needs a group of devices."""

    shape: int
    replica: int
    stage: int
    tensor: int


def configuration(
    problem: Problem, shapes: Sequence[tuple[Column, Sequence[int]]], order: Order
) -> Configuration | None:
    """The configuration of a mix: each shape with the micro-batches of its replicas.

    In order of `stages` the replicas of a stage lie side by side, of `replicas` the stages of one,
    and of `whole runs` as many replicas as possible have all their stages of a pool in one node.
    None where groups of unlike width do not find their room.
    """
    groups = _place(shapes, order)
    if groups is None:
        return None
    pipelines = tuple(
        _pipeline(column, counts, groups, shape) for shape, (column, counts) in enumerate(shapes)
    )
    widest = max(kind.tensor for column, _ in shapes for kind in column.stages)
    return blank(problem, shapes[0][0].setting, pipelines, widest)


def merged(configuration: Configuration) -> Configuration:
    """Pipelines with the same stages as replicas of one, whatever devices and micro-batches they
    have: what one program can run."""
    alike: dict[object, list[Pipeline]] = {}
    for pipeline in configuration.pipelines:
        shape = tuple(replace(stage, replicas=()) for stage in pipeline.stages)
        alike.setdefault(shape, []).append(pipeline)
    pipelines = tuple(
        Pipeline(
            tuple(
                replace(same[0], replicas=tuple(each for stage in same for each in stage.replicas))
                for same in zip(*(one.stages for one in members), strict=True)
            )
        )
        for members in alike.values()
    )
    return replace(configuration, pipelines=pipelines)


def _pipeline(
    column: Column,
    counts: Sequence[int],
    groups: dict[tuple[int, int, int], tuple[DeviceId, ...]],
    shape: int,
) -> Pipeline:
    setting = column.setting
    stages = []
    first = 0
    for number, (kind, layers) in enumerate(zip(column.stages, column.layers, strict=True)):
        stages.append(
            Stage(
                chunks=(LayerRange(first, layers),),
                tensor_parallel=kind.tensor,
                replicas=tuple(
                    Replica(groups[shape, replica, number], count, setting.micro_batch_size)
                    for replica, count in enumerate(counts)
                ),
                recompute=Recompute(setting.recompute),
            )
        )
        first += layers
    return Pipeline(tuple(stages))


def _place(
    shapes: Sequence[tuple[Column, Sequence[int]]], order: Order
) -> dict[tuple[int, int, int], tuple[DeviceId, ...]] | None:
    """A group of devices inside one node for every stage of every replica; None if it fails."""
    wanted: dict[Pool, list[_Slot]] = {}
    for shape, (column, counts) in enumerate(shapes):
        for number, kind in enumerate(column.stages):
            for replica in range(len(counts)):
                slot = _Slot(shape, replica, number, kind.tensor)
                wanted.setdefault(kind.pool, []).append(slot)
    placed: dict[tuple[int, int, int], tuple[DeviceId, ...]] = {}
    for pool, slots in wanted.items():
        free = {node.name: list(node.device_ids) for node in pool.nodes}
        for slot, name in _nodes_of(slots, free, order):
            if name is None:
                return None
            group, free[name] = free[name][: slot.tensor], free[name][slot.tensor :]
            placed[slot.shape, slot.replica, slot.stage] = tuple(group)
    return placed


def _nodes_of(
    slots: list[_Slot], free: Mapping[str, Sequence[DeviceId]], order: Order
) -> Iterator[tuple[_Slot, str | None]]:
    """Slots one after the other, each with the node that it goes to; `free` changes meanwhile."""

    def first_with(room: int) -> str | None:
        return next((name for name, left in free.items() if len(left) >= room), None)

    if order != "whole runs":
        slots.sort(
            key=lambda slot: (
                -slot.tensor,
                slot.shape,
                *((slot.stage, slot.replica) if order == "stages" else (slot.replica, slot.stage)),
            )
        )
        for slot in slots:
            yield slot, first_with(slot.tensor)
        return
    runs: dict[tuple[int, int, int], list[_Slot]] = {}
    for slot in slots:
        runs.setdefault((slot.tensor, slot.shape, slot.replica), []).append(slot)
    # The largest runs first, each into the fullest node that holds all of it.
    for (tensor, *_), run in sorted(runs.items(), key=lambda item: -item[0][0] * len(item[1])):
        room = tensor * len(run)
        fitting = [name for name, left in free.items() if len(left) >= room]
        home = min(fitting, key=lambda name: len(free[name])) if fitting else None
        for slot in run:
            yield slot, home or first_with(tensor)
