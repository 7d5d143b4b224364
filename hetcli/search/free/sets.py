"""Every set of stages that may be a pipeline, as arrays, and how many micro-batches it can do.

The bound rests on one fact about a pipeline whose stages take t_0, t_1, .. for a micro-batch, both
passes: stage k begins after the first forward pass of those before it, and they have their part of
the last backward pass left when it ends, so m micro-batches take T >= sum_{j<k} t_j + m t_k. Stages
that do s_k layers a second do sum s_k t_k of them; over all t_k that keep the fact for each k, this
is at most T/m sum_k s_k (1 - 1/m)^k (the dual of the linear program; fastest stage first).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from hetcli.search.free.costs import Kind, PipelineCosts, Setting

__all__ = ["Sets", "counts_of", "sets_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Stages of a pipeline where memory does not ask for more, and pools that one pipeline joins.
MOST_STAGES = 8
MOST_POOLS = 3
# Sets of one setting that a second is enough to weigh.
MOST_SETS = 30_000
# Rounds in which the most micro-batches come down to what they can be.
ROUNDS = 6
# A bound is rounded in its favour by so much.
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of stages of one setting: `counts` are stages of each kind, [sets, kinds].

    `speeds` are layers a second of every stage, fastest first; `work` the layers that a micro-batch
    is worth, the ends among them; `pass_s` the least seconds of one through all stages. Sets that
    do not `fit` cannot hold the model. `rates` are layers a second of each kind and `room` those
    that its stages hold, [sets, kinds]; where layers are equal, stages take `whole_layers`.
    """

    setting: Setting
    kinds: tuple[Kind, ...]
    counts: Ints
    speeds: Floats
    work: Floats
    pass_s: Floats
    rates: Floats
    room: Ints
    layers: int
    whole_layers: bool

    @cached_property
    def fit(self) -> Bools:
        """Whether the stages may hold all layers."""
        found: Bools = self.room.sum(axis=1) >= self.layers
        return found

    def stages(self, row: int) -> list[tuple[Kind, int]]:
        """One set as kinds with how many of each."""
        return [
            (kind, int(count))
            for kind, count in zip(self.kinds, self.counts[row], strict=True)
            if count
        ]

    def micro_batches(self, step_s: float, rows: Ints) -> Floats:
        """The most micro-batches that any split and order of some sets does in a step.

        Whole numbers, at least as many as there are stages, else 0.
        """
        speeds, work = self.speeds[rows], self.work[rows]
        depth = self.counts[rows].sum(axis=1)
        place = np.arange(speeds.shape[1])
        most = step_s * speeds.sum(axis=1) / work
        for _ in range(ROUNDS):
            # From above: every round is still a bound.
            shrunk = (1 - 1 / np.maximum(most, depth))[:, None] ** place
            most = step_s * (speeds * shrunk).sum(axis=1) / work
        low, high = depth - 1, np.floor(most * (1 + SLACK)).astype(np.int64)
        while self.whole_layers and (open_ := np.flatnonzero(low < high)).size:
            middle = (low + high + 1) // 2
            enough = self._holds(rows[open_], step_s / middle[open_])
            low[open_] = np.where(enough, middle[open_], low[open_])
            high[open_] = np.where(enough, high[open_], middle[open_] - 1)
        possible = self.fit[rows] & (self.pass_s[rows] <= step_s) & (high >= depth)
        result: Floats = np.where(possible, high, 0).astype(np.float64)
        return result

    def _holds(self, rows: Ints, limit_s: Floats) -> Bools:
        """Whether stages that each take at most `limit_s` can hold all layers, whole ones."""
        each = np.floor(limit_s[:, None] * (1 + SLACK) * self.rates)
        counts = self.counts[rows]
        held = np.minimum(counts * each, self.room[rows]).sum(axis=1)
        found: Bools = held >= self.layers
        return found


def sets_of(costs: PipelineCosts, setting: Setting, kinds: Sequence[Kind], counts: Ints) -> Sets:
    """The sets with these `counts` of each kind, weighed."""
    known = [costs.of(kind, setting) for kind in kinds]
    unit = np.array([found.layer_s for found in known])
    first = np.array([sum(found.first) for found in known])
    last = np.array([sum(found.last) for found in known])
    # What a layer takes of the mean on the kind where it takes least: 1 where all are equal.
    each = np.array([np.diff(found.forward + found.backward) for found in known])
    layers = float((each / unit[:, None]).min(axis=0).sum())
    model = costs.problem.model
    width = int(counts.sum(axis=1).max(initial=1))
    speeds = np.sort(_repeated(1 / unit, counts, width), axis=1)[:, ::-1]
    return Sets(
        setting,
        tuple(kinds),
        counts,
        speeds,
        layers + _least(counts, first / unit) + _least(counts, last / unit),
        (layers * _least(counts, unit) + _least(counts, first) + _least(counts, last))
        * (1 - SLACK),
        1 / unit,
        _room(costs, setting, kinds, counts, width),
        model.layer_count,
        len({run.layer for run in model.layers}) == 1,
    )


