"""How far predictions are from measured runs, in the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.perf.validation.report import GROUPINGS, Validation
from hetcli.perf.validation.statistics import Figures
from hetcli.report.tables import heading, indented, table
from hetcli.units import format_duration

__all__ = ["validation_view"]

_NUMBERS = ("rows", "mean", "median", "p90", "bias", "Spearman")


def validation_view(validation: Validation) -> Iterator[RenderableType]:
    """Error figures of time and memory, the worst rows, and what was skipped."""
    yield heading("Errors of the prediction, per cent")
    yield indented(
        _figures(
            {
                "time": validation.figures(),
                "memory": validation.figures(memory=True),
            }
        )
    )
    for grouping in GROUPINGS:
        if grouping != "group":
            yield heading(f"Time by {grouping}")
            yield indented(_figures(validation.by(grouping)))
    worst = validation.worst()
    if worst:
        yield heading("Worst rows")
        yield indented(_worst(validation))
    yield heading(f"Skipped: {len(validation.skipped)} rows")
    yield indented(_skipped(validation))


def _figures(of: Mapping[str, Figures]) -> Table:
    made = table("", *_NUMBERS, numbers=_NUMBERS)
    for name, each in of.items():
        made.add_row(
            Text(name),
            str(each.rows),
            _number(each.mean_abs_pct),
            _number(each.median_abs_pct),
            _number(each.p90_abs_pct),
            _number(each.bias_pct, signed=True),
            "-" if each.spearman is None else f"{each.spearman:.3f}",
        )
    return made


def _number(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.1f}" if signed else f"{value:.1f}"


def _worst(validation: Validation) -> Table:
    made = table(
        "row", "GPU", "framework", "measured", "predicted", "error", numbers=("measured", "error")
    )
    for result in validation.worst():
        if result.measured_s is None or result.predicted_s is None or result.time_error is None:
            continue
        made.add_row(
            Text(result.id),
            Text(result.gpu),
            Text(result.framework),
            format_duration(result.measured_s),
            format_duration(result.predicted_s),
            f"{result.time_error:+.1%}",
        )
    return made


def _skipped(validation: Validation) -> Table:
    made = table("rows", "why", numbers=("rows",))
    reasons = Counter(row.reason for row in validation.skipped)
    for reason, count in reasons.most_common():
        made.add_row(str(count), Text(reason))
    return made
