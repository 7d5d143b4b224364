"""What waits in the queue of a search, from a family of candidates down to one shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.search.costs import Family
from hetcli.search.layout import Degrees
from hetcli.search.tables import Fitted, Tables

__all__ = ["Interleaved", "Item", "Mixed", "Open", "Shape", "Shapes", "size"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Open:
    """A family with its costs; of its mixes those above `floor` were not made yet.

    Next come those up to `window` times its bound.
    """

    family: Family
    tables: Tables
    fitted: Fitted | None
    floor: float
    window: float


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """Stages of each row, by ascending bound of their value."""

    home: Open
    counts: Ints
    bounds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Shapes of one family and depth, by ascending bound of their value."""

    home: Open
    rows: Ints
    counts: Ints
    bounds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """One shape, with a split that comes near to its bound."""

    home: Open
    rows: Ints
    counts: Ints
    split: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Interleaved:
    """Degrees with each of several numbers of model chunks a stage."""

    degrees: Degrees
    chunks: tuple[int, ...]


Item = Degrees | Interleaved | Open | Mixed | Shapes | Shape


def size(item: Item) -> int:
    """How many candidates an entry of the queue stands for."""
    if isinstance(item, Interleaved):
        return len(item.chunks)
    return len(item.counts) if isinstance(item, Mixed | Shapes) else 1
