"""Pipelines as columns: which stages of which pools, how their layers are split, and how fast.

A pipeline of M micro-batches takes fill + M * pace seconds (the form of GPipe, arXiv 1811.06965,
section 2: one pass of a micro-batch, and the slowest stage for each of the others).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.synchronisation import unhidden
from hetcli.search.free.costs import Ends, Kind, KindCosts, PipelineCosts, Setting
from hetcli.search.partition import split_equal_layers

__all__ = ["Column", "best_columns"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# With more pools in one pipeline only the given order and its reverse are looked at.
MOST_PERMUTED = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One pipeline: kinds of stages in order with how many of each, and the layers of each stage.

    `after_s` is what follows the last backward pass.
    """

    setting: Setting
    runs: tuple[tuple[Kind, int], ...]
    layers: tuple[int, ...]
    fill_s: float
    pace_s: float
    after_s: float

    @property
    def depth(self) -> int:
        """Stages."""
        return len(self.layers)

    @property
    def stages(self) -> tuple[Kind, ...]:
        """The kind of every stage."""
        return tuple(kind for kind, count in self.runs for _ in range(count))

    @property
    def overhead_s(self) -> float:
        """Seconds of a step beside `pace_s` for each micro-batch."""
        return self.fill_s + self.after_s

    def micro_batches(self, step_s: float) -> float:
        """How many micro-batches, whole or not, it does in a step of `step_s`."""
        return (step_s - self.overhead_s) / self.pace_s


Runs = tuple[tuple[Kind, int], ...]


def best_columns(
    costs: PipelineCosts,
    sets: Sequence[tuple[Setting, Sequence[tuple[Kind, int]]]],
    micro_batches: Sequence[float],
) -> list[Column | None]:
    """The best order and split of every set of stages; None where the layers do not fit.

    Args:
        costs: of stages and boundaries.
        sets: the setting of each, and kinds of stages with how many of each.
        micro_batches: about how many each set will run: what the split weighs the pace with.
    """
    best: list[Column | None] = [None] * len(sets)
    by_depth: dict[int, list[tuple[int, Setting, Runs]]] = {}
    for number, (setting, chosen) in enumerate(sets):
        depth = sum(count for _, count in chosen)
        for order in _orders(chosen):
            by_depth.setdefault(depth, []).append((number, setting, order))
    for depth, members in by_depth.items():
        weights = np.array([max(micro_batches[number] - 1, 1.0) for number, _, _ in members])
        orders = [(setting, order) for _, setting, order in members]
        columns = _split(costs, orders, depth, weights)
        for (number, _, _), column in zip(members, columns, strict=True):
            if column is None:
                continue
            wanted, known = micro_batches[number], best[number]
            if known is None or _seconds(column, wanted) < _seconds(known, wanted):
                best[number] = column
    return best


def _seconds(column: Column, micro_batches: float) -> float:
    return column.overhead_s + micro_batches * column.pace_s


def _orders(chosen: Sequence[tuple[Kind, int]]) -> list[Runs]:
    if len(chosen) <= MOST_PERMUTED:
        return list(permutations(chosen))
    return [tuple(chosen), tuple(reversed(chosen))]


