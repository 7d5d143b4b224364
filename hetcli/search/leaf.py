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

__all__ = ["Best", "best_split", "least_bottleneck", "least_bottleneck_of", "polished"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Splits of the first stages that are kept in view; more are not weighed one by one.
WIDEST = 20_000
# Splits whose makespans are computed together.
TOGETHER = 128


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The best split found, None if none beats the threshold; `proven` if none is missed."""

    layers: Ints | None
    seconds: float
    proven: bool


def best_split(exact: Exact, threshold: float) -> Best:
    """The split with the least seconds, if that is below `threshold`."""
    splits = _within(exact, threshold)
    if splits is None:
        return Best(None, threshold, proven=False)
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
    return Best(best, threshold, proven=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """What the stages from one on need for the layers from one on, [stages + 1, layers + 1].

    `total` is the least seconds of a micro-batch through all of them, `slowest` the least that the
    slowest of them can take.
    """

    total: Floats
    slowest: Floats


def _stage_seconds(exact: Exact, stage: int, passes: Floats, legal: Bools) -> Floats:
    """Seconds of a micro-batch with layers i to j - 1, sends included; infinite where illegal."""
    send = 0.0
    if stage > 0:
        send += float(exact.send[0, stage - 1])
    if stage < exact.depth - 1:
        send += float(exact.send[0, stage])
    seconds: Floats = np.where(legal, passes.sum(axis=0) + send, np.inf)
    return seconds


def _rest(seconds: Sequence[Floats]) -> _Rest:
    size = len(seconds[0])
    total = np.full((len(seconds) + 1, size), np.inf)
    slowest = np.full((len(seconds) + 1, size), np.inf)
    total[-1, -1], slowest[-1, -1] = 0.0, -np.inf
    for stage in reversed(range(len(seconds))):
        total[stage] = (seconds[stage] + total[stage + 1]).min(axis=1)
        slowest[stage] = np.maximum(seconds[stage], slowest[stage + 1]).min(axis=1)
    return _Rest(total, slowest)


def _within(exact: Exact, threshold: float) -> Ints | None:
    """All splits whose bound is below the threshold, [splits, stages]; None if too many."""
    depth, layers, m = exact.depth, exact.layers, exact.micro_batches
    passes = [exact.stage_passes(stage) for stage in range(depth)]
    seconds = [_stage_seconds(exact, stage, *each) for stage, each in enumerate(passes)]
    rest = _rest(seconds)
    splits = np.zeros((1, 0), dtype=np.int64)
    at = np.zeros(1, dtype=np.int64)
    come, spent, reduced, gathered, updated = np.zeros((5, 1))
    for stage in range(depth):
        # The longest stage that its own work allows is the last one worth a look.
        room = (threshold - spent) / m
        table = seconds[stage]
        choices = np.arange(layers + 1)
        allowed = (table[at] < room[:, None]) & (rest.slowest[stage + 1][None, :] < np.inf)
        if stage == depth - 1:
            allowed &= choices == layers
        parent, stop = np.nonzero(allowed)
        if len(parent) > 50 * WIDEST:
            return None
        start = at[parent]
        whole = table[start, stop]
        forward, backward = passes[stage][0][:, start, stop]
        after = exact.after_stage(stage, start, stop, forward, backward)
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
        later = before + whole + m * rest.slowest[stage + 1][stop]
        bound = np.maximum(np.maximum(before + m * whole + gaps, later) + reduced, done + after[0])
        kept = (bound + gathered + updated < threshold).nonzero()[0]
        if len(kept) > WIDEST:
            return None
        splits = np.concatenate([splits[parent[kept]], (stop - start)[kept, None]], axis=1)
        at, come, spent = stop[kept], (come[parent] + forward)[kept], (before + whole)[kept]
        reduced, gathered, updated = reduced[kept], gathered[kept], updated[kept]
    return splits


def least_bottleneck(exact: Exact) -> Ints | None:
    """The split whose slowest stage is fastest; None if the layers do not fit."""
    split = least_bottleneck_of(
        [_stage_seconds(exact, stage, *exact.stage_passes(stage)) for stage in range(exact.depth)]
    )
    return split if split is not None and exact.fits(split[None])[0] else None


def least_bottleneck_of(cost: Sequence[Floats]) -> Ints | None:
    """The split of the layers whose largest cost is least; None if none is finite.

    `cost` is that of each stage with layers i to j - 1, [layers + 1, layers + 1].
    """
    slowest = _rest(cost).slowest
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
        if seconds.min() >= value * (1 - 1e-12):
            break
        best, value = promising[seconds.argmin()], float(seconds.min())
    return best, value
