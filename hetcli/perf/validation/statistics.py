"""Error figures of predictions: of all, of each group, and how well the order is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from hetcli.perf.validation.predict import RowResult

__all__ = ["Figures", "figures", "groups", "rank_correlation"]

# The quantile that is called p90.
P90 = 0.9
# Fewer runs than this have no order worth a number.
MIN_RANKED = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """Relative errors (predicted / measured - 1) in per cent.

    `bias_pct` is the median signed error; `spearman` the mean over groups of runs of the same
    model and cluster, each weighted by its runs; None where nothing can be said.
    """

    rows: int
    mean_abs_pct: float | None
    median_abs_pct: float | None
    p90_abs_pct: float | None
    bias_pct: float | None
    spearman: float | None


def _pairs(results: Sequence[RowResult], *, memory: bool) -> list[tuple[RowResult, float, float]]:
    found = []
    for result in results:
        predicted = result.predicted_peak_bytes if memory else result.predicted_s
        measured = result.measured_peak_bytes if memory else result.measured_s
        if predicted is not None and measured is not None:
            found.append((result, predicted, measured))
    return found


def figures(results: Sequence[RowResult], *, memory: bool = False) -> Figures:
    """The figures of time, or of memory."""
    pairs = _pairs(results, memory=memory)
    if not pairs:
        return Figures(0, None, None, None, None, None)
    errors = np.array([predicted / measured - 1 for _, predicted, measured in pairs]) * 100
    size = np.abs(errors)
    return Figures(
        rows=len(pairs),
        mean_abs_pct=float(size.mean()),
        median_abs_pct=float(np.median(size)),
        p90_abs_pct=float(np.quantile(size, P90)),
        bias_pct=float(np.median(errors)),
        spearman=rank_correlation(results, memory=memory),
    )


def rank_correlation(results: Sequence[RowResult], *, memory: bool = False) -> float | None:
    """Spearman's correlation inside groups of the same model and cluster, weighted by rows."""
    members: dict[str, list[tuple[float, float]]] = {}
    for result, predicted, measured in _pairs(results, memory=memory):
        members.setdefault(result.group, []).append((predicted, measured))
    total = weight = 0.0
    for pairs in members.values():
        predicted, measured = np.array(pairs).T
        if len(pairs) < MIN_RANKED or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
            continue
        value = float(spearmanr(predicted, measured).statistic)
        if math.isfinite(value):
            total += value * len(pairs)
            weight += len(pairs)
    return total / weight if weight else None


def groups(
    results: Sequence[RowResult], by: Callable[[RowResult], str]
) -> dict[str, list[RowResult]]:
    """Results by a name of theirs, in the order of the names."""
    found: dict[str, list[RowResult]] = {}
    for result in results:
        found.setdefault(by(result), []).append(result)
    return dict(sorted(found.items()))