def _split(
    costs: PipelineCosts,
    orders: Sequence[tuple[Setting, Runs]],
    depth: int,
    weights: Floats,
) -> list[Column | None]:
    """Split the layers of pipelines of one depth."""
    layers = costs.problem.model.layer_count
    position: dict[tuple[Kind, Setting], int] = {}
    # Every run as the position of its kind and setting with the number of its stages.
    runs = [
        [(position.setdefault((kind, setting), len(position)), count) for kind, count in order]
        for setting, order in orders
    ]
    stage = np.array([[at for at, count in each for _ in range(count)] for each in runs])
    known = [costs.of(kind, setting) for kind, setting in position]
    ends = [costs.ends(kind, setting) for kind, setting in position]
    each = np.array([found.layer_s for found in known])[stage]
    edges = _Edges(costs, list(position))
    send = np.array([edges.of(each) for each in runs]).reshape(len(orders), -1)
    extra = np.zeros(stage.shape)
    extra[:, :-1] += send
    extra[:, 1:] += send
    extra[:, 0] += np.array([sum(found.first) for found in known])[stage[:, 0]]
    extra[:, -1] += np.array([sum(found.last) for found in known])[stage[:, -1]]
    role = np.zeros(depth, dtype=np.int64)
    role[0] += 2
    role[-1] += 1
    held = np.arange(depth, 0, -1)
    tables = [
        costs.most_layers(kind, setting, depth, pipelined=depth > 1) for kind, setting in position
    ]
    most = np.array([table[role, held - 1] for table in tables])[stage, np.arange(depth)]
    least = np.ones(depth, dtype=np.int64)
    least[[0, -1]] = 0
    least = np.broadcast_to(least, stage.shape)

    split, value = split_equal_layers(
        each, extra, least, most, layers, np.broadcast_to(weights[:, None], stage.shape)
    )
    seconds = split * each + extra
    pace = seconds.max(axis=1)
    fill = seconds.sum(axis=1) - pace
    after = _after(known, ends, stage, split)
    return [
        Column(
            setting,
            order,
            tuple(int(n) for n in split[row]),
            float(fill[row]),
            float(pace[row]),
            float(after[row]),
        )
        if np.isfinite(value[row])
        else None
        for row, (setting, order) in enumerate(orders)
    ]


def _after(known: Sequence[KindCosts], ends: Sequence[Ends], stage: Ints, split: Ints) -> Floats:
    """Seconds after the last backward pass: what sticks out of the collectives, and the update.

    Both collectives hide behind the pass of their stage but for one layer's part, as in
    `perf.synchronisation.exposed`.
    """

    def whole(name: str) -> Floats:
        layer, first, last = (
            np.array([getattr(getattr(found, part), name) for found in ends])
            for part in ("layer", "first", "last")
        )
        seconds: Floats = split * layer[stage]
        seconds[:, 0] += first[stage[:, 0]]
        seconds[:, -1] += last[stage[:, -1]]
        return seconds

    ahead, back = (
        split * np.array([getattr(found, name)[-1] / found.layers for found in known])[stage]
        for name in ("forward", "backward")
    )
    reduced = unhidden(whole("reduce_s"), back, split)
    gathered = unhidden(whole("gather_s"), ahead, split)
    after: Floats = reduced.max(axis=1) + gathered.max(axis=1) + whole("update_s").max(axis=1)
    return after


class _Edges:
    """Seconds of the boundaries between stages, by the positions of their kinds and settings."""

    def __init__(self, costs: PipelineCosts, known: Sequence[tuple[Kind, Setting]]) -> None:
        self._costs = costs
        self._kinds = known
        self._pairs: dict[tuple[int, int], float] = {}
        self._inner: dict[tuple[int, int], list[float]] = {}

    def of(self, runs: Sequence[tuple[int, int]]) -> list[float]:
        """Every boundary of a pipeline."""
        sends: list[float] = []
        before: int | None = None
        for at, count in runs:
            if before is not None:
                sends.append(self._between(before, at))
            sends += self._within(at, count)
            before = at
        return sends

    def _between(self, one: int, other: int) -> float:
        if (one, other) not in self._pairs:
            kind, setting = self._kinds[one]
            there, _ = self._kinds[other]
            self._pairs[one, other] = self._costs.send(kind, there, setting, inside=False)
        return self._pairs[one, other]

    def _within(self, at: int, count: int) -> list[float]:
        """The boundaries of a run.

        Its stages fill whole nodes, or so many runs fill a node; a run of another length is
        expected to be cut by a border in its middle.
        """
        if count > 1 and (at, count) not in self._inner:
            kind, setting = self._kinds[at]
            per_node = max(kind.pool.groups_per_node(kind.tensor), 1)
            cut = count // 2 if count < per_node and per_node % count else 0
            across = self._costs.send(kind, kind, setting, inside=False)
            inside = self._costs.send(kind, kind, setting, inside=True)
            self._inner[at, count] = [
                inside if stage % per_node and stage != cut else across for stage in range(1, count)
            ]
        return self._inner.get((at, count), [])
