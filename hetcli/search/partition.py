"""How many layers each pipeline stage gets: exact for a weighted bottleneck plus the total.

The time of a pipeline whose stages take t_k for a micro-batch is close to, and for the right
weights w_k bounded from below by, max w_k t_k + sum t_k: with w_k = m - 1 it is the textbook form
of m micro-batches (GPipe, arXiv 1811.06965, section 2; PipeDream-Flush, arXiv 2006.09503). The
functions minimise it over all contiguous splits within limits a stage. Whatever the bottleneck may
be, the total is least when the cheapest stages are filled first, so only the bottleneck has to be
searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Split", "even_split", "fill", "split_equal_layers", "split_unlike_layers"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Layers of each stage and the value that they reach."""

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
    toll: Floats | None = None,
) -> tuple[Ints, Floats]:
    """Split `layers` equal layers in many candidates at once.

    Args:
        seconds: of one layer on each stage, [candidates, stages].
        extra: seconds of a stage beside its layers.
        least: layers that a stage must hold.
        most: layers that a stage can hold.
        layers: of the model.
        weight: of each stage's seconds in the bottleneck.
        toll: seconds of one layer that count in the total only.

    Returns:
        Layers [candidates, stages] and max weight * t + sum t + tolls [candidates], infinite
        where the layers do not fit.
    """
    best = np.full(len(seconds), np.inf)
    result = np.zeros(seconds.shape, dtype=np.int64)
    fits = (most.sum(axis=1) >= layers) & (least.sum(axis=1) <= layers)
    rows = np.flatnonzero(fits & (least <= most).all(axis=1))
    if not rows.size:
        return result, best
    price = seconds[rows] if toll is None else seconds[rows] + toll[rows]
    seconds, extra, weight = seconds[rows], extra[rows], weight[rows]
    least, most = least[rows], most[rows]
    order = np.argsort(price, axis=1, kind="stable")
    cheapest = fill(order, least, most, layers)
    least_total = (cheapest * price + extra).sum(axis=1)
    bottleneck = _least_bottleneck(seconds, extra, least, most, layers, weight)
    value = np.full(rows.size, np.inf)
    chosen = np.zeros_like(most)
    alive = np.arange(rows.size)
    while alive.size:
        each, more, heavy = seconds[alive], extra[alive], weight[alive]
        caps = _caps(each, more, most[alive], heavy, bottleneck[alive])
        split = fill(order[alive], least[alive], caps, layers)
        total = (split * price[alive] + more).sum(axis=1)
        found = (heavy * (split * each + more)).max(axis=1) + total
        better = found < value[alive]
        value[alive[better]] = found[better]
        chosen[alive[better]] = split[better]
        # The next bottleneck worth a look gives some stage one more layer.
        following = np.where(caps < most[alive], heavy * ((caps + 1) * each + more), np.inf)
        bottleneck[alive] = following.min(axis=1)
        alive = alive[bottleneck[alive] + least_total[alive] < value[alive]]
    best[rows] = value
    result[rows] = chosen
    return result, best


def _caps(seconds: Floats, extra: Floats, most: Ints, weight: Floats, bottleneck: Floats) -> Ints:
    """Layers that each stage can take without exceeding the bottleneck."""
    # One part in 1e12 of slack: the bottleneck is itself such a product and must admit itself.
    limit = bottleneck[:, None] * (1 + 1e-12)
    room = np.where(weight > 0, limit / np.where(weight > 0, weight, 1), np.inf) - extra
    caps: Ints = np.clip(np.floor(room / seconds), 0, most).astype(np.int64)
    return caps


def fill(order: Ints, least: Ints, most: Ints, layers: int) -> Ints:
    """Take `least` everywhere, then fill in `order` up to `most` until `layers` are placed."""
    room = np.take_along_axis(np.maximum(most - least, 0), order, axis=1)
    left = layers - least.sum(axis=1, keepdims=True)
    before = np.cumsum(room, axis=1) - room
    more = np.empty_like(room)
    np.put_along_axis(more, order, np.clip(left - before, 0, room), axis=1)
    filled: Ints = least + more
    return filled


