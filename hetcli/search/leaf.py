"""The best split of the layers of one shape: every split that may beat a threshold, weighed.

Splits are made stage by stage, all at once: after each stage those are dropped whose bound, with
the least that the rest of the pipeline can take, reaches the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.search.exact import Exact
from hetcli.search.partition import even_split
from hetcli.search.passing import stage_weights

__all__ = ["Best", "best_split", "evened", "least_bottleneck", "least_bottleneck_of", "polished"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Splits of the first stages that are kept in view; more are not weighed one by one.
WIDEST = 20_000
# Splits whose makespans are computed together.
TOGETHER = 128
# Thresholds that are tried below one that leaves too many splits.
HALVINGS = 6
# What rounding may do to a step time, as a share of it.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The best split found, None if none beats the threshold; no split of all beats `bound`."""

    layers: Ints | None
    seconds: float
    bound: float


def best_split(exact: Exact, threshold: float, bound: float) -> Best:
    """The split with the least seconds, if that is below `threshold`.

    Where too many splits may be, fewer are looked at: all that may beat something between `bound`,
    which none beats, and the threshold.
    """
    stages = _Stages.of(exact)
    rest = _Rest.of(exact, stages)
    low, high, top = bound, threshold, threshold
    for _ in range(1 + HALVINGS):
        splits = _within(exact, stages, rest, top)
        if splits is None:
            high = top
        else:
            found = _best_of(exact, splits, top)
            if found.layers is not None or top >= threshold:
                return found
            low = top
        top = (low + high) / 2
    return Best(None, threshold, low)


