"""Repeat an operation until its time is known: warm-up, repeats, median, spread and outliers."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

from hetcli.spec.profile import Spread

__all__ = ["Deadline", "Timer", "measure", "spread", "wall_clock"]

# Runs the operation once and returns its seconds.
Timer = Callable[[Callable[[], object]], float]

REPEATS: Final = 20
MINIMUM_REPEATS: Final = 3
# The warm-up ends when two windows of this many runs have the same median within STEADY: clocks
# have settled, caches and allocator are warm. It takes at most WARM_UP_SHARE of the time.
WINDOW: Final = 3
STEADY: Final = 0.03
WARM_UP_SHARE: Final = 0.4
# A sample this many median deviations (but at least OUTLIER_SHARE) off the median is an outlier.
OUTLIER_DEVIATIONS: Final = 5
OUTLIER_SHARE: Final = 0.1


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


def wall_clock(operation: Callable[[], object]) -> float:
    """The seconds of an operation that returns when it is done: a Timer for the processor."""
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started


def spread(samples: Sequence[float]) -> Spread:
    """Median, 95th percentile (nearest rank), minimum and outliers of `samples` seconds."""
    ordered = sorted(samples)
    median = statistics.median(ordered)
    deviation = statistics.median(abs(sample - median) for sample in ordered)
    limit = max(OUTLIER_DEVIATIONS * deviation, OUTLIER_SHARE * median)
    return Spread(
        median=median,
        p95=ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)],
        minimum=ordered[0],
        repeats=len(ordered),
        outliers=sum(abs(sample - median) > limit for sample in ordered),
    )


def measure(
    operation: Callable[[], object],
    *,
    timer: Timer,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Spread:
    """Time `operation` up to REPEATS times within about `seconds`, warm-up included.

    At least MINIMUM_REPEATS are taken, however long they last: whoever asked sets a hard limit.
    """
    whole = Deadline(seconds, clock=clock)
    _warm_up(operation, timer, Deadline(WARM_UP_SHARE * seconds, clock=clock))
    samples: list[float] = []
    while len(samples) < REPEATS and (len(samples) < MINIMUM_REPEATS or not whole.passed):
        samples.append(timer(operation))
    return spread(samples)


def _warm_up(operation: Callable[[], object], timer: Timer, deadline: Deadline) -> None:
    before = None
    while True:
        window = []
        for _ in range(WINDOW):
            window.append(timer(operation))
            if deadline.passed:
                return
        now = statistics.median(window)
        if before is not None and abs(now - before) <= STEADY * before:
            return
        before = now
