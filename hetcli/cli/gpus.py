"""`hetcli gpus`: the catalogue of accelerators."""

from __future__ import annotations

from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "gpus")
    def gpus(
        output: Output,
        name: Annotated[str | None, typer.Argument(help="Show one GPU in full.")] = None,
    ) -> None:
        """List the GPUs that hetcli knows, or show one with its sources."""
        from hetcli.catalog.hardware import find_gpu, load_gpus
        from hetcli.report.catalog import gpu_details, gpu_table

        if name is None:
            entries = list(load_gpus().values())
            document = {
                "schema_version": 1,
                "gpus": [entry.model_dump(mode="json") for entry in entries],
            }
            output.result(document, gpu_table(entries))
        else:
            entry = find_gpu(name)
            output.result(
                {"schema_version": 1, **entry.model_dump(mode="json")}, gpu_details(entry)
            )