def _best_of(exact: Exact, splits: Ints, threshold: float) -> Best:
    """The best of the splits, if it is below the threshold; its seconds are the bound then."""
    splits = splits[exact.fits(splits)]
    bounds = exact.bounds(splits) if len(splits) else np.zeros(0)
    splits = splits[np.argsort(bounds, kind="stable")]
    bounds = np.sort(bounds, kind="stable")
    best: Ints | None = None
    for first in range(0, len(splits), TOGETHER):
        if bounds[first] >= threshold:
            break
        part = splits[first : first + TOGETHER]
        seconds = exact.seconds(part)
        at = int(seconds.argmin())
        if seconds[at] < threshold:
            best, threshold = part[at], float(seconds[at])
    return Best(best, threshold, threshold)


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """What stages need with layers i to j - 1, [layers + 1, layers + 1] for every stage.

    `passes` are forward and backward seconds of a micro-batch, `seconds` both with the sends,
    infinite where illegal; `after` the reduction, gathering and update that stick out. `weights`
    and `behind` are those of `stage_weights`.
    """

    passes: Sequence[Floats]
    seconds: Sequence[Floats]
    after: Sequence[Floats]
    weights: Floats
    behind: Floats

    @classmethod
    def of(cls, exact: Exact) -> _Stages:
        """Equal stages share their tables."""
        known: dict[object, tuple[Floats, Floats, Floats]] = {}
        found: list[tuple[Floats, Floats, Floats]] = []
        start, stop = np.ogrid[: exact.layers + 1, : exact.layers + 1]
        for stage in range(exact.depth):
            key = exact.stage_key(stage)
            if key not in known:
                passes, legal = exact.stage_passes(stage)
                send = exact.send[0, max(stage - 1, 0) : stage + 1].sum()
                each = np.where(legal, passes.sum(axis=0) + send, np.inf)
                forward, backward = np.where(legal, passes, 0.0)
                tail = np.array(
                    exact.after_stage(stage, start, np.maximum(start, stop), forward, backward)
                )
                known[key] = passes, each, np.where(legal, tail, np.inf)
            found.append(known[key])
        weights, behind = stage_weights(exact.depth, exact.micro_batches)
        return cls(
            [passes for passes, _, _ in found],
            [seconds for _, seconds, _ in found],
            [tail for _, _, tail in found],
            weights,
            behind,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """What the stages from one on need for the layers from one on, [stages + 1, layers + 1].

    `total` is the least seconds of a micro-batch through all of them, `slowest` the least that the
    slowest of them can take. From when the first micro-batch comes to them, `step` is the least
    until the last one has gone, and `reduced` until the last of them has reduced its gradients.
    `gathered` and `updated` are the least of the largest gathering and update.
    """

    total: Floats
    slowest: Floats
    step: Floats
    reduced: Floats
    gathered: Floats
    updated: Floats

    @classmethod
    def of(cls, exact: Exact, stages: _Stages) -> _Rest:
        """From the last stage to the first one."""
        depth, size = len(stages.seconds), len(stages.seconds[0])
        found = np.full((6, depth + 1, size), np.inf)
        total, slowest, step, reduced, gathered, updated = found
        found[:, -1, -1] = 0.0, -np.inf, 0.0, 0.0, 0.0, 0.0
        for stage in reversed(range(depth)):
            seconds, after = stages.seconds[stage], stages.after[stage]
            further = total[stage + 1]
            own = (stages.weights[stage] + 1) * seconds + (1 + stages.behind[stage]) * further
            ahead = stages.passes[stage][0] + (exact.send[0, stage] if stage < depth - 1 else 0.0)
            done = own - _send_back(exact, stage) + after[0]
            for table, each, rest in (
                (total, seconds, seconds + further),
                (slowest, seconds, slowest[stage + 1]),
                (step, own, seconds + step[stage + 1]),
                (reduced, done, ahead + reduced[stage + 1]),
                (gathered, after[1], gathered[stage + 1]),
                (updated, after[2], updated[stage + 1]),
            ):
                table[stage] = np.maximum(each, rest).min(axis=1)
        return cls(*found)


def _within(exact: Exact, stages: _Stages, rest: _Rest, threshold: float) -> Ints | None:
    """All splits whose bound is below the threshold, [splits, stages]; None if too many."""
    depth, layers, m = exact.depth, exact.layers, exact.micro_batches
    splits = np.zeros((1, 0), dtype=np.int64)
    at = np.zeros(1, dtype=np.int64)
    come, spent, passing, reduced, gathered, updated = np.zeros((6, 1))
    for stage in range(depth):
        # The longest stage that its own work allows is the last one worth a look.
        room = (threshold - spent) / m
        table = stages.seconds[stage]
        choices = np.arange(layers + 1)
        allowed = (table[at] < room[:, None]) & (rest.slowest[stage + 1][None, :] < np.inf)
        if stage == depth - 1:
            allowed &= choices == layers
        parent, stop = np.nonzero(allowed)
        if len(parent) > 50 * WIDEST:
            return None
        start = at[parent]
        whole = table[start, stop]
        forward, backward = stages.passes[stage][:, start, stop]
        after = stages.after[stage][:, start, stop]
        if stage < depth - 1:
            forward = forward + exact.send[0, stage]
        if stage > 0:
            backward = backward + exact.send[0, stage - 1]
        before = spent[parent]
        further = rest.total[stage + 1][stop]
        warm_up = depth - 1 - stage
        ahead = np.maximum(further - min(warm_up, m - 1) * forward, 0)
        behind = np.maximum(further - min(warm_up, m - 1) * backward, 0)
        gaps = ahead + behind if m - 1 > warm_up else np.maximum(ahead, behind)
        # The first stage has the last backward pass: its reduction follows them all.
        reduced = after[0] if stage == 0 else reduced[parent]
        gathered = np.maximum(gathered[parent], after[1])
        updated = np.maximum(updated[parent], after[2])
        done = come[parent] + m * whole + gaps - _send_back(exact, stage)
        later = np.maximum(m * rest.slowest[stage + 1][stop], rest.step[stage + 1][stop])
        # What stages so far wait for the round trip through those after them, as far as known.
        passing = passing[parent] + 2 * whole
        if stages.behind[stage]:
            passing = np.maximum(passing, before + (stages.weights[stage] + 1) * whole)
        pipeline = np.maximum.reduce(
            [before + m * whole + gaps, before + whole + later, passing + 2 * further]
        )
        bound = np.maximum(pipeline + reduced, done + after[0])
        bound = np.maximum(bound, come[parent] + forward + rest.reduced[stage + 1][stop])
        bound += np.maximum(gathered, rest.gathered[stage + 1][stop])
        bound += np.maximum(updated, rest.updated[stage + 1][stop])
        kept = (bound < threshold).nonzero()[0]
        if len(kept) > WIDEST:
            return None
        splits = np.concatenate([splits[parent[kept]], (stop - start)[kept, None]], axis=1)
        at, come, spent = stop[kept], (come[parent] + forward)[kept], (before + whole)[kept]
        passing = passing[kept]
        reduced, gathered, updated = reduced[kept], gathered[kept], updated[kept]
    return splits


def least_bottleneck(exact: Exact) -> Ints | None:
    """The split whose slowest stage is fastest; None if the layers do not fit."""
    split = least_bottleneck_of(_Stages.of(exact).seconds)
    return split if split is not None and exact.fits(split[None])[0] else None


def least_bottleneck_of(cost: Sequence[Floats]) -> Ints | None:
    """The split of the layers whose largest cost is least; None if none is finite.

    `cost` is that of each stage with layers i to j - 1, [layers + 1, layers + 1].
    """
    slowest = np.full((len(cost) + 1, len(cost[0])), np.inf)
    slowest[-1, -1] = -np.inf
    for stage in reversed(range(len(cost))):
        slowest[stage] = np.maximum(cost[stage], slowest[stage + 1]).min(axis=1)
    if not np.isfinite(slowest[0, 0]):
        return None
    split, at = [], 0
    for stage, table in enumerate(cost):
        stop = int(np.maximum(table[at], slowest[stage + 1]).argmin())
        split.append(stop - at)
        at = stop
    return np.array(split)


def _send_back(exact: Exact, stage: int) -> float:
    """Seconds of the last gradient's message, which nothing waits for at the end."""
    return float(exact.send[0, stage - 1]) if stage else 0.0


def polished(exact: Exact, split: Ints) -> tuple[Ints, float]:
    """A split from which no move of one layer from a stage to another one is better.

    Moves are ranked by their bounds, and the best few are weighed.
    """
    depth = exact.depth
    best, value = split, float(exact.seconds(split[None])[0])
    source, target = np.nonzero(~np.eye(depth, dtype=bool))
    step = np.zeros((len(source), depth), dtype=np.int64)
    step[np.arange(len(source)), source] = -1
    step[np.arange(len(source)), target] = 1
    while depth > 1:
        moved = best + step
        moved = moved[exact.fits(moved)]
        if not len(moved):
            break
        bounds = exact.bounds(moved)
        promising = moved[np.argsort(bounds, kind="stable")[:16]]
        promising = promising[np.sort(bounds, kind="stable")[:16] < value]
        if not len(promising):
            break
        seconds = exact.seconds(promising)
        if seconds.min() >= value * (1 - ROUNDING):
            break
        best, value = promising[seconds.argmin()], float(seconds.min())
    return best, value


def evened(exact: Exact, split: Ints, counts: Ints, seconds: float) -> Ints:
    """The split with the layers of each run of stages, [runs], shared evenly if that costs nothing.

    What no stage waits for may lie anywhere; nobody expects it on one of many equal stages.
    """
    ends = np.cumsum(counts)
    parts = [
        even_split(int(split[end - count : end].sum()), int(count))
        for end, count in zip(ends, counts, strict=True)
    ]
    even = np.concatenate(parts)
    same = exact.fits(even[None])[0] and exact.seconds(even[None])[0] <= seconds * (1 + ROUNDING)
    return even if same else split
