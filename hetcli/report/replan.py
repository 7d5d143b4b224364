"""The ways to go on, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report.facts import runs
from hetcli.report.tables import heading, indented, table
from hetcli.spec.plan import Target
from hetcli.spec.replan import Replan, ReplanOption
from hetcli.units import format_bytes, format_count, format_duration

__all__ = ["replan_view"]


def replan_view(replan: Replan) -> Iterator[RenderableType]:
    """The best way, all ways, and what to know of the checkpoint."""
    best = replan.options[replan.chosen]
    lost = len(replan.lost)
    yield heading(f"{best.name}: {format_duration(best.step_time_s)} a step")
    gone = f"; {lost} of the plan's devices {'is' if lost == 1 else 'are'} gone" if lost else ""
    yield indented(
        Text(
            f"{format_count(best.tokens_per_s)} tokens/s, before the change "
            f"{format_count(replan.before_tokens_per_s)}{gone}"
        )
    )
    yield heading("Ways to go on")
    yield indented(_options(replan))
    yield heading("Notes")
    lines = [f"checkpoint: {replan.checkpoint}", *replan.notes, *replan.rejected]
    yield indented(Text("\n".join(f"- {line}" for line in lines)))


def _options(replan: Replan) -> Table:
    numbers = ("tokens/s", "idle", "moves", "in", "even after")
    made = table("", "way", "layers", *numbers, numbers=numbers, whole=("way", "layers"))
    for at, each in enumerate(replan.options):
        made.add_row(
            "*" if at == replan.chosen else "",
            _way(each),
            _layers(each),
            format_count(each.tokens_per_s),
            str(len(each.idle)),
            format_bytes(each.moved_bytes) if each.moved_bytes else "0",
            format_duration(each.moving_s),
            _even(each),
        )
    return made


def _way(option: ReplanOption) -> str:
    """A line for each change, then what stands in its way."""
    lines = option.name.split(", ")
    if not option.fits:
        lines.append("does not fit")
    mainline = [target for target in option.runs_on if target != "free"]
    if len(mainline) < len(get_args(Target)) - 1:
        lines.append(f"{' or '.join(mainline) or 'hetcli trial'} only")
    return ",\n".join(lines)


def _layers(option: ReplanOption) -> str:
    """Of every stage, a line a pipeline; equal neighbours as `7x4`."""
    shown = list(dict.fromkeys(runs(layers) for layers in option.layers))
    return "\n".join(shown if len(shown) <= 2 else (*shown[:2], "..."))


def _even(option: ReplanOption) -> str:
    if option.break_even_s is None:
        return "never"
    return format_duration(option.break_even_s) if option.break_even_s else "at once"
