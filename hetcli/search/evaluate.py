"""Split the layers of many shapes at once, and estimate what each of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.pipeline.closed_forms import lower_bound_1f1b
from hetcli.perf.synchronisation import unhidden
from hetcli.search.bounds import bottleneck_weights
from hetcli.search.costing import Family
from hetcli.search.limits import Limits
from hetcli.search.partition import split_equal_layers, split_unlike_layers
from hetcli.search.placement import stages_per_node
from hetcli.search.pools import Pool

__all__ = [
    "Stages",
    "estimate_steps",
    "most_layers",
    "polish",
    "split_plainly",
    "split_shapes",
    "split_unlike",
    "stages_of",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Shapes of one depth, stage by stage, [candidates, stages].

    `pool` is each stage's pool, `send` what a boundary takes [candidates, stages - 1]; `extra_*`
    are the seconds of a stage beside its layers, its own sends included.
    """

    pool: Ints
    extra_forward: Floats
    extra_backward: Floats
    send: Floats

    @property
    def depth(self) -> int:
        """Stages of each candidate."""
        return int(self.pool.shape[1])

    def row(self, row: int) -> Stages:
        """One of the candidates."""
        part = slice(row, row + 1)
        return Stages(
            self.pool[part], self.extra_forward[part], self.extra_backward[part], self.send[part]
        )

    def repeated(self, count: int) -> Stages:
        """The only candidate, `count` times."""
        shape = (count, self.depth)
        return Stages(
            np.broadcast_to(self.pool, shape),
            np.broadcast_to(self.extra_forward, shape),
            np.broadcast_to(self.extra_backward, shape),
            np.broadcast_to(self.send, (count, self.depth - 1)),
        )


def stages_of(family: Family, pools: Sequence[Pool], order: Sequence[int], counts: Ints) -> Stages:
    """Lay shapes out stage by stage; all have the same depth."""
    depth = int(counts[0].sum())
    ends = np.cumsum(counts, axis=1)
    position = np.arange(depth)
    run = (position[None, :, None] >= ends[:, None, :]).sum(axis=2)
    pool = np.asarray(order)[run]
    start = np.take_along_axis(ends - counts, run, axis=1)
    send = family.send[pool[:, :-1], pool[:, 1:]]
    degrees = family.degrees
    for index in order:
        inside = stages_per_node(
            pools[index], tensor=degrees.tensor, members=degrees.members, stages=1
        )
        if inside is not None and inside > 1:
            own = (pool[:, :-1] == index) & (pool[:, 1:] == index)
            stays = (position[None, :-1] - start[:, :-1] + 1) % inside != 0
            send = np.where(own & stays, family.inside[index], send)
    forward, backward = np.zeros(pool.shape), np.zeros(pool.shape)
    forward[:, :-1] += send
    backward[:, 1:] += send
    first, last = family.passes[order[0]].first, family.passes[order[-1]].last
    forward[:, 0] += first[0]
    backward[:, 0] += first[1]
    forward[:, -1] += last[0]
    backward[:, -1] += last[1]
    return Stages(pool, forward, backward, send)


def split_shapes(
    family: Family,
    stages: Stages,
    limits: Limits,
    pools: Sequence[Pool],
    layers: int,
    exactly: Sequence[int] | None = None,
) -> tuple[Ints, Floats]:
    """The split of equal layers that minimises the bound of every shape, or the one given.

    Returns:
        Layers [candidates, stages], and seconds of pipeline and gradient reduction that no split
        of the shape beats [candidates]; infinite where the layers do not fit.
    """
    m, depth = family.micro_batches, stages.depth
    each = np.array([(p.forward[-1] + p.backward[-1]) / layers for p in family.passes])
    behind = np.array([p.backward[-1] / layers for p in family.passes])
    reduce_s = np.array([tail.layers[0, -1] / layers for tail in family.tails])
    first = stages.pool[:, 0]
    # The first stage reduces last: what its backward pass does not hide lengthens the step.
    toll = np.zeros(stages.pool.shape)
    toll[:, 0] = np.maximum(reduce_s - behind, 0)[first]
    shown = np.minimum(
        reduce_s, np.array([tail.fixed[0] + tail.first[0] for tail in family.tails])
    )[first]
    weights = bottleneck_weights(depth, m)
    if family.degrees.virtual_stages > 1:
        weights = np.full(depth, float(m))
    least = _least(depth) if exactly is None else np.array(exactly)
    most = most_layers(family, stages, limits, pools)
    split, bound = split_equal_layers(
        each[stages.pool],
        stages.extra_forward + stages.extra_backward,
        np.broadcast_to(least, stages.pool.shape),
        most if exactly is None else np.minimum(most, exactly),
        layers,
        np.broadcast_to(weights, stages.pool.shape),
        toll,
    )
    return split, bound + np.where(toll[:, 0] > 0, 0, shown)


def split_plainly(
    family: Family, stages: Stages, limits: Limits, pools: Sequence[Pool], layers: int
) -> Ints:
    """The split of equal layers by the textbook form, (m - 1) max t + sum t."""
    each = np.array([(p.forward[-1] + p.backward[-1]) / layers for p in family.passes])
    split, _ = split_equal_layers(
        each[stages.pool],
        stages.extra_forward + stages.extra_backward,
        np.broadcast_to(_least(stages.depth), stages.pool.shape),
        most_layers(family, stages, limits, pools),
        layers,
        np.full(stages.pool.shape, float(family.micro_batches - 1)),
    )
    return split


