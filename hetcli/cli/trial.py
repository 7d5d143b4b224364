"""`hetcli trial`: run a few steps of a plan on the real devices."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import ExitCode


class Processor(StrEnum):
    """What computes."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "trial")
    def trial(
        output: Output,
        plan: Annotated[str, typer.Argument(metavar="PLAN", help="plan.json, or - for stdin.")],
        steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to measure.")] = 5,
        warm_up: Annotated[
            int, typer.Option("--warm-up", min=0, help="Steps before them that do not count.")
        ] = 2,
        processor: Annotated[
            Processor, typer.Option("--processor", help="auto: GPUs where there are any.")
        ] = Processor.auto,
        here: Annotated[
            bool, typer.Option("--here", help="Run all nodes of the plan on this machine.")
        ] = False,
        time_limit: Annotated[
            float, typer.Option("--time-limit", min=1, metavar="SECONDS", help="For everything.")
        ] = 600.0,
        stall: Annotated[
            float,
            typer.Option("--stall", min=1, metavar="SECONDS", help="Until a wait is a failure."),
        ] = 60.0,
        tolerance: Annotated[
            float | None,
            typer.Option(
                "--tolerance",
                min=0,
                metavar="PERCENT",
                help="Exit with 1 when the prediction of the step is further off.",
            ),
        ] = None,
        trace: Annotated[
            str | None,
            typer.Option("--trace", metavar="FILE", help="Write the last step for Perfetto."),
        ] = None,
        out: Annotated[
            str | None,
            typer.Option("-o", "--output", metavar="FILE", help="Write trial.json here."),
        ] = None,
    ) -> ExitCode:
        """Run a few steps of a plan with synthetic data; print predicted against measured.

        The layers have the model's real shapes and the works the plan's order. One process a
        device: started here for a plan of one node (or with --here), or by torchrun on every node.
        """
        from hetcli.report.trial import trial_view
        from hetcli.spec.plan import Plan
        from hetcli.spec.source import read_document
        from hetcli.trial.run import TrialOptions, run_trial, within

        options = TrialOptions(
            steps=steps,
            warm_up=warm_up,
            processor=processor.value,
            time_limit_s=time_limit,
            stall_s=stall,
            here=here,
        )
        done = run_trial(read_document(plan, Plan), options)
        if done is None:
            return ExitCode.YES
        result, events = done
        if trace is not None:
            output.save(trace, events)
        if out is not None:
            output.save(out, result)
        if out != "-":
            output.result(result, *trial_view(result))
        return ExitCode.YES if within(result, tolerance) else ExitCode.NO
