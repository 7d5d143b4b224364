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

__all__ = ["Stages", "estimate_steps", "split_shapes", "split_unlike", "stages_of"]

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
    family: Family, stages: Stages, limits: Limits, pools: Sequence[Pool], layers: int
) -> tuple[Ints, Floats]:
    """The best split of equal layers for every shape, and a bound on any split of it.

    Returns:
        Layers [candidates, stages], and seconds of the pipeline that no split of the shape
        beats [candidates]; infinite where the layers do not fit.
    """
    m, depth = family.micro_batches, stages.depth
    each = np.array([(p.forward[-1] + p.backward[-1]) / layers for p in family.passes])
    seconds = each[stages.pool]
    extra = stages.extra_forward + stages.extra_backward
    most = most_layers(family, stages, limits, pools)
    least = _least(depth)
    shape = stages.pool.shape
    floor = np.broadcast_to(least, shape)
    passing = np.broadcast_to(bottleneck_weights(depth, m), shape)
    one, bound = split_equal_layers(seconds, extra, floor, most, layers, passing)
    fits = np.isfinite(bound)
    if not fits.any():
        return one, bound
    # An early bottleneck is weighed down by less than m - 1; the plain weights may still do better.
    other, _ = split_equal_layers(seconds, extra, floor, most, layers, np.full(shape, float(m - 1)))
    ahead = estimate_steps(family, stages, one)
    behind = estimate_steps(family, stages, other)
    best = np.where((ahead <= behind)[:, None], one, other)
    return best, bound


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
    family: Family, stages: Stages, row: int, limits: Limits, pools: Sequence[Pool]
) -> tuple[int, ...] | None:
    """The best split of unlike layers for one shape."""
    depth, m = stages.depth, family.micro_batches
    held = np.minimum(m, np.arange(depth, 0, -1))
    cost = []
    for stage in range(depth):
        index = int(stages.pool[row, stage])
        passes = family.passes[index]
        total = passes.forward + passes.backward
        extra = stages.extra_forward[row, stage] + stages.extra_backward[row, stage]
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