def _least_bottleneck(
    seconds: Floats, extra: Floats, least: Ints, most: Ints, layers: int, weight: Floats
) -> Floats:
    """The least bottleneck at which the layers fit, by bisection, then made exact."""
    floor = (weight * (least * seconds + extra)).max(axis=1)
    low, high = np.zeros(len(seconds)), (weight * (most * seconds + extra)).max(axis=1)
    searching = np.arange(len(seconds))
    # Halvings that leave less than rounding of the interval: 2^-48 is near the last bit of 53.
    for _ in range(48):
        middle = (low[searching] + high[searching]) / 2
        room = _caps(
            seconds[searching], extra[searching], most[searching], weight[searching], middle
        ).sum(axis=1)
        enough = room >= layers
        high[searching[enough]] = middle[enough]
        low[searching[~enough]] = middle[~enough]
        # Exactly enough room: no smaller bottleneck has it, once made exact.
        searching = searching[room != layers]
        if not searching.size:
            break
    caps = _caps(seconds, extra, most, weight, high)
    # The bottleneck is the time of a whole number of layers on some stage.
    exact = np.where(caps > 0, weight * (caps * seconds + extra), 0.0).max(axis=1)
    found: Floats = np.maximum(exact, floor)
    return found


def split_unlike_layers(
    cost: Floats, weight: Sequence[float], least: Sequence[int]
) -> Split | None:
    """Split unlike layers by dynamic programming.

    Args:
        cost: seconds of stage k with layers i to j - 1, [stages, layers + 1, layers + 1];
            infinite where it does not fit or j < i.
        weight: of each stage's seconds in the bottleneck.
        least: layers that each stage must hold.

    Returns:
        The best split, or None when nothing fits.
    """
    size = cost.shape[1]
    span = np.arange(size)[None, :] - np.arange(size)[:, None]
    cost = np.where(span[None] >= np.asarray(least)[:, None, None], cost, np.inf)
    heavy = np.where(np.isfinite(cost), cost, 0.0) * np.asarray(weight)[:, None, None]
    heavy = np.where(np.isfinite(cost), heavy, np.inf)
    cheapest = _least_total(cost, heavy, np.inf)
    if cheapest is None:
        return None
    bottlenecks = np.unique(heavy[np.isfinite(heavy)])
    low, high = 0, len(bottlenecks) - 1
    while low < high:
        middle = (low + high) // 2
        if _reachable(heavy, bottlenecks[middle]):
            high = middle
        else:
            low = middle + 1
    best: Split | None = None
    for bottleneck in bottlenecks[low:]:
        if best is not None and bottleneck + cheapest[0] >= best.value:
            break
        found = _least_total(cost, heavy, float(bottleneck))
        assert found is not None
        value = found[0] + found[1]
        if best is None or value < best.value:
            best = Split(found[2], value)
    return best


def _reachable(heavy: Floats, bottleneck: float) -> bool:
    reach = np.zeros(heavy.shape[1], dtype=bool)
    reach[0] = True
    for stage in heavy:
        reach = (reach[:, None] & (stage <= bottleneck)).any(axis=0)
    return bool(reach[-1])


def _least_total(
    cost: Floats, heavy: Floats, bottleneck: float
) -> tuple[float, float, tuple[int, ...]] | None:
    """Least total of a split within `bottleneck`: the total, its bottleneck, the layers."""
    size = cost.shape[1]
    total = np.full(size, np.inf)
    total[0] = 0.0
    choices: list[Ints] = []
    for seconds, weighted in zip(cost, heavy, strict=True):
        reached = total[:, None] + np.where(weighted <= bottleneck, seconds, np.inf)
        choice = reached.argmin(axis=0)
        total = reached[choice, np.arange(size)]
        choices.append(choice)
    if not np.isfinite(total[-1]):
        return None
    ends = [size - 1]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    ends.reverse()
    pairs = list(pairwise(ends))
    largest = max(heavy[stage][start, stop] for stage, (start, stop) in enumerate(pairs))
    return float(total[-1]), float(largest), tuple(stop - start for start, stop in pairs)
