"""`hetcli profile`: measure this node."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import ExitCode


class Device(StrEnum):
    """What to profile."""

    auto = "auto"
    gpu = "gpu"
    cpu = "cpu"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "profile")
    def profile(
        output: Output,
        out: Annotated[
            str | None,
            typer.Option("-o", "--output", metavar="FILE", help="Write profile.json here."),
        ] = None,
        device: Annotated[
            Device, typer.Option("--device", help="auto: GPUs where there are any, else the CPU.")
        ] = Device.auto,
        quick: Annotated[bool, typer.Option("--quick", help="At most about 20 s.")] = False,
        measure: Annotated[
            bool, typer.Option("--measure/--no-measure", help="Measure, or only take inventory.")
        ] = True,
        seconds: Annotated[
            float, typer.Option("--seconds", min=1, help="Time for measuring, all devices.")
        ] = 60.0,
    ) -> ExitCode:
        """Take the inventory of this node and measure what its devices reach."""
        from hetcli.probe.node import profile_node
        from hetcli.report.profile import profile_view

        def save(partial: object) -> None:
            if out is not None and out != "-":
                output.save(out, partial, quiet=True)

        result = profile_node(
            device=device.value,
            measure=measure,
            seconds=20.0 if quick else seconds,
            save=save,
            say=output.note,
        )
        for note in result.notes:
            output.note(note)
        if out is not None:
            output.save(out, result)
        if out != "-":
            output.result(result, *profile_view(result))
        return ExitCode.YES
