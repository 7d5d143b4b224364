"""`hetcli validate`: hold the predictor to a table of measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import ExitCode


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "validate")
    def validate(
        output: Output,
        table: Annotated[
            Path, typer.Argument(metavar="TABLE", help="CSV, one measured run a row.")
        ],
        layer_profile: Annotated[
            Path | None,
            typer.Option("--layer-profile", metavar="CSV", help="Measured layer times (Sailor)."),
        ] = None,
        links: Annotated[
            Path | None, typer.Option("--links", metavar="JSON", help="Link fits (Sailor).")
        ] = None,
        efficiency: Annotated[
            Path | None,
            typer.Option(
                "--efficiency",
                metavar="JSON",
                help="What hetcli fit RUNS.csv wrote, not the shipped.",
            ),
        ] = None,
    ) -> ExitCode:
        """Predict every complete row of a table of measured runs, and print the errors.

        Exit code 1 says that no row could be used.
        """
        from hetcli.perf.validation.calibration import read_efficiency
        from hetcli.perf.validation.report import validate as judge
        from hetcli.report.validation import validation_view

        fitted = None if efficiency is None else read_efficiency(efficiency)
        validation = judge(table, layer_profile=layer_profile, links=links, table=fitted)
        output.result(validation.document(), *validation_view(validation))
        return ExitCode.YES if validation.judged else ExitCode.NO
