"""Fit the shipped efficiencies to a user's own table of runs, and say how far that carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcli.catalog.efficiency import EfficiencyTable, shipped_efficiency
from hetcli.errors import UsageError
from hetcli.perf.validation.fit import leave_one_source_out, publisher
from hetcli.perf.validation.knobs import MIN_ROWS
from hetcli.perf.validation.predict import predict_runs, runs_of
from hetcli.perf.validation.statistics import P90
from hetcli.perf.validation.table import read_table

__all__ = ["Calibration", "ErrorFigures", "Factor", "calibrate", "read_efficiency"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """Per cent of the measured time: median and p90 of the size, and the median with its sign."""

    rows: int
    median_abs_pct: float
    p90_abs_pct: float
    bias_pct: float


@dataclass(frozen=True, slots=True)
class Factor:
    """What a term of the shipped table was multiplied by, and how many runs depend on it."""

    term: str
    factor: float
    rows: int


@dataclass(frozen=True)
class Calibration:
    """The corrected table; errors as shipped, as fitted, and by fits without the run's source."""

    efficiency: EfficiencyTable
    factors: tuple[Factor, ...]
    errors: Mapping[str, ErrorFigures]
    by_source: Mapping[str, ErrorFigures]

    def document(self) -> dict[str, Any]:
        """Plain data of all of it."""
        return {
            "schema_version": 1,
            "factors": [asdict(factor) for factor in self.factors],
            "errors": {name: asdict(each) for name, each in self.errors.items()},
            "left_out": {name: asdict(each) for name, each in self.by_source.items()},
            "efficiency": self.efficiency.model_dump(mode="json", exclude_none=True),
        }


def _figures(logarithms: Floats) -> ErrorFigures:
    """Of logarithms of predicted over measured seconds."""
    relative = np.expm1(logarithms) * 100
    size = np.abs(relative)
    return ErrorFigures(
        rows=len(size),
        median_abs_pct=float(np.median(size)),
        p90_abs_pct=float(np.quantile(size, P90)),
        bias_pct=float(np.median(relative)),
    )


def calibrate(path: Path) -> Calibration:
    """Correct the terms that enough runs of a table depend on.

    A source is what `publisher` names: an artifact, or else the text of the column. Raises
    SpecError for a table that cannot be read, UsageError when it has too few runs.
    """
    table = read_table(path)
    runs = [run for run in runs_of(table)[0] if run.measured_s is not None]
    if len(runs) < MIN_ROWS:
        raise UsageError(
            f"{path} has {len(runs)} complete runs",
            why=f"no term is fitted on fewer than {MIN_ROWS}",
            fix="add runs; `hetcli validate` says what the skipped rows lack",
        )
    shipped = shipped_efficiency()
    measured = np.array([run.measured_s for run in runs], dtype=float)
    before = np.log(np.array(predict_runs(runs, shipped)) / measured)
    fitted, left_out = leave_one_source_out(runs, shipped)
    names = np.array([publisher(run.source) for run in runs])
    without = left_out["publisher"]
    return Calibration(
        efficiency=fitted.table,
        factors=tuple(
            Factor(name, factor, fitted.rows[name]) for name, factor in fitted.factors.items()
        ),
        errors={
            "shipped": _figures(before),
            "fitted": _figures(fitted.errors),
            "without_own_source": _figures(without),
        },
        by_source={
            str(name): _figures(without[names == name]) for name in sorted(set(names.tolist()))
        },
    )


def read_efficiency(path: Path) -> EfficiencyTable:
    """The table in a file that `hetcli fit TABLE.csv -o FILE` wrote.

    Raises UsageError when the file holds none.
    """
    try:
        return EfficiencyTable.model_validate_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is no table of efficiencies",
            why=" ".join(str(error).split())[:200],
            fix="write one with hetcli fit RUNS.csv -o FILE",
        ) from error
