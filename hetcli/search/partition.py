"""How many layers each pipeline stage gets: exact for a weighted sum of bottleneck and total.

The time of 1F1B with stage times t_k and m micro-batches is (m - 1) max t_k + sum t_k where the
slowest stage is not starved (GPipe, arXiv 1811.06965, section 2; PipeDream-Flush, arXiv
2006.09503). Both functions minimise weight * max t_k + sum t_k over all contiguous splits that
respect a limit a stage. Whatever the limit of the bottleneck, the total is least when the cheapest
stages are filled first, so only the bottleneck has to be searched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Split", "even_split", "split_equal_layers", "split_unlike_layers"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Layers of each stage and the weighted sum that they reach."""

    layers: tuple[int, ...]
    value: float


def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """As even as possible; the middle stages take what does not divide (both ends do more)."""
    base, more = divmod(layers, stages)
    result = [base] * stages
    first = (stages - more) // 2
    for stage in range(first, first + more):
        result[stage] += 1
    return tuple(result)


def split_equal_layers(
    seconds: Floats,
    extra: Floats,
    least: Ints,
    most: Ints,
    layers: int,
    weight: Floats,
) -> tuple[Ints, Floats]:
    """Split `layers` equal layers in many candidates at once.

    Args:
        seconds: of one layer on each stage, [candidates, stages]; padding stages have `most` 0.
        extra: seconds of a stage beside its layers.
        least: layers that a stage must hold.
        most: layers that a stage can hold.
        layers: of the model.
        weight: of the bottleneck, [candidates].

    Returns:
        Layers [candidates, stages] and weight * max + sum [candidates], infinite where the
        layers do not fit.
    """
    count, stages = seconds.shape
    best = np.full(count, np.inf)
    result = np.zeros((count, stages), dtype=np.int64)
    fits = (
        (most.sum(axis=1) >= layers) & (least.sum(axis=1) <= layers) & (least <= most).all(axis=1)
    )
    rows = np.flatnonzero(fits)
    if not rows.size:
        return result, best
    seconds, extra, least, most = seconds[rows], extra[rows], least[rows], most[rows]
    weight = weight[rows]
    order = np.argsort(seconds, axis=1, kind="stable")
    floor = np.take_along_axis(least, order, axis=1)
    sorted_seconds = np.take_along_axis(seconds, order, axis=1)
    used = (most > 0) | (extra > 0)
    bottleneck = _least_bottleneck(seconds, extra, least, most, layers)
    cheapest = _fill(floor, np.take_along_axis(most, order, axis=1), layers)
    least_total = (cheapest * sorted_seconds).sum(axis=1) + extra.sum(axis=1)
    value = np.full(rows.size, np.inf)
    chosen = np.zeros_like(most)
    alive = np.arange(rows.size)
    while alive.size:
        caps = _caps(seconds[alive], extra[alive], most[alive], bottleneck[alive])
        filled = _fill(floor[alive], np.take_along_axis(caps, order[alive], axis=1), layers)
        split = np.empty_like(filled)
        np.put_along_axis(split, order[alive], filled, axis=1)
        times = np.where(used[alive], split * seconds[alive] + extra[alive], 0.0)
        found = weight[alive] * times.max(axis=1) + times.sum(axis=1)
        better = found < value[alive]
        value[alive[better]] = found[better]
        chosen[alive[better]] = split[better]
        # The next bottleneck worth a look gives some stage one more layer.
        following = np.where(caps < most[alive], (caps + 1) * seconds[alive] + extra[alive], np.inf)
        bottleneck[alive] = following.min(axis=1)
        hope = weight[alive] * bottleneck[alive] + least_total[alive]
        alive = alive[hope < value[alive]]
    best[rows] = value
    result[rows] = chosen
    return result, best


def _caps(seconds: Floats, extra: Floats, most: Ints, bottleneck: Floats) -> Ints:
    """Layers that each stage can take without exceeding the bottleneck."""
    # One part in 1e12 of slack: the bottleneck is itself such a product and must admit itself.
    room = (bottleneck[:, None] * (1 + 1e-12) - extra) / seconds
    caps: Ints = np.clip(np.floor(room), 0, most).astype(np.int64)
    return caps


