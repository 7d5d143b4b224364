"""One step and the trade among plans in the terminal, drawn with characters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from hetcli.report.drawing import linear_axis
from hetcli.report.pareto import Trade
from hetcli.report.tables import heading, indented
from hetcli.units import format_bytes, format_count, format_duration, format_money

__all__ = ["step_legend", "step_lines", "step_view", "trade_lines", "trade_view"]

COLUMNS: Final = 80
_ROWS: Final = 10
# A mark and a colour each, so that neither alone carries the meaning.
_MARKS: Final = {
    "F": ("▒", "blue", "forward"),
    "B": ("█", "green", "backward"),
    "I": ("█", "green", "backward, inputs"),
    "W": ("▓", "cyan", "backward, weights"),
    "send": (">", "yellow", "sends"),
    "gradient sync, exposed": ("=", "magenta", "gradient sync"),
    "optimizer": ("o", "yellow", "optimizer"),
    "idle": ("·", "dim", "idle"),
}


def step_view(step: dict[str, Any]) -> Iterator[RenderableType]:
    """The timeline of the slowest replicas, a line a stage; `step` is `steps.step_data`."""
    yield heading(f"One step of {format_duration(step['end'] / 1e6)}, left to right")
    drawn = Text()
    for label, kinds in _columns(step):
        drawn.append(f"{label:>9} ")
        for kind in kinds:
            drawn.append(_MARKS[kind][0], style=_MARKS[kind][1])
        drawn.append("\n")
    drawn.append(step_legend(step), style="dim")
    yield indented(drawn)


def step_lines(step: dict[str, Any]) -> list[str]:
    """The same without colour, for plain text."""
    return [
        f"{label:>9} {''.join(_MARKS[kind][0] for kind in kinds)}"
        for label, kinds in _columns(step)
    ]


def step_legend(step: dict[str, Any]) -> str:
    """What the marks that are used stand for."""
    used = {kind for _, kinds in _columns(step) for kind in kinds}
    marks = (f"{mark} {name}" for kind, (mark, _, name) in _MARKS.items() if kind in used)
    return f"{'':9} {'   '.join(marks)}"


def _columns(step: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """For every stage of the slowest chain, what each column of time shows.

    A column holds several short works and shows one of them; which one is what the line has shown
    too little of so far, so that the marks of a line have the shares of the step.
    """
    chain = step["chains"][0]
    width = step["end"] / COLUMNS
    for stage in chain["stages"]:
        shares: list[dict[str, float]] = [{} for _ in range(COLUMNS)]
        for kind, start, end in _acts(step, chain, stage):
            first = min(int(start / width), COLUMNS - 1)
            for column in range(first, min(int(end / width), COLUMNS - 1) + 1):
                inside = min(end, (column + 1) * width) - max(start, column * width)
                shares[column][kind] = shares[column].get(kind, 0.0) + inside
        kinds, owed = [], dict.fromkeys(_MARKS, 0.0)
        for share in shares:
            share["idle"] = max(0.0, width - sum(share.values()))
            for kind, time in share.items():
                owed[kind] += time
            shown = max((kind for kind in share if share[kind] > 0), key=lambda kind: owed[kind])
            owed[shown] -= width
            kinds.append(shown)
        yield f"stage {stage['stage']}", kinds


def _acts(
    step: dict[str, Any], chain: dict[str, Any], stage: dict[str, Any]
) -> Iterator[tuple[str, int, int]]:
    yield from zip(stage["kinds"], stage["starts"], stage["ends"], strict=True)
    sent = chain["transfers"]
    if not chain["overlap"]:
        for source, start, end in zip(sent["sources"], sent["starts"], sent["ends"], strict=True):
            if source == stage["stage"]:
                yield "send", start, end
    for part in step["after"]:
        yield part["name"], part["start"], part["end"]


def trade_view(trade: Trade) -> Iterator[RenderableType]:
    """The plans of the ranking as a plot: up is faster."""
    against = "dollars a step" if trade.against == "cost" else "memory left on the worst device"
    yield heading(f"Tokens/s against {against}")
    yield indented(Text("\n".join(trade_lines(trade))))


def trade_lines(trade: Trade) -> list[str]:
    """The plot; a number is the plan's rank, in brackets where no plan beats it in both."""
    across = linear_axis([each.value for each in trade.choices], COLUMNS - 4)
    up = linear_axis([each.tokens_per_s for each in trade.choices], _ROWS - 1)
    field = [[" "] * COLUMNS for _ in range(_ROWS)]
    for each in trade.choices:
        row = field[_ROWS - 1 - round(up.at(each.tokens_per_s))]
        mark = f"[{each.rank}]" if each.best else f" {each.rank} "
        start = _free(row, round(across.at(each.value)), len(mark))
        row[start : start + len(mark)] = mark
    show = format_money if trade.against == "cost" else format_bytes
    labels = {0: format_count(up.high), _ROWS - 1: format_count(up.low)}
    lines = [f"{labels.get(at, ''):>8} │{''.join(row).rstrip()}" for at, row in enumerate(field)]
    low, high = show(across.low), show(across.high)
    return [
        *lines,
        f"{'':8} └{'─' * COLUMNS}",
        f"{'':10}{low}{high:>{COLUMNS - len(low)}}",
    ]


def _free(row: list[str], start: int, length: int) -> int:
    """Where a mark covers no other one: at `start` or as near to it as can be."""
    last = len(row) - length
    places = sorted(range(last + 1), key=lambda at: (abs(at - start), at))
    free = (at for at in places if not "".join(row[at : at + length]).strip(" "))
    return next(free, min(start, last))