def _repeated(values: Floats, counts: Ints, width: int) -> Floats:
    """The value of every stage of each set, [sets, width], zeros behind."""
    ends = counts.cumsum(axis=1)
    place = np.arange(width)
    kind = (place[None, :, None] >= ends[:, None, :]).sum(axis=2)
    padded: Floats = np.append(values, 0.0)[kind]
    return padded


def _room(
    costs: PipelineCosts, setting: Setting, kinds: Sequence[Kind], counts: Ints, width: int
) -> Ints:
    """Layers that the stages of each kind hold with the fewest micro-batches in flight.

    Stage k of p holds p - k micro-batches, so n stages of a kind hold at least 1, 2, .. n.
    """
    single = counts.sum(axis=1) == 1
    room = np.zeros(counts.shape, np.int64)
    for number, kind in enumerate(kinds):
        most = costs.most_layers(kind, setting, width, pipelined=True, heaviest=False)[0]
        alone = costs.most_layers(kind, setting, 1, pipelined=False, heaviest=False)[3, 0]
        several = np.cumsum(np.append(0, np.maximum(most, 0)))
        own = counts[:, number]
        room[:, number] = np.where(single, own * max(int(alone), 0), several[own])
    return room


def _least(counts: Ints, values: Floats) -> Floats:
    """The least value of the kinds that each set uses."""
    least: Floats = np.where(counts > 0, values[None, :], np.inf).min(axis=1)
    return least


def counts_of(costs: PipelineCosts, settings: Sequence[Setting], kinds: Sequence[Kind]) -> Ints:
    """Stages of each kind, [sets, kinds]: one kind a pool, as many sets as can be weighed."""
    deepest = _deepest(costs, settings, kinds)
    caps = [kind.pool.group_count(kind.tensor) for kind in kinds]
    for joined in range(MOST_POOLS, 0, -1):
        rows = []
        for row in _rows(kinds, caps, deepest, joined):
            rows.append(row)
            if len(rows) > MOST_SETS and joined > 1:
                break
        else:
            return np.array(rows, dtype=np.int64).reshape(-1, len(kinds))
    raise AssertionError("one pool a pipeline is always few enough")


def _rows(
    kinds: Sequence[Kind], caps: Sequence[int], deepest: int, joined: int
) -> Iterator[list[int]]:
    by_pool: dict[int, list[int]] = {}
    for position, kind in enumerate(kinds):
        by_pool.setdefault(kind.pool.index, []).append(position)
    for number in range(1, joined + 1):
        for group in combinations(by_pool.values(), number):
            for chosen in product(*group):
                steps = [_steps(min(caps[position], deepest)) for position in chosen]
                for taken in product(*steps):
                    if sum(taken) <= deepest:
                        row = [0] * len(kinds)
                        for position, count in zip(chosen, taken, strict=True):
                            row[position] = count
                        yield row


def _steps(most: int) -> list[int]:
    """Numbers of stages: all up to `MOST_STAGES`, then each a quarter (1/4) more, last the most."""
    found = list(range(1, min(most, MOST_STAGES) + 1))
    while found[-1] < most:
        found.append(min(most, found[-1] + max(1, found[-1] // 4)))
    return found


def _deepest(costs: PipelineCosts, settings: Sequence[Setting], kinds: Sequence[Kind]) -> int:
    """Stages of the longest pipeline: `MOST_STAGES`, or half as many again as memory asks for."""
    problem = costs.problem
    if (problem.options.zero_stage or 0) > 1:
        # Gradients and parameters are sharded without a pipeline only.
        return 1
    layers = problem.model.layer_count
    room = max(
        int(costs.most_layers(kind, setting, 1, pipelined=True, heaviest=False)[0].max())
        for kind in kinds
        for setting in settings
    )
    needed = math.ceil(layers / room) if room > 0 else layers
    return min(max(MOST_STAGES, needed + needed // 2), layers + 2)
