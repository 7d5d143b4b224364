"""What a table of runs corrected, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.perf.validation.calibration import Calibration, ErrorFigures
from hetcli.report.tables import heading, indented, table

__all__ = ["calibration_view"]

_LABELS = {
    "shipped": "as shipped",
    "fitted": "fitted",
    "without_own_source": "fitted without their own source",
}
_NUMBERS = ("rows", "median", "p90", "bias")


def calibration_view(calibration: Calibration) -> Iterator[RenderableType]:
    """Errors before and after, by source under fits without it, and the corrected terms."""
    yield heading("Errors of the prediction, per cent")
    yield indented(
        _errors({label: calibration.errors[name] for name, label in _LABELS.items()}, "runs")
    )
    yield heading("Sources, each under a fit without it")
    yield indented(_errors(calibration.by_source, "source"))
    yield heading("Terms and what they were multiplied by")
    made = table("term", "factor", "runs", numbers=("factor", "runs"))
    for each in calibration.factors:
        made.add_row(Text(each.term), f"{each.factor:.3f}", str(each.rows))
    yield indented(made)


def _errors(of: Mapping[str, ErrorFigures], label: str) -> Table:
    made = table(label, *_NUMBERS, numbers=_NUMBERS)
    for name, each in of.items():
        made.add_row(
            Text(name),
            str(each.rows),
            f"{each.median_abs_pct:.1f}",
            f"{each.p90_abs_pct:.1f}",
            f"{each.bias_pct:+.1f}",
        )
    return made
