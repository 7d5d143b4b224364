"""`hetcli compare`: plans side by side."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import UsageError


class Form(StrEnum):
    """How to print the comparison."""

    text = "text"
    md = "md"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "compare")
    def compare(
        output: Output,
        plans: Annotated[list[str], typer.Argument(metavar="PLAN...", help="plan.json files.")],
        hardware: Annotated[
            str | None,
            typer.Option(
                "--hardware",
                metavar="FILE",
                help="Also show every plan with the rates of this hardware.json.",
            ),
        ] = None,
        form: Annotated[Form, typer.Option("--format")] = Form.text,
    ) -> None:
        """Show plans side by side, each against the first.

        With --hardware, one plan before and after `hetcli fit` or `hetcli observe --corrected`.
        """
        from hetcli.report.comparison import compare as compared
        from hetcli.report.comparison import comparison_document, comparison_view
        from hetcli.report.markdown import comparison_markdown
        from hetcli.spec.plan import Plan
        from hetcli.spec.source import read_document

        if len(plans) < 2 and hardware is None:
            raise UsageError(
                "one plan",
                why="a comparison needs two",
                fix="hetcli compare A.json B.json, or hetcli compare A.json --hardware FILE",
            )
        read = [(path, read_document(path, Plan)) for path in plans]
        if hardware is not None:
            from hetcli.search.replay import on_fitted
            from hetcli.spec.hardware import HardwareFile

            fitted = read_document(hardware, HardwareFile)
            read += [(f"{path}, {hardware}", on_fitted(plan, fitted)) for path, plan in read]
        if form is Form.md and not output.json:
            output.write(comparison_markdown(compared(read)))
            return
        output.result(comparison_document(read), *comparison_view(compared(read)))
