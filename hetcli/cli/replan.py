"""`hetcli replan`: plan again around what failed, slowed down, came or went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import ExitCode
from hetcli.units import parse_duration, parse_rate

_Words = list[str] | None


def duration(text: str) -> float:
    """Seconds."""
    return _read(parse_duration, text)


def rate(text: str) -> float:
    """Bytes per second."""
    return _read(parse_rate, text)


def _read(parse: Callable[[str], float], text: str) -> float:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "replan")
    def replan(
        output: Output,
        plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan that ran.")],
        fail: Annotated[
            _Words, typer.Option("--fail", metavar="NODE[:DEVICE]", help="What is down.")
        ] = None,
        slow: Annotated[
            _Words,
            typer.Option(
                "--slow", metavar="NODE[:DEVICE]:SPEED", help="What keeps this share of its speed."
            ),
        ] = None,
        add: Annotated[
            _Words,
            typer.Option(
                "--add",
                metavar="NODE[=LIKE]",
                help="A node that works again, or a new one equal to another.",
            ),
        ] = None,
        remove: Annotated[
            _Words, typer.Option("--remove", metavar="NODE", help="A node that goes away.")
        ] = None,
        batch_tolerance: Annotated[
            float,
            typer.Option(
                "--batch-tolerance",
                min=0,
                max=50,
                metavar="PERCENT",
                help="By how much the global batch may change.",
            ),
        ] = 0.0,
        time_limit: Annotated[
            float | None,
            typer.Option(
                "--time-limit",
                min=0.1,
                metavar="SECONDS",
                help="For each search of a new plan; also searches all of a large cluster.",
            ),
        ] = None,
        any_target: Annotated[
            bool, typer.Option("--any-target", help="Also what the plan's target cannot run.")
        ] = False,
        mtbf: Annotated[
            float | None,
            typer.Option(
                "--mtbf",
                metavar="TIME",
                parser=duration,
                help="Between failures of the job (8h): how often to save.",
            ),
        ] = None,
        repair: Annotated[
            float | None,
            typer.Option(
                "--repair",
                metavar="TIME",
                parser=duration,
                help="With --mtbf, until a failed node is back (2d): the spares that pay.",
            ),
        ] = None,
        write_rate: Annotated[
            float | None,
            typer.Option(
                "--write-rate",
                metavar="RATE",
                parser=rate,
                help="What a node writes to storage (2GB/s).",
            ),
        ] = None,
        out: Annotated[
            str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan here.")
        ] = None,
    ) -> ExitCode:
        """Find the best way to go on after a change, what it moves, and whether the checkpoint
        still loads.

        Tried are: a spare node, leaving devices out of tensor groups, other layers, other
        micro-batches, fewer replicas, and a new plan. Exit code 1 says that nothing can go on.
        """
        from hetcli.adapt.changes import read_changes
        from hetcli.adapt.replan import replan as again
        from hetcli.adapt.replan import share_left
        from hetcli.adapt.saving import saving_note, spares_note
        from hetcli.errors import UsageError
        from hetcli.report.replan import replan_view
        from hetcli.spec.plan import Plan
        from hetcli.spec.source import read_document

        changes = read_changes(fail=fail or (), slow=slow or (), add=add or (), remove=remove or ())
        if not changes:
            raise UsageError(
                "nothing has changed",
                why="replan needs to know what failed, slowed down, came or went",
                fix="give --fail, --slow, --add or --remove",
            )
        running = read_document(plan, Plan)
        result, new = again(
            running,
            changes,
            batch_tolerance=batch_tolerance / 100,
            time_limit_s=time_limit,
            any_target=any_target,
        )
        notes = (
            saving_note(new, mtbf_s=mtbf, node_bytes_per_s=write_rate),
            spares_note(running, share_left(result), mtbf_s=mtbf, repair_s=repair),
        )
        result = result.model_copy(
            update={"notes": (*result.notes, *(note for note in notes if note is not None))}
        )
        if out is not None:
            output.save(out, new)
        if out != "-":
            output.result(result, *replan_view(result))
        return ExitCode.YES
