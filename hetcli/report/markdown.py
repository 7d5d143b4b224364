"""Reports as Markdown, for issue trackers: tables, and names from files only in code spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from hetcli.report import facts
from hetcli.report.comparison import Comparison
from hetcli.report.lost import why_slower
from hetcli.report.pareto import trade
from hetcli.report.step_view import step_legend, step_lines, trade_lines
from hetcli.spec.explanation import Explanation
from hetcli.spec.plan import Plan
from hetcli.units import format_bytes, format_count, format_duration, format_money

__all__ = ["comparison_markdown", "plan_markdown"]


def plan_markdown(plan: Plan, step: dict[str, Any], explanation: Explanation | None = None) -> str:
    """What the page says, without its drawings; `step` is `steps.step_data`."""
    lines = [
        *_answer(plan),
        *_step(plan, step),
        *_others(plan),
        *(_what_if(explanation) if explanation else ()),
        *_notes(plan),
    ]
    return "\n".join(lines) + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    """A column a plan, with the change against the first one."""
    head = ["", *(_code(name) for name in comparison.names)]
    rows = []
    for row in comparison.rows:
        cells = [
            f"{_code(value) if row.from_files else _text(value)}{f' ({change})' if change else ''}"
            for value, change in zip(row.values, row.changes, strict=True)
        ]
        rows.append([row.label, *cells])
    return "\n".join(_table(head, rows)) + "\n"


def _answer(plan: Plan) -> Iterator[str]:
    yield f"## {_code(facts.title(plan))}"
    yield ""
    yield f"Assumes {facts.assumed(plan)}."
    yield ""
    yield from _table(["", ""], [[label, _code(text)] for label, text in facts.answer_rows(plan)])
    yield from _heading("Stages")
    yield from _table(
        ["stage", "devices", "GPU", "layers", "tp", "dp", "micro-batches", "forward", "backward"],
        [
            [
                str(number),
                _code(facts.device_names(stage.devices)),
                _code(stage.gpu),
                facts.runs(stage.chunks) if len(stage.chunks) > 1 else str(stage.layers),
                str(stage.tensor_parallel),
                str(len(stage.replicas)),
                facts.micro_batches(plan, number),
                format_duration(times.forward_s),
                f"{format_duration(times.backward_s)} [{times.origin.letter}]",
            ]
            for number, (stage, times) in enumerate(
                zip(plan.stages, plan.predicted.stages, strict=True)
            )
        ],
    )


def _step(plan: Plan, step: dict[str, Any]) -> Iterator[str]:
    yield from _heading("One step, left to right")
    yield from _block([*step_lines(step), step_legend(step)])
    yield from _heading("Memory")
    yield from _table(["devices", "used", "of", "free", "", "items"], _memory(plan))
    yield from _heading("Where the step goes")
    predicted = plan.predicted
    yield from _table(
        ["", "seconds", "share"],
        [
            [label, f"{seconds:,.3f}", f"{share:.1%}"]
            for _, label, seconds, share in facts.breakdown(
                predicted.breakdown_s, predicted.step_time_s
            )
        ],
    )


def _others(plan: Plan) -> Iterator[str]:
    if plan.alternatives:
        yield from _heading("Other plans, and why they lost")
        yield from _block(trade_lines(trade(plan)))
        yield ""
        yield from _table(
            [
                "#",
                "mapping",
                "layers",
                "step",
                "tokens/s",
                "a step costs",
                "why: more time in",
                "worst device",
                "free",
            ],
            _alternatives(plan),
        )
    if plan.comparisons and plan.comparisons.entries:
        yield from _heading("What each restriction costs")
        yield from _table(
            ["the best plan with", "mapping", "layers", "devices", "step", "tokens/s", ""],
            _comparisons(plan),
        )


def _comparisons(plan: Plan) -> Iterator[list[str]]:
    for label, each in facts.comparisons(plan):
        if each.step_time_s is None or each.tokens_per_s is None:
            yield [_text(label), _code(each.reason or "nothing fits"), *[""] * 5]
            continue
        yield [
            _text(label),
            (each.mapping or "").replace("*", r"\*"),
            facts.runs(each.layers),
            str(each.devices),
            format_duration(each.step_time_s),
            format_count(each.tokens_per_s),
            facts.change(each.tokens_per_s / plan.predicted.tokens_per_s - 1),
        ]


def _what_if(found: Explanation) -> Iterator[str]:
    yield from _heading("What binds, and what if")
    yield f"{_code(found.binds)}"
    yield ""
    yield from _table(
        ["the same plan with", "step", "faster by"],
        [
            [
                f"{_text(each.name)} twice as fast",
                format_duration(each.step_time_s),
                facts.change(each.gain),
            ]
            for each in found.levers
        ],
    )
    if found.what_if:
        yield ""
        yield from _table(
            ["change", "best plan then", "devices", "step", "tokens/s", ""],
            [
                [
                    _text(each.change),
                    (each.mapping or _code(each.reason or "nothing fits")).replace("*", r"\*"),
                    str(each.devices),
                    "" if each.step_time_s is None else format_duration(each.step_time_s),
                    "" if each.tokens_per_s is None else format_count(each.tokens_per_s),
                    "" if each.gain is None else facts.change(each.gain),
                ]
                for each in found.what_if
            ],
        )


def _notes(plan: Plan) -> Iterator[str]:
    for title, texts in (("Notes", plan.notes), ("Assumptions", plan.assumptions)):
        if texts:
            yield from _heading(title)
            yield from (f"- {_code(text)}" for text in texts)


def _memory(plan: Plan) -> Iterator[list[str]]:
    for each in facts.memory_classes(plan):
        device = each.device
        items = ", ".join(
            f"{facts.item_label(item.name)} {format_bytes(item.memory_bytes)}"
            for item in device.items
            if item.memory_bytes
        )
        yield [
            f"stage {device.stage}: {_code(facts.device_names(each.devices))}",
            format_bytes(device.peak_memory_bytes),
            format_bytes(device.capacity_bytes),
            facts.free_or_short(device.headroom_bytes),
            each.fit,
            _text(items),
        ]


def _alternatives(plan: Plan) -> Iterator[list[str]]:
    for each in plan.alternatives:
        yield [
            str(each.rank),
            each.mapping.replace("*", r"\*"),
            facts.runs(each.layers),
            format_duration(each.step_time_s),
            format_count(each.tokens_per_s),
            "unknown" if each.cost_per_step is None else format_money(each.cost_per_step),
            ", ".join(why_slower(plan, each)) if each.rank > 1 else "",
            _code(each.worst_device),
            format_bytes(each.headroom_bytes),
        ]


def _heading(text: str) -> Iterator[str]:
    yield from ("", f"### {text}", "")


def _block(lines: Sequence[str]) -> Iterator[str]:
    yield from ("```text", *lines, "```")


def _table(head: Sequence[str], rows: Iterator[list[str]] | list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _text(text: str) -> str:
    """Plain words with what Markdown would read as markup escaped."""
    return re.sub(r"([\\`*_\[\]<>|#!@~])", r"\\\1", text)


def _code(text: str) -> str:
    """A code span that its content cannot leave, also inside a table."""
    shown = " ".join(text.split()).replace("|", r"\|")
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {shown} {ticks}" if longest else f"`{shown}`"
