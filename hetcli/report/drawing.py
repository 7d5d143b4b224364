"""Where things are drawn: scales, ticks and shares of a chart. No meaning is computed here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Axis", "linear_axis", "log_axis", "percent"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale: `at(value)` is the position on a line of `length`, `ticks` are round values."""

    low: float
    high: float
    length: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The position of a value, 0 at the low end."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round((value - low) / (high - low) * self.length, 2)


def linear_axis(values: Iterable[float], length: float, *, count: int = 5) -> Axis:
    """An axis that holds all values with some room, with about `count` ticks at round numbers."""
    known = list(values)
    low, high = min(known), max(known)
    room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    # What cannot be negative gets no axis below zero.
    low, high = max(low - room, 0.0) if low >= 0 else low - room, high + room
    step = _round_step((high - low) / count)
    first = math.ceil(low / step)
    ticks = (step * at for at in range(first, math.floor(high / step) + 1))
    return Axis(low, high, length, tuple(round(tick, 12) for tick in ticks))


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)


def log_axis(values: Iterable[float], length: float) -> Axis:
    """A logarithmic axis from the power of ten below all values to the one above."""
    known = list(values)
    low = math.floor(math.log10(min(known)))
    high = math.ceil(math.log10(max(known)))
    high += high == low
    ticks = tuple(10.0**power for power in range(low, high + 1))
    return Axis(10.0**low, 10.0**high, length, ticks, logarithmic=True)


def percent(part: float, whole: float) -> float:
    """A share of a bar's length, in percent."""
    return round(100 * part / whole, 3) if whole else 0.0
