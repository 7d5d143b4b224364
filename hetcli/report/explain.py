"""An explanation in the terminal: what binds, what was left out, and what would help."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report import facts
from hetcli.report.tables import heading, indented, pairs, table
from hetcli.spec.explanation import Explanation
from hetcli.units import format_bytes, format_count, format_duration, format_money

__all__ = ["explanation_view"]


def explanation_view(found: Explanation) -> Iterator[RenderableType]:
    """The explanation as renderables, section by section."""
    title = Text(f"Why {found.plan}\n")
    title.stylize("bold")
    yield title
    yield indented(pairs(_answer(found)))
    yield heading("The same plan on hardware that is twice as fast")
    yield indented(_levers(found))
    yield heading("Left out by the search")
    yield indented(_rejected(found))
    yield heading("Next best")
    yield indented(_neighbours(found))
    if found.what_if:
        yield heading("What if")
        yield indented(_what_if(found))


def _answer(found: Explanation) -> list[tuple[str, str]]:
    point = found.bottleneck
    part = facts.BREAKDOWN_LABELS.get(point.bound_by, point.bound_by)
    return [
        (
            "step",
            f"{format_duration(found.step_time_s)}, {format_count(found.tokens_per_s)} tokens/s",
        ),
        ("binds", found.binds),
        (
            "busiest stage",
            f"stage {point.stage} ({point.gpu}): works {format_duration(point.busy_s)}, "
            f"{point.busy_share:.0%} of the step; most of it is {part}",
        ),
        (
            "fullest device",
            f"{point.memory_device} ({point.memory_gpu}): "
            f"{format_bytes(point.headroom_bytes)} free",
        ),
    ]


def _levers(found: Explanation) -> Table:
    made = table("", "step", "gain", numbers=("step", "gain"))
    for lever in found.levers:
        made.add_row(Text(lever.name), format_duration(lever.step_time_s), facts.change(lever.gain))
    return made


def _rejected(found: Explanation) -> RenderableType:
    if not found.rejected:
        return Text("(nothing: no search was made)")
    made = table("candidates", "rule", numbers=("candidates",))
    for rule, count in sorted(found.rejected.items(), key=lambda item: -item[1]):
        if count:
            made.add_row(f"{count:,}", Text(rule))
    return made


def _neighbours(found: Explanation) -> RenderableType:
    if not found.neighbours:
        return Text("(none)")
    made = table("#", "mapping", "slower", "bound by", "what differs", numbers=("#", "slower"))
    for each in found.neighbours:
        made.add_row(
            str(each.plan.rank),
            Text(each.plan.mapping),
            facts.change(each.slower),
            Text(each.plan.bound_by),
            Text(each.differs),
        )
    return made


def _what_if(found: Explanation) -> Table:
    made = table(
        *("", "mapping", "tokens/s", "gain", "a million tokens"),
        numbers=("tokens/s", "gain", "a million tokens"),
    )
    for each in found.what_if:
        if each.gain is None or each.tokens_per_s is None:
            made.add_row(Text(each.change), Text(each.reason), "", "", "")
            continue
        cost = each.cost_per_million_tokens
        made.add_row(
            Text(each.change),
            Text(each.mapping or ""),
            format_count(each.tokens_per_s),
            facts.change(each.gain),
            "" if cost is None else format_money(cost),
        )
    return made