def _fill(least: Ints, most: Ints, layers: int) -> Ints:
    """Take `least` everywhere, then fill from the left up to `most` until `layers` are placed."""
    room = np.maximum(most - least, 0)
    left = layers - least.sum(axis=1, keepdims=True)
    before = np.cumsum(room, axis=1) - room
    filled: Ints = least + np.clip(left - before, 0, room)
    return filled


def _least_bottleneck(
    seconds: Floats, extra: Floats, least: Ints, most: Ints, layers: int
) -> Floats:
    """The least bottleneck at which the layers fit, by bisection, then made exact."""
    floor = (least * seconds + extra).max(axis=1)
    low, high = np.zeros(len(seconds)), (most * seconds + extra).max(axis=1)
    for _ in range(48):
        middle = (low + high) / 2
        enough = _caps(seconds, extra, most, middle).sum(axis=1) >= layers
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    caps = _caps(seconds, extra, most, high)
    # The bottleneck is the time of a whole number of layers on some stage.
    exact = np.where(caps > 0, caps * seconds + extra, 0.0).max(axis=1)
    least_one: Floats = np.maximum(exact, floor)
    return least_one


def split_unlike_layers(
    cost: Floats, weight: float, *, least: tuple[int, ...] | None = None
) -> Split | None:
    """Split unlike layers by dynamic programming.

    Args:
        cost: seconds of stage k with layers i to j - 1, [stages, layers + 1, layers + 1];
            infinite where it does not fit or j < i.
        weight: of the bottleneck.
        least: layers that each stage must hold (default none).

    Returns:
        The best split, or None when nothing fits.
    """
    stages, size, _ = cost.shape
    allowed = cost.copy()
    span = np.arange(size)[None, :] - np.arange(size)[:, None]
    for stage in range(stages):
        needed = 0 if least is None else least[stage]
        allowed[stage][span < needed] = np.inf
    bottlenecks = np.unique(allowed[np.isfinite(allowed)])
    if not bottlenecks.size:
        return None
    total_only = _least_total(allowed, np.inf)
    if total_only is None:
        return None
    low, high = 0, len(bottlenecks) - 1
    while low < high:
        middle = (low + high) // 2
        if _reachable(allowed, bottlenecks[middle]):
            high = middle
        else:
            low = middle + 1
    best: Split | None = None
    for bottleneck in bottlenecks[low:]:
        if best is not None and weight * bottleneck + total_only[0] >= best.value:
            break
        found = _least_total(allowed, float(bottleneck))
        assert found is not None
        value = weight * found[1] + found[0]
        if best is None or value < best.value:
            best = Split(found[2], value)
    return best


def _reachable(cost: Floats, bottleneck: float) -> bool:
    reach = np.zeros(cost.shape[1], dtype=bool)
    reach[0] = True
    for stage in cost:
        reach = (reach[:, None] & (stage <= bottleneck)).any(axis=0)
    return bool(reach[-1])


def _least_total(cost: Floats, bottleneck: float) -> tuple[float, float, tuple[int, ...]] | None:
    """Least total of a split whose stages stay within `bottleneck`: total, bottleneck, layers."""
    size = cost.shape[1]
    total = np.full(size, np.inf)
    total[0] = 0.0
    choices: list[Ints] = []
    for stage in cost:
        reached = total[:, None] + np.where(stage <= bottleneck, stage, np.inf)
        choice = reached.argmin(axis=0)
        total = reached[choice, np.arange(size)]
        choices.append(choice)
    if not np.isfinite(total[-1]):
        return None
    ends = [size - 1]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    ends.reverse()
    largest = max(cost[k][ends[k], ends[k + 1]] for k in range(len(cost)))
    layers = tuple(ends[k + 1] - ends[k] for k in range(len(cost)))
    return float(total[-1]), float(largest), layers