def polish(
    family: Family, stages: Stages, most: Ints, starts: Sequence[Ints]
) -> tuple[Ints, float]:
    """Move single layers between the stages of one shape while the estimate falls.

    Args:
        family: degrees and their costs.
        stages: of one candidate.
        most: layers that each stage can hold.
        starts: splits to start from.

    Returns:
        The best split that was reached, and its estimate.
    """
    depth = stages.depth
    least = _least(depth)
    source, target = np.nonzero(~np.eye(depth, dtype=bool))
    step = np.zeros((len(source), depth), dtype=np.int64)
    step[np.arange(len(source)), source] = -1
    step[np.arange(len(source)), target] = 1
    first = np.unique(np.stack(starts), axis=0)
    values = estimate_steps(family, stages.repeated(len(first)), first)
    best, value = first[values.argmin()], float(values.min())
    while depth > 1:
        moved = best + step
        legal = ((moved >= least) & (moved <= most)).all(axis=1)
        if not legal.any():
            break
        values = estimate_steps(family, stages.repeated(int(legal.sum())), moved[legal])
        if values.min() >= value * (1 - 1e-12):
            break
        best, value = moved[legal][values.argmin()], float(values.min())
    return best, value


def _least(depth: int) -> Ints:
    """Only the first and the last stage may be without layers, unless it is the only one."""
    least = np.ones(depth, dtype=np.int64)
    least[0] = least[-1] = 0
    return least


def most_layers(family: Family, stages: Stages, limits: Limits, pools: Sequence[Pool]) -> Ints:
    """Layers that each stage can hold, [candidates, stages]; -1 where its ends alone do not fit."""
    depth = stages.depth
    held = np.minimum(family.micro_batches, np.arange(depth, 0, -1))
    role = np.zeros(depth, dtype=np.int64)
    role[0] += 2
    role[-1] += 1
    result = np.full(stages.pool.shape, -1, dtype=np.int64)
    for index in np.unique(stages.pool):
        table = limits.most_layers(
            family.degrees, pools[index], int(held.max()), pipelined=depth > 1
        )
        result = np.where(stages.pool == index, table[role, held - 1][None, :], result)
    return result


def split_unlike(
    family: Family, stages: Stages, limits: Limits, pools: Sequence[Pool]
) -> tuple[int, ...] | None:
    """The best split of unlike layers for one shape, by the textbook form."""
    depth, m = stages.depth, family.micro_batches
    held = np.minimum(m, np.arange(depth, 0, -1))
    cost = []
    for stage in range(depth):
        index = int(stages.pool[0, stage])
        passes = family.passes[index]
        total = passes.forward + passes.backward
        extra = stages.extra_forward[0, stage] + stages.extra_backward[0, stage]
        fits = limits.ranges(
            family.degrees,
            pools[index],
            int(held[stage]),
            first=stage == 0,
            last=stage == depth - 1,
            pipelined=depth > 1,
        )
        cost.append(np.where(fits, total[None, :] - total[:, None] + extra, np.inf))
    found = split_unlike_layers(
        np.array(cost), [float(m - 1)] * depth, [int(n) for n in _least(depth)]
    )
    return None if found is None else found.layers


def estimate_steps(family: Family, stages: Stages, layers: Ints) -> Floats:
    """Seconds of a step of every candidate with its split, [candidates].

    The pipeline's lower bound stands for its makespan: it is exact for equal stages and within a
    few stage times otherwise.
    """
    ends = np.cumsum(layers, axis=1)
    starts = ends - layers

    def over(tables: Floats) -> Floats:
        """Sum over each stage's layers, of tables [pools, layers + 1] cumulated over layers."""
        sums: Floats = tables[stages.pool, ends] - tables[stages.pool, starts]
        return sums

    ahead = over(np.array([p.forward for p in family.passes])) + stages.extra_forward
    back = over(np.array([p.backward for p in family.passes])) + stages.extra_backward
    m = family.micro_batches
    chunks = family.degrees.virtual_stages
    if chunks > 1:
        both = ahead + back
        pipeline = m * both.max(axis=1) + (both.sum(axis=1) - both.max(axis=1)) / chunks
    else:
        pipeline = lower_bound_1f1b(ahead, back, None, m)
    first, last = stages.pool[:, 0], stages.pool[:, -1]
    tail = []
    for item in range(3):
        seconds = over(np.array([t.layers[item] for t in family.tails]))
        seconds = seconds + np.array([t.fixed[item] for t in family.tails])[stages.pool]
        seconds[:, 0] += np.array([t.first[item] for t in family.tails])[first]
        seconds[:, -1] += np.array([t.last[item] for t in family.tails])[last]
        tail.append(seconds)
    reduce_s = unhidden(tail[0], back, layers)
    gather_s = unhidden(tail[1], ahead, layers)
    # Stage k ends its last backward pass before the earlier stages do theirs.
    sooner = np.cumsum(back, axis=1) - back
    reduced = (reduce_s - sooner).max(axis=1)
    steps: Floats = pipeline + np.maximum(reduced, 0) + gather_s.max(axis=1) + tail[2].max(axis=1)
    return steps
