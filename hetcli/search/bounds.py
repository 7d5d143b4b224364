"""Lower bounds on step time that are cheap enough to look at every candidate.

All rest on two facts about 1F1B with m micro-batches over p stages, where stage k takes t_k for a
micro-batch, its own sends included. Stage k works m t_k. And between the first forward of stage 0
and the end of its last backward lie at least one pass of a micro-batch through all stages and, at
stage k, the m - min(m, p - k) micro-batches that are not in flight there at once: the step takes at
least sum t_j + (m - min(m, p - k)) t_k. With model chunks only the first fact holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetcli.search.costing import Family

__all__ = ["bottleneck_weights", "family_bound", "shape_bounds", "unit_seconds"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def bottleneck_weights(stages: int, micro_batches: int) -> Floats:
    """m - min(m, p - k) for every stage k."""
    weights: Floats = micro_batches - np.minimum(
        micro_batches, np.arange(stages, 0, -1, dtype=np.float64)
    )
    return weights


def unit_seconds(layers: Floats, reference: Floats) -> float:
    """Least seconds of one unit of work, the reference layers' mean being one unit.

    With unlike layers a pool does some of them relatively faster; the least ratio never
    overestimates. `layers` and `reference` are cumulated seconds of all layers.
    """
    each, other = np.diff(layers), np.diff(reference)
    return float((each / other).min() * other.mean())


def family_bound(
    unit_s: Floats, most_stages: Ints, layers: int, micro_batches: int, stages: int | None
) -> float:
    """Seconds that no pipeline of these degrees beats, whatever its stages, order and split.

    Args:
        unit_s: seconds of one unit layer on each pool.
        most_stages: stages that each pool can hold.
        layers: unit layers in all.
        micro_batches: of a step.
        stages: their number where it is fixed.
    """
    order = np.argsort(unit_s)
    ready = np.repeat(unit_s[order], np.minimum(most_stages[order], layers + 2))
    deepest = min(len(ready), layers + 2, micro_batches)
    if not deepest or (stages is not None and stages > deepest):
        return float("inf")
    rates = 1 / ready[:deepest]
    total = layers * ready[0]
    counts = range(1, deepest + 1) if stages is None else [stages]
    best = float("inf")
    for count in counts:
        # The fastest stage is paired with the least weight: no assignment does better.
        weights = np.maximum(np.arange(micro_batches - count, micro_batches), 1e-9)
        working = micro_batches * layers / rates[:count].sum()
        passing = total + layers / (rates[:count] / weights).sum()
        best = min(best, max(working, passing))
    return best


def shape_bounds(
    family: Family, unit_s: Floats, layers: int, order: Sequence[int], counts: Ints
) -> tuple[Floats, Floats]:
    """Seconds that no split of the layers beats, for many counts of stages a pool.

    Args:
        family: degrees and their costs.
        unit_s: seconds of one unit layer on each pool.
        layers: unit layers in all.
        order: pools along the pipeline.
        counts: stages of each pool in that order, all at least 1, [candidates, pools].

    Returns:
        Seconds of the pipeline with its synchronisation, and what follows for all, [candidates].
    """
    pools = np.asarray(order)
    m = family.micro_batches
    rate = 1 / unit_s[pools]
    stages = counts.sum(axis=1)
    ends = np.cumsum(counts, axis=1)
    # Sends between stages of a pool, at their fastest, and those from pool to pool.
    within = np.minimum(family.inside[pools], family.send[pools, pools])
    across = family.send[pools[:-1], pools[1:]]
    first, last = family.passes[order[0]].first, family.passes[order[-1]].last
    extra = 2 * ((counts - 1) @ within + across.sum()) + sum(first) + sum(last)
    extra_layers = (
        (counts - 1) @ (2 * within * rate)
        + (across * (rate[:-1] + rate[1:])).sum()
        + sum(first) * rate[0]
        + sum(last) * rate[-1]
    )
    total = layers * unit_s[pools].min() + extra
    # Sum over the stages k of a pool of 1 / (m - p + k): differences of harmonic numbers.
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, m + 1))])
    base = (m - stages)[:, None]
    upper = harmonic[base + ends - 1]
    lower = harmonic[np.maximum(base + ends - counts - 1, 0)]
    weighted = (upper - lower) @ rate
    # With m = p the first stage has weight 0: it takes any number of layers.
    weighted = np.where(m == stages, np.inf, weighted)
    passing = total + (layers + extra_layers) / weighted
    slope = np.array([family.tails[pool].layers[:, -1] / layers for pool in order])
    backward = np.array([family.passes[pool].backward[-1] / layers for pool in order])
    forward = np.array([family.passes[pool].forward[-1] / layers for pool in order])
    after = np.maximum(slope[:, 0] - backward, 0.0)
    heavy = m * unit_s[pools] + after
    hidden = first[1] / heavy[0] + last[1] / heavy[-1]
    spread = (m * unit_s[pools] / heavy).min()
    working = (layers + extra_layers * spread - hidden) / (counts / heavy).sum(axis=1)
    if family.degrees.virtual_stages == 1:
        working = np.maximum(passing, working)
    return working, _after(slope, forward, first, last, layers, counts)


def _after(
    slope: Floats,
    forward: Floats,
    first: tuple[float, float],
    last: tuple[float, float],
    layers: int,
    counts: Ints,
) -> Floats:
    """Update and gathering that follow: the largest stage is at least the average one."""
    update = layers / (counts / np.maximum(slope[:, 2], 1e-30)).sum(axis=1)
    over = slope[:, 1] - forward
    gathering = np.full(len(counts), slope[:, 1].min())
    if (over > 0).all():
        shown = (layers - first[0] / over[0] - last[0] / over[-1]) / (counts / over).sum(axis=1)
        gathering = np.maximum(gathering, shown)
    after: Floats = update + gathering
    return after
