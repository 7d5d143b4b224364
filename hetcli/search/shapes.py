"""The shapes of a pipeline: which pools, in which order, with how many stages each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hetcli.search.pools import Pool, orders

__all__ = ["shapes"]

Ints = NDArray[np.int64]


def shapes(
    pools: Sequence[Pool],
    most_stages: Ints,
    deepest: int,
    stages: int | None,
    wanted: frozenset[int] | None = None,
) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Every order of every set of pools, with all counts of stages, [candidates, pools].

    Args:
        pools: of the cluster.
        most_stages: stages that each of them can hold.
        deepest: most stages of a pipeline.
        stages: their number where it is fixed.
        wanted: pools of which at least one must take part.
    """
    usable = [pool for pool in pools if most_stages[pool.index] > 0]
    for size in range(1, len(usable) + 1):
        for chosen in combinations(usable, size):
            if wanted is not None and wanted.isdisjoint(pool.index for pool in chosen):
                continue
            counts = _counts([int(most_stages[pool.index]) for pool in chosen], deepest)
            if stages is not None:
                counts = counts[counts.sum(axis=1) == stages]
            if not len(counts):
                continue
            column = {pool.index: position for position, pool in enumerate(chosen)}
            for order in orders(chosen):
                yield order, counts[:, [column[index] for index in order]]


def _counts(most: Sequence[int], deepest: int) -> Ints:
    """All vectors with 1 <= count <= most whose sum is at most `deepest`."""
    rows = np.zeros((1, 0), dtype=np.int64)
    for position, limit in enumerate(most):
        later = len(most) - position - 1
        choices = np.arange(1, limit + 1)
        rows = np.concatenate(
            [
                np.repeat(rows, len(choices), axis=0),
                np.tile(choices, len(rows))[:, None],
            ],
            axis=1,
        )
        rows = rows[rows.sum(axis=1) + later <= deepest]
    return rows
