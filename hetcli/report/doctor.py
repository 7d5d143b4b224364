"""The environment check in the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from hetcli.probe.doctor import DoctorReport
from hetcli.report.tables import table

__all__ = ["doctor_view"]

_MARKS = {"ok": "[green]OK[/]", "missing": "[yellow]--[/]", "failed": "[red]NO[/]"}


def doctor_view(report: DoctorReport) -> Table:
    """One line a check: a mark, what was looked at, what was found, what helps."""
    made = table("", "check", "found", "helps")
    for check in report.checks:
        made.add_row(_MARKS[check.state], Text(check.name), Text(check.found), Text(check.helps))
    return made
