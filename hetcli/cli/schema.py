"""`hetcli schema`: the JSON Schema of a file format."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output


class Format(StrEnum):
    """The formats that hetcli reads and writes."""

    cluster = "cluster"
    model = "model"
    workload = "workload"
    profile = "profile"
    hardware = "hardware"
    plan = "plan"
    replan = "replan"
    explanation = "explanation"
    trial = "trial"
    observation = "observation"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "schema")
    def schema(
        output: Output,
        file_format: Annotated[Format, typer.Argument(metavar="FORMAT", help="Which format.")],
    ) -> None:
        """Print the JSON Schema of a file format."""
        from hetcli.spec.formats import FORMATS

        document = FORMATS[file_format.value].model_json_schema(mode="validation")
        output.save("-", {"$schema": "https://json-schema.org/draft/2020-12/schema", **document})
