"""Mixes: how many stages of each kind a pipeline has. Their order comes later.

A cluster with many pools has more mixes than can be looked at, so those that cannot reach a given
step time are never made: so many stages of a kind hold only so many layers then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.search.pools import Orders

__all__ = ["Mixes", "mixes", "ordered"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Mixes that are made at once. Where there are more, only those are made with one kind of stage on
# each pool, and then only those that use pools whole or not at all, but for one.
MOST = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class Mixes:
    """Stages of each row, [mixes, rows]; `complete` unless there are too many to make them all."""

    counts: Ints
    complete: bool


def mixes(
    pool: Ints, most: Ints, room: Ints, layers: int, deepest: int, apart: Bools | None = None
) -> Mixes:
    """All mixes of at most `deepest` stages whose stages can hold the layers.

    Args:
        pool: of each row; rows of one pool follow each other.
        most: stages that the pool of each row holds.
        room: layers that 0, 1, .. stages of each row hold at most, [rows, stages + 1].
        layers: of the model.
        deepest: most stages of a pipeline.
        apart: pools that may not be in one pipeline, [pools, pools].
    """
    for single, whole in ((False, False), (True, False), (True, True)):
        found = _grown(pool, most, room, layers, deepest, apart, single=single, whole=whole)
        if found is not None:
            return Mixes(found, complete=not single)
    return Mixes(np.zeros((0, len(pool)), dtype=np.int64), complete=False)


def _grown(
    pool: Ints,
    most: Ints,
    room: Ints,
    layers: int,
    deepest: int,
    apart: Bools | None,
    *,
    single: bool,
    whole: bool,
) -> Ints | None:
    """Row by row, all numbers of stages; None when there are too many.

    With `single`, all stages of a pool are of one row; with `whole`, all pools but one are used
    whole or not at all.
    """
    rows = np.zeros((1, 0), dtype=np.int64)
    stages = np.zeros(1, dtype=np.int64)
    held = np.zeros(1, dtype=np.int64)
    used = np.zeros(1, dtype=np.int64)
    parts = np.zeros(1, dtype=np.int64)
    for index, table in enumerate(room):
        begins = index == 0 or pool[index] != pool[index - 1]
        ends = index + 1 == len(pool) or pool[index + 1] != pool[index]
        if begins:
            used = np.zeros_like(used)
        choices = np.minimum(most[index] - used, deepest - stages) + 1
        if not table[-1]:
            # Without room for a layer, only as one or both of the ends.
            choices = np.minimum(choices, 3)
        if single:
            choices = np.where(used > 0, 1, choices)
        if apart is not None:
            taken = [j for j in range(index) if apart[pool[j], pool[index]]]
            if taken:
                choices = np.where(rows[:, taken].any(axis=1), 1, choices)
        if int(choices.sum()) > 4 * MOST:
            return None
        parent = np.repeat(np.arange(len(rows)), choices)
        number = np.arange(len(parent)) - np.repeat(np.cumsum(choices) - choices, choices)
        stages, held = stages[parent] + number, held[parent] + table[number]
        used, parts = used[parent] + number, parts[parent]
        if whole and ends:
            parts = parts + ((used > 0) & (used < most[index]))
        rows = np.concatenate([rows[parent], number[:, None]], axis=1)
        kept = held + _further(pool, most, room, index, used, deepest - stages) >= layers
        if whole:
            kept &= parts <= 1
        rows, stages, held = rows[kept], stages[kept], held[kept]
        used, parts = used[kept], parts[kept]
        if len(rows) > MOST:
            return None
    return rows[stages > 0]


def _further(pool: Ints, most: Ints, room: Ints, index: int, used: Ints, left: Ints) -> Ints:
    """Layers that the rows after `index` can hold at most, on `left` stages."""
    found = np.zeros_like(used)
    free = left.copy()
    best: dict[int, tuple[int, int]] = {}
    for row in range(index + 1, len(pool)):
        cap = max(best.get(int(pool[row]), (0, 0))[0], int(room[row, :2].max()))
        best[int(pool[row])] = (cap, int(most[row]))
    for at, (cap, stages) in sorted(best.items(), key=lambda item: -item[1][0]):
        have = stages - used if at == pool[index] else np.full_like(used, stages)
        number = np.clip(have, 0, free)
        found = found + number * cap
        free = free - number
    return found


def ordered(
    counts: Ints, pool: Ints, orders: Callable[[tuple[int, ...]], Orders], most: int
) -> Iterator[tuple[Ints, Ints, bool]]:
    """The orders of mixes along the pipeline, a few mixes at a time.

    Args:
        counts: stages of each row, [mixes, rows].
        pool: of each row.
        orders: those of some pools.
        most: shapes that are made at a time, more or less.

    Yields:
        Rows of each run, [shapes, runs], the stages of each run, and whether these are all orders.
    """
    used = counts > 0
    supports, which = np.unique(used, axis=0, return_inverse=True)
    waiting: dict[tuple[int, bool], list[tuple[Ints, Ints]]] = {}
    for index, support in enumerate(supports):
        rows = np.flatnonzero(support)
        every = orders(tuple(dict.fromkeys(int(at) for at in pool[rows])))
        runs = np.array(
            [[row for at in order for row in rows if pool[row] == at] for order in every.orders]
        )
        mine = counts[which.ravel() == index]
        step = max(1, most // len(runs))
        for first in range(0, len(mine), step):
            part = mine[first : first + step]
            tiled = np.tile(runs, (len(part), 1))
            number = np.take_along_axis(np.repeat(part, len(runs), axis=0), tiled, axis=1)
            key = (runs.shape[1], every.complete)
            parts = waiting.setdefault(key, [])
            parts.append((tiled, number))
            if sum(len(each) for each, _ in parts) >= most:
                yield (*_joined(waiting.pop(key)), every.complete)
    for (_, complete), parts in waiting.items():
        yield (*_joined(parts), complete)


def _joined(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    rows, counts = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(counts)
