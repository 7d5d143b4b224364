"""`hetcli export`: a plan becomes a launch directory."""

from __future__ import annotations

from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "export")
    def export(
        output: Output,
        plan: Annotated[
            str | None, typer.Argument(metavar="PLAN", help="plan.json, or - for stdin.")
        ] = None,
        out: Annotated[
            str, typer.Option("-o", "--output", metavar="DIR", help="The launch directory.")
        ] = "launch",
        target: Annotated[
            str | None,
            typer.Option(
                "--target",
                metavar="NAME",
                help="megatron, deepspeed, flagscale, torchtitan or generic. Default: the plan's.",
            ),
        ] = None,
        launcher: Annotated[
            str | None,
            typer.Option(
                "--launcher",
                metavar="NAME",
                help="torchrun, deepspeed, slurm, kubernetes or flagscale. Default: torchrun; "
                "FlagScale's own for that target.",
            ),
        ] = None,
        target_version: Annotated[
            str | None,
            typer.Option("--target-version", metavar="VERSION", help="The framework's release."),
        ] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print, write nothing.")] = False,
        force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
        check: Annotated[
            str | None,
            typer.Option(
                "--check", metavar="DIR", help="Does DIR describe its plan.json? No PLAN."
            ),
        ] = None,
    ) -> None:
        """Write the scripts and configs that start a plan on a real framework."""
        from hetcli.errors import UsageError
        from hetcli.export import render, write_directory
        from hetcli.report.export import launch_document, launch_files, launch_view
        from hetcli.spec.plan import Plan
        from hetcli.spec.source import read_document

        if (plan is None) is (check is None):
            raise UsageError(
                "give a plan to export, or --check with a directory",
                why="one is written, the other is read back",
                fix="hetcli export plan.json, or hetcli export --check launch",
            )
        if check is not None:
            _check(output, check)
            return
        assert plan is not None
        launch = render(
            read_document(plan, Plan),
            target=target,
            launcher=launcher,
            target_version=target_version,
        )
        if dry_run:
            output.result(launch_document(launch, directory=None), launch_files(launch))
            return
        write_directory(launch, out, force=force)
        output.result(launch_document(launch, directory=out), *launch_view(launch, out))


def _check(output: Output, directory: str) -> None:
    from hetcli.errors import NegativeAnswer
    from hetcli.export.readback import check_directory
    from hetcli.report.export import checked_document, checked_view

    checked = check_directory(directory)
    if checked.differences:
        raise NegativeAnswer(
            f"{directory} does not describe its plan.json",
            why="; ".join(checked.differences),
            fix="hetcli export --force writes what the plan says",
        )
    output.result(checked_document(checked, directory), *checked_view(checked, directory))
