"""`hetcli doctor`: what of this machine hetcli can use; made to be pasted into an issue."""

from __future__ import annotations

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import ExitCode


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "doctor")
    def doctor(output: Output) -> ExitCode:
        """Check the environment: one line a check; exit 1 when one that matters fails."""
        from hetcli.probe.doctor import examine
        from hetcli.report.doctor import doctor_view

        report = examine()
        output.result(report, doctor_view(report))
        return ExitCode.YES if report.healthy else ExitCode.NO
