"""The best plans so far, one for each mapping, and the value that any other has to beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hetcli.search.costs import Family
from hetcli.search.entries import Shape
from hetcli.search.exact import Exact
from hetcli.search.found import layout_key
from hetcli.search.layout import Layout
from hetcli.search.leaf import evened
from hetcli.search.requirements import Requirements
from hetcli.search.worth import Worth
from hetcli.spec.workload import RecomputeChoice

__all__ = ["Incumbents"]

Ints = NDArray[np.int64]


@dataclass(eq=False)
class Incumbents:
    """Plans that keep the requirements; `threshold` is the value of the best of them."""

    requirements: Requirements
    worth: Worth
    threshold: float = np.inf
    _best: dict[object, tuple[float, Layout]] = field(default_factory=dict)

    @property
    def plans(self) -> Iterable[tuple[float, Layout]]:
        """The best plan of each mapping, with its value."""
        return self._best.values()

    def keep(self, shape: Shape, exact: Exact, split: Ints, seconds: float, rate: float) -> None:
        """Remember a plan if it is the best of its mapping.

        Args:
            shape: with its home.
            exact: the times of the shape.
            split: layers of each stage.
            seconds: of a step.
            rate: dollars of a second.
        """
        family = shape.home.family
        step, dollars = np.array([seconds]), np.array([seconds * rate])
        if not self.requirements.keep_bounds(step, dollars, Counter()).all():
            return
        value = float(self.worth.value(step, np.array([rate]))[0])
        split = evened(exact, split, shape.counts, seconds)
        runs = tuple(
            (family.rows[row].pool, int(number))
            for row, number in zip(shape.rows, shape.counts, strict=True)
        )
        layout = Layout(
            family.degrees,
            runs,
            tuple(int(number) * exact.virtual_stages for number in split),
            _recompute(family, shape, exact.choices(split[None])[0] - len(exact.stop)),
        )
        mapping = (family.degrees, layout.stages)
        known = self._best.get(mapping)
        if known is None or (value, layout_key(layout)) < (known[0], layout_key(known[1])):
            self._best[mapping] = (value, layout)
            self.threshold = min(self.threshold, value)


def _recompute(family: Family, shape: Shape, backs: Ints) -> tuple[RecomputeChoice, ...]:
    """What each stage recomputes, from its choices counted from the last one."""
    kinds = np.repeat(shape.rows, shape.counts)
    return tuple(family.rows[row].choices[back] for row, back in zip(kinds, backs, strict=True))
