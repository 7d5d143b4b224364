"""Emulate a device of a given speed on another one: do the work, then wait until it may be done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Pace"]

# Works that follow each other within this time continue on the emulated device's own clock, as
# kernels on a stream do; a longer gap was a real wait.
_SLACK_S = 0.02
# Below this the operating system's timer is too coarse to sleep.
_SPIN_S = 2e-4


class Pace:
    """The clock of an emulated device that computes `flop_per_s`.

    Without a rate nothing ever waits. A work's time is that of its FLOPs plus the time for which
    it communicated; what the machine needs for the real arithmetic disappears in it, as long as it
    is less.
    """

    def __init__(self, flop_per_s: float | None = None) -> None:
        self._flop_per_s = flop_per_s
        self._start = 0.0
        self._end: float | None = None
        self._communicated = 0.0

    def begin(self) -> None:
        """A work begins."""
        now = time.perf_counter()
        continues = self._end is not None and now - self._end < _SLACK_S
        self._start = self._end if continues and self._end is not None else now
        self._communicated = 0.0

    def finish(self, flops: float) -> None:
        """A work of `flops` ends: return when the emulated device has done it."""
        if self._flop_per_s is None:
            return
        self._end = self._start + flops / self._flop_per_s + self._communicated
        _wait_until(self._end)

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Time that a work spends on messages, which the device's rate does not shorten."""
        started = time.perf_counter()
        yield
        self._communicated += time.perf_counter() - started

    def waited(self) -> None:
        """The device waited for data: the next work starts when it really starts."""
        self._end = None


def _wait_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > _SPIN_S:
        time.sleep(left - _SPIN_S)
    while time.perf_counter() < moment:
        pass
