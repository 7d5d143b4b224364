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
from hetcli.search.ranges import Ranges, Rest, stops

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
    ranges = Ranges.of(exact, _most_layers(exact, threshold))
    rest = Rest.of(exact, ranges)
    low, high, top = bound, threshold, threshold
    for _ in range(1 + HALVINGS):
        splits = _within(exact, ranges, rest, top)
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


def _most_layers(exact: Exact, threshold: float) -> int:
    """Layers that no stage exceeds in a step of so many seconds."""
    each = np.diff(exact.passes[:, :, 0].sum(axis=0), axis=-1)
    # Choices that a stage does not have cost nothing.
    least = np.where(each > 0, each, np.inf).min()
    return int(min(exact.layers, threshold / (exact.micro_batches * least)))


def _within(exact: Exact, ranges: Ranges, rest: Rest, threshold: float) -> Ints | None:
    """All splits whose bound is below the threshold, [splits, stages]; None if too many."""
    depth, layers, m = exact.depth, exact.layers, exact.micro_batches
    weights, behind = exact.weights
    plain = exact.virtual_stages == 1
    short = exact.warm_up[1]
    sending = 0.0 if plain else exact.path_sends
    stops_of = stops(layers, ranges.seconds.shape[2] - 1)
    splits = np.zeros((1, 0), dtype=np.int64)
    at = np.zeros(1, dtype=np.int64)
    come, spent, worked, reduced, gathered, updated = np.zeros((6, 1))
    passing = np.full(1, -np.inf)
    for stage in range(depth):
        # The longest stage that its own work allows is the last one worth a look.
        room = (threshold - spent) / m
        table = ranges.seconds[stage]
        holds = rest.slowest[stage + 1] < np.inf
        parent, number = np.nonzero((table[at] < room[:, None]) & holds[stops_of[at]])
        if len(parent) > 50 * WIDEST:
            return None
        start = at[parent]
        stop = start + number
        whole = table[start, number]
        forward, backward = ranges.passes[:, stage, start, number]
        after = ranges.after[:, stage, start, number]
        before = spent[parent]
        further = rest.total[stage + 1][stop]
        warm_up = depth - 1 - stage
        ahead = np.maximum(further - min(warm_up, m - 1) * forward, 0)
        back = np.maximum(further - min(warm_up, m - 1) * backward, 0)
        gaps = ahead + back if m - 1 > warm_up else np.maximum(ahead, back)
        if not plain:
            gaps = np.zeros(len(parent))
        done = come[parent] + m * whole + gaps - exact.send_back(stage)
        later = np.maximum(m * rest.slowest[stage + 1][stop], rest.step[stage + 1][stop])
        # What stages so far wait for the round trip through those after them, as far as known.
        again = whole if plain else ranges.again[stage, start, number]
        passing = passing[parent] + whole + again
        if plain and behind[stage] > 1:
            passing = np.maximum(passing, before + weights[stage] * whole)
        elif not plain and not short[stage]:
            filled = ranges.filled[stage, start, number]
            passing = np.maximum(passing, worked[parent] + (1 + m) * whole - filled)
        through = ranges.through[:, stage, start, number]
        pipeline = np.maximum.reduce(
            [
                before + m * whole + gaps,
                before + through.sum(axis=0) + later,
                passing + rest.twice[stage + 1][stop] + sending,
            ]
        )
        # The first stage has the last backward pass: its reduction follows them all.
        reduced = after[0] if stage == 0 else reduced[parent]
        gathered = np.maximum(gathered[parent], after[1])
        updated = np.maximum(updated[parent], after[2])
        come = come[parent] + through[0]
        bound = np.maximum.reduce(
            [pipeline + reduced, done + after[0], come + rest.reduced[stage + 1][stop]]
        )
        bound += np.maximum(gathered, rest.gathered[stage + 1][stop])
        bound += np.maximum(updated, rest.updated[stage + 1][stop])
        kept = (bound < threshold).nonzero()[0]
        if len(kept) > WIDEST:
            return None
        splits = np.concatenate([splits[parent[kept]], number[kept, None]], axis=1)
        at, come, passing = stop[kept], come[kept], passing[kept]
        spent = before[kept] + through.sum(axis=0)[kept]
        worked = worked[parent[kept]] + whole[kept]
        reduced, gathered, updated = reduced[kept], gathered[kept], updated[kept]
    return splits


def least_bottleneck(exact: Exact) -> Ints | None:
    """The split whose slowest stage is fastest; None if the layers do not fit."""
    split = least_bottleneck_of(list(Ranges.of(exact, exact.layers).seconds))
    return split if split is not None and exact.fits(split[None])[0] else None


def least_bottleneck_of(cost: Sequence[Floats]) -> Ints | None:
    """The split of the layers whose largest cost is least; None if none is finite.

    `cost` is that of each stage with n layers from layer i on, [layers + 1, layers + 1].
    """
    size = len(cost[0])
    stop = stops(size - 1, size - 1)
    slowest = np.full((len(cost) + 1, size), np.inf)
    slowest[-1, -1] = -np.inf
    for stage in reversed(range(len(cost))):
        slowest[stage] = np.maximum(cost[stage], slowest[stage + 1][stop]).min(axis=1)
    if not np.isfinite(slowest[0, 0]):
        return None
    split, at = [], 0
    for stage, table in enumerate(cost):
        split.append(int(np.maximum(table[at], slowest[stage + 1][stop[at]]).argmin()))
        at += split[-1]
    return np.array(split)


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
    runs = np.split(split, np.cumsum(counts)[:-1])
    shared = [even_split(int(run.sum()), len(run)) for run in runs]
    # What does not divide may lie in the middle of a run, or on its first or last stages.
    even = np.array(
        [
            np.concatenate(shared),
            np.concatenate([sorted(run, reverse=True) for run in shared]),
            np.concatenate([sorted(run) for run in shared]),
        ]
    )
    even = even[exact.fits(even)]
    if len(even):
        even = even[exact.seconds(even) <= seconds * (1 + ROUNDING)]
    return even[0] if len(even) else split
