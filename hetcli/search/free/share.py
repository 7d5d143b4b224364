"""How many micro-batches each pipeline of a mix gets: the slowest one is as fast as can be."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetcli.search.free.columns import Column

__all__ = ["share", "slowest"]

Ints = NDArray[np.int64]

# Halvings of the interval in which the step time lies, and the slack of a whole micro-batch.
HALVINGS = 40
SLACK = 1e-9


def share(pipelines: Sequence[Column], batch: int) -> list[int] | None:
    """Micro-batches of each pipeline, in all `batch` sequences; None where that cannot be.

    Every pipeline gets at least as many as it has stages. In a given time each does some number of
    them; what is too much is taken back, largest sizes first. Where every size divides the next
    one, as powers of two do, that finds the batch if any numbers make it up.
    """
    overhead = np.array([each.overhead_s for each in pipelines])
    pace = np.array([each.pace_s for each in pipelines])
    size = np.array([each.setting.micro_batch_size for each in pipelines])
    least = np.array([each.depth for each in pipelines])
    sizes = sorted(set(size.tolist()), reverse=True)

    def surplus(step_s: float) -> tuple[Ints, dict[int, int]] | None:
        """The most micro-batches, and how many of each size are too much; None if it is short."""
        most = np.floor((step_s - overhead) / pace * (1 + SLACK)).astype(np.int64)
        left = int((most * size).sum()) - batch
        if left < 0 or (most < least).any():
            return None
        taken = {}
        for each in sizes:
            free = int((most - least)[size == each].sum())
            taken[each] = min(free, left // each)
            left -= taken[each] * each
        return None if left else (most, taken)

    high = float((overhead + pace * (batch + least.max())).max())
    low = 0.0
    best = surplus(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = surplus(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return None if best is None else _without(pipelines, *best)


def _without(pipelines: Sequence[Column], most: Ints, taken: dict[int, int]) -> list[int]:
    """The micro-batches that remain: of each size those are taken that would end last."""
    counts = [int(number) for number in most]
    for size, number in taken.items():
        waiting = [
            (-_seconds(each, counts[at]), at)
            for at, each in enumerate(pipelines)
            if each.setting.micro_batch_size == size and counts[at] > each.depth
        ]
        heapq.heapify(waiting)
        for _ in range(number):
            _, at = heapq.heappop(waiting)
            counts[at] -= 1
            if counts[at] > pipelines[at].depth:
                heapq.heappush(waiting, (-_seconds(pipelines[at], counts[at]), at))
    return counts


def slowest(pipelines: Sequence[Column], counts: Sequence[int]) -> float:
    """Seconds of the pipeline that is done last with its micro-batches."""
    return max(_seconds(each, count) for each, count in zip(pipelines, counts, strict=True))


def _seconds(column: Column, micro_batches: int) -> float:
    return column.overhead_s + micro_batches * column.pace_s
