"""Where the plans of a trade lie on a plot, with labels that do not cover each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hetcli import units
from hetcli.report.drawing import Axis, linear_axis
from hetcli.report.pareto import Choice, Trade

__all__ = ["Mark", "Scatter", "scatter"]

_SIZE: Final = (640.0, 260.0)
_DOT: Final = 6.0
# Half the width and half the height of a label.
_HALF: Final = (9.0, 8.0)
_NEAR: Final = 15.0
_DIRECTIONS: Final = ((1, 0), (0, -1), (0, 1), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1))


@dataclass(frozen=True, slots=True)
class Mark:
    """One plan: its dot, and its label with the end of the line that leads to it."""

    choice: Choice
    x: float
    y: float
    label_x: float
    label_y: float


@dataclass(frozen=True, slots=True)
class Scatter:
    """The plot's size, its axes, its plans, and the line of the front."""

    width: float
    height: float
    across: Axis
    up: Axis
    marks: tuple[Mark, ...]
    front: str


def scatter(found: Trade) -> Scatter:
    """The plot of a trade: up is faster, to the right what it is weighed against."""
    width, height = _SIZE
    # Round numbers of bytes are those of GiB.
    unit = 1.0 if found.against == "cost" else float(units.GIB)
    across = linear_axis([each.value / unit for each in found.choices], width)
    up = linear_axis([each.tokens_per_s for each in found.choices], height)
    dots = [
        (across.at(each.value / unit), round(height - up.at(each.tokens_per_s), 2))
        for each in found.choices
    ]
    marks = tuple(
        Mark(choice, *dot, *label)
        for choice, dot, label in zip(found.choices, dots, _labels(dots), strict=True)
    )
    front = sorted((mark.x, mark.y) for mark in marks if mark.choice.best)
    return Scatter(width, height, across, up, marks, " ".join(f"{x},{y}" for x, y in front))


def _labels(dots: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """A place for every dot's label: the nearest one that covers no dot and no other label."""
    placed: list[tuple[float, float]] = []
    for dot in dots:
        place = next(
            (at for at in _places(*dot) if _is_free(at, dots, placed)),
            (dot[0] + _NEAR, dot[1]),
        )
        placed.append(place)
        yield place


def _places(x: float, y: float) -> Iterator[tuple[float, float]]:
    for distance in (_NEAR, 1.7 * _NEAR, 2.4 * _NEAR, 3.1 * _NEAR):
        for right, down in _DIRECTIONS:
            at = (x + right * distance, y + down * distance)
            if 0 <= at[0] <= _SIZE[0] and 0 <= at[1] <= _SIZE[1]:
                yield at


def _is_free(
    at: tuple[float, float], dots: list[tuple[float, float]], placed: list[tuple[float, float]]
) -> bool:
    wide, high = _HALF
    covers_dot = any(abs(at[0] - x) < wide + _DOT and abs(at[1] - y) < high + _DOT for x, y in dots)
    covers_label = any(abs(at[0] - x) < 2 * wide and abs(at[1] - y) < 2 * high for x, y in placed)
    return not covers_dot and not covers_label
