"""Repeat an operation until its time is known: warm-up, repeats, median and 95th percentile."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

from hetcli.spec.profile import Spread

__all__ = ["Deadline", "measure", "spread"]

# As DESIGN and nccl-tests users ask: at least 5 warm-up and 20 timed runs where time allows.
WARM_UP = 5
REPEATS = 20
MINIMUM_REPEATS = 3


class Deadline:
    """A point in time after which nothing new is started."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self._end - self._clock())

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self.left == 0.0


def spread(samples: Sequence[float]) -> Spread:
    """Median, 95th percentile (nearest rank) and minimum of `samples` seconds."""
    ordered = sorted(samples)
    rank = max(0, math.ceil(0.95 * len(ordered)) - 1)
    return Spread(
        median=statistics.median(ordered),
        p95=ordered[rank],
        minimum=ordered[0],
        repeats=len(ordered),
    )


def measure(
    operation: Callable[[], object],
    *,
    synchronize: Callable[[], object],
    deadline: Deadline,
    share: float = 1.0,
) -> Spread | None:
    """Time `operation` up to REPEATS times within `share` of the time left.

    Returns None when not even MINIMUM_REPEATS fit before the deadline.
    """
    budget = Deadline(deadline.left * share)
    for _ in range(WARM_UP):
        operation()
        synchronize()
        if budget.left < 0.7 * deadline.left * share:
            break
    samples: list[float] = []
    while len(samples) < REPEATS and not (budget.passed and len(samples) >= MINIMUM_REPEATS):
        if deadline.passed:
            break
        synchronize()
        started = time.perf_counter()
        operation()
        synchronize()
        samples.append(time.perf_counter() - started)
    return spread(samples) if len(samples) >= MINIMUM_REPEATS else None
