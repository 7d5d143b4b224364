"""Robust regression of times on amounts of work, with coefficients that cannot be negative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "fit_seconds"]

Floats = NDArray[np.float64]

# Error from which on a row's pull does not grow any more: what repeated runs of one
# measurement differ by when nothing is wrong (1 to 14 % in published repeats).
SCALE: Final = 0.05
_ROUNDS: Final = 200
# A row that the terms so far do not reach at all is taken to be predicted this share of its time.
_LEAST: Final = 1e-3
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
    """Fit `terms @ coefficients` to `seconds`, all coefficients non-negative.

    Errors are logarithms of predicted over measured seconds, since times span orders of magnitude
    and one that is eight times too short is as wrong as one that is eight times too long. They
    count under the soft L1 loss 2(sqrt(1 + (error/SCALE)^2) - 1), by Gauss-Newton steps, each a
    reweighted non-negative least squares problem (Lawson and Hanson 1974, chapter 23). A term that
    the rows cannot tell apart from others gets zero.

    Raises ValueError without a row.
    """
    from scipy.optimize import nnls

    terms = np.asarray(terms, dtype=np.float64)
    seconds = np.asarray(seconds, dtype=np.float64)
    if not len(seconds):
        raise ValueError("nothing to fit")
    # Columns of one size keep the problem well conditioned.
    size = (terms / seconds[:, None]).max(axis=0)
    size[size == 0] = 1.0
    scaled = terms / size
    solution = nnls(scaled / seconds[:, None], np.ones(len(seconds)))[0]
    for _ in range(_ROUNDS):
        predicted = np.maximum(scaled @ solution, _LEAST * seconds)
        errors = np.log(predicted / seconds)
        root = (1 + (errors / SCALE) ** 2) ** -0.25 / predicted
        # A step of Gauss-Newton, at most to a third or three times of what was predicted.
        target = predicted * (1 - np.clip(errors, -1, 1))
        before = solution
        solution = nnls(scaled * root[:, None], target * root)[0]
        if np.abs(solution - before).max() <= _SETTLED * np.abs(solution).max():
            break
    residual = float(np.median(np.abs(scaled @ solution / seconds - 1)))
    return Fit(solution / size, residual)
