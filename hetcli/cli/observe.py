"""`hetcli observe`: read a run's logs and put them beside its plan."""

from __future__ import annotations

from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import ExitCode


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "observe")
    def observe(
        output: Output,
        logs: Annotated[
            list[str], typer.Argument(metavar="LOG...", help="Logs of one run, or - for stdin.")
        ],
        plan: Annotated[
            str | None, typer.Option("--plan", metavar="FILE", help="The plan of the run.")
        ] = None,
        tolerance: Annotated[
            float,
            typer.Option(
                "--tolerance", min=0.1, metavar="PERCENT", help="More than this is drift."
            ),
        ] = 10.0,
        hardware: Annotated[
            str | None,
            typer.Option("--hardware", metavar="FILE", help="hardware.json to correct."),
        ] = None,
        corrected: Annotated[
            str | None,
            typer.Option("--corrected", metavar="FILE", help="Write the corrected hardware here."),
        ] = None,
        out: Annotated[
            str | None,
            typer.Option("-o", "--output", metavar="FILE", help="Write observation.json here."),
        ] = None,
    ) -> ExitCode:
        """Read iteration times, throughput and memory from a Megatron-LM, DeepSpeed, torchtitan or
        NeMo log; with a plan, predicted against measured, and what to correct.

        Exit code 1 says that the run drifted from its plan.
        """
        from hetcli.adapt.correct import corrected as correct
        from hetcli.adapt.files import read_logs
        from hetcli.adapt.observe import observe as look
        from hetcli.errors import UsageError
        from hetcli.report.observation import observation_view
        from hetcli.spec.hardware import HardwareFile
        from hetcli.spec.plan import Plan
        from hetcli.spec.source import read_document

        if (hardware is None) != (corrected is None):
            raise UsageError(
                "--hardware and --corrected belong together",
                why="one is what to correct, the other where to write it",
                fix="give both or none",
            )
        planned = None if plan is None else read_document(plan, Plan)
        result = look(read_logs(logs), planned, tolerance=tolerance / 100)
        if hardware is not None and corrected is not None:
            output.save(corrected, correct(read_document(hardware, HardwareFile), result))
        if out is not None:
            output.save(out, result)
        if out != "-":
            output.result(result, *observation_view(result))
        return ExitCode.NO if result.drift else ExitCode.YES
