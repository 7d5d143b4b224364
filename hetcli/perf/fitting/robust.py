"""Robust regression of times on amounts of work, with coefficients that cannot be negative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "fit_seconds"]

Floats = NDArray[np.float64]

# Relative error from which on a row's pull grows with its root only: what repeated runs of one
# measurement differ by when nothing is wrong (1 to 14 % in published repeats).
SCALE: Final = 0.05
_REWEIGHTINGS: Final = 50
_SETTLED: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds a unit of each term, and the median absolute relative error on the rows."""

    coefficients: Floats
    residual: float

    def seconds(self, terms: Floats) -> Floats:
        """Predicted seconds of rows of terms."""
        predicted: Floats = np.asarray(terms, dtype=np.float64) @ self.coefficients
        return predicted


def fit_seconds(terms: Floats, seconds: Floats) -> Fit:
    """Minimise the relative errors of `terms @ coefficients` against `seconds`.

    Errors are relative, since times span orders of magnitude, under the soft L1 loss
    2(sqrt(1 + (error/SCALE)^2) - 1), by iteratively reweighted non-negative least squares (Lawson
    and Hanson 1974, chapter 23). A term that the rows cannot tell apart from others gets zero.

    Raises ValueError without a row.
    """
    from scipy.optimize import nnls

    terms = np.asarray(terms, dtype=np.float64)
    seconds = np.asarray(seconds, dtype=np.float64)
    if not len(seconds):
        raise ValueError("nothing to fit")
    relative = terms / seconds[:, None]
    # Columns of one size keep the problem well conditioned.
    largest = relative.max(axis=0)
    largest[largest == 0] = 1.0
    scaled = relative / largest
    weights = np.ones(len(seconds))
    solution = np.zeros(terms.shape[1])
    for _ in range(_REWEIGHTINGS):
        before = solution
        root = np.sqrt(weights)
        solution = nnls(scaled * root[:, None], root)[0]
        errors = scaled @ solution - 1
        weights = 1 / np.sqrt(1 + (errors / SCALE) ** 2)
        if np.abs(solution - before).max() <= _SETTLED * np.abs(solution).max():
            break
    return Fit(solution / largest, float(np.median(np.abs(scaled @ solution - 1))))
