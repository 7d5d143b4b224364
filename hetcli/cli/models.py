"""`hetcli models`: presets, and what hetcli reads from a config.json."""

from __future__ import annotations

from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "models")
    def models(
        output: Output,
        name: Annotated[
            str | None,
            typer.Argument(help="A preset, a config.json, or `-`: show its layers and parameters."),
        ] = None,
        sequence: Annotated[
            int | None, typer.Option("--seq-len", min=1, help="Tokens of a sequence, for FLOPs.")
        ] = None,
    ) -> None:
        """List the model presets, or show what hetcli reads from one or from a config.json."""
        from hetcli.catalog.presets import preset_names
        from hetcli.report.catalog import model_details, preset_table

        if name is None:
            names = list(preset_names())
            output.result({"schema_version": 1, "presets": names}, preset_table(names))
            return
        from hetcli.catalog.inputs import read_model
        from hetcli.perf.summary import summarize_model

        summary = summarize_model(read_model(name), sequence=sequence)
        output.result(summary, model_details(summary))
