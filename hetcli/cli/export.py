"""`hetcli export`: a plan becomes a launch directory."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output


class ExportTarget(StrEnum):
    """The framework to write for."""

    megatron = "megatron"
    deepspeed = "deepspeed"


class Launcher(StrEnum):
    """What starts the processes."""

    torchrun = "torchrun"
    deepspeed = "deepspeed"
    slurm = "slurm"
    kubernetes = "kubernetes"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "export")
    def export(
        output: Output,
        plan: Annotated[str, typer.Argument(metavar="PLAN", help="plan.json, or - for stdin.")],
        out: Annotated[
            str, typer.Option("-o", "--output", metavar="DIR", help="The launch directory.")
        ] = "launch",
        target: Annotated[
            ExportTarget | None, typer.Option("--target", help="Default: the plan's target.")
        ] = None,
        launcher: Annotated[Launcher, typer.Option("--launcher")] = Launcher.torchrun,
        target_version: Annotated[
            str | None,
            typer.Option("--target-version", metavar="VERSION", help="The framework's release."),
        ] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print, write nothing.")] = False,
        force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    ) -> None:
        """Write the scripts and configs that start a plan on a real framework."""
        from hetcli.export import render, write_directory
        from hetcli.report.export import launch_document, launch_files, launch_view
        from hetcli.spec.plan import Plan
        from hetcli.spec.source import read_document

        launch = render(
            read_document(plan, Plan),
            target=target and target.value,
            launcher=launcher.value,
            target_version=target_version,
        )
        if dry_run:
            output.result(launch_document(launch, directory=None), launch_files(launch))
            return
        write_directory(launch, out, force=force)
        output.result(launch_document(launch, directory=out), *launch_view(launch, out))
