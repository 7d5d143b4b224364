"""Arithmetic of legal values, and how a message lists them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["divisors", "listed", "multiples_around", "nearest"]


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def listed(values: Iterable[object]) -> str:
    """Values as a message names them, separated by commas."""
    return ", ".join(str(value) for value in values)


def nearest(values: Sequence[int], wanted: int) -> list[int]:
    """The legal values around a wanted one: the largest below and the smallest above."""
    below = [value for value in values if value < wanted]
    above = [value for value in values if value > wanted]
    return below[-1:] + above[:1]


def multiples_around(number: int, of: int) -> list[int]:
    """The positive multiples of `of` next to `number`, which is not one itself."""
    below = number // of * of
    return [value for value in (below, below + of) if value > 0]
