"""`hetcli explain`: why a plan is as it is, and what would make it faster."""

from __future__ import annotations

from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "explain")
    def explain(
        output: Output,
        plan: Annotated[str, typer.Argument(metavar="PLAN", help="plan.json, or - for stdin.")],
        what_if: Annotated[
            bool,
            typer.Option("--what-if/--no-what-if", help="Search again with more and faster parts."),
        ] = True,
        out: Annotated[
            str | None,
            typer.Option("-o", "--output", metavar="FILE", help="Write explanation.json here."),
        ] = None,
    ) -> None:
        """Say what binds a plan, what was rejected, what comes near and what would help."""
        from hetcli.report.explain import explanation_view
        from hetcli.search.explain import explain as explained
        from hetcli.spec.plan import Plan
        from hetcli.spec.source import read_document

        found = explained(read_document(plan, Plan), what_if=what_if)
        if out is not None:
            output.save(out, found)
        if out != "-":
            output.result(found, *explanation_view(found))
