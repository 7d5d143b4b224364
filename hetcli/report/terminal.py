"""A plan in the terminal: the answer first, then why, in at most 100 columns.

Every number shown stands in plan.json; nothing is computed here beyond picking and formatting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report import facts
from hetcli.report.tables import heading, indented, pairs, table
from hetcli.spec.plan import Alternative, Plan
from hetcli.units import format_bytes, format_count, format_duration, format_money

__all__ = ["plan_view"]

BAR_WIDTH = 40
MEMORY_WIDTH = 15
FIT_STYLES: dict[facts.Fit, str] = {
    "fits": "green",
    "below the margin": "yellow",
    "does not fit": "red",
}


def plan_view(plan: Plan, *, verbose: bool = False) -> Iterator[RenderableType]:
    """The plan as renderables, section by section."""
    yield _title(plan)
    yield indented(pairs(facts.answer_rows(plan)))
    if plan.alternatives:
        yield heading("Best plans")
        yield indented(_alternatives(plan.alternatives))
    if plan.front:
        yield heading("Time against money")
        yield indented(_front(plan.front))
    if plan.comparisons:
        yield heading("What each restriction costs")
        yield indented(_comparisons(plan))
    yield heading("Stages")
    yield indented(_stages(plan))
    yield heading("Memory of the fullest device of each stage")
    yield indented(_memory(plan))
    yield heading("Where the step goes")
    yield indented(_breakdown(plan))
    notes = [*plan.notes, *(plan.assumptions if verbose else ())]
    if notes:
        yield heading("Notes")
        yield indented(Text("\n".join(f"- {note}" for note in notes)))


def _title(plan: Plan) -> Text:
    title = Text(f"{facts.title(plan)}\n")
    title.stylize("bold")
    title.append(f"assumes {facts.assumed(plan)}", style="dim not bold")
    if plan.assumptions:
        title.append(
            f"\nand {len(plan.assumptions)} more that the plan lists (-v shows them)",
            style="dim not bold",
        )
    return title


def _alternatives(alternatives: Sequence[Alternative]) -> Table:
    made = table(
        "#",
        "mapping",
        "layers",
        "tokens/s",
        "step",
        "bound by",
        "worst device",
        "free",
        numbers=("#", "tokens/s", "step", "free"),
    )
    for entry in alternatives:
        free = Text(format_bytes(entry.headroom_bytes))
        made.add_row(
            str(entry.rank),
            Text(entry.mapping),
            Text(facts.runs(entry.layers)),
            format_count(entry.tokens_per_s),
            format_duration(entry.step_time_s),
            Text(entry.bound_by),
            Text(entry.worst_device),
            free,
        )
    return made


def _front(front: Sequence[Alternative]) -> Table:
    """Every plan with a bar of what its step costs, the dearest one being the longest."""
    made = table(
        "", "mapping", "step", "tokens/s", "a step", "", numbers=("step", "tokens/s", "a step")
    )
    dearest = max(entry.cost_per_step or 0.0 for entry in front)
    for entry in front:
        cost = entry.cost_per_step or 0.0
        made.add_row(
            str(entry.rank),
            Text(entry.mapping),
            format_duration(entry.step_time_s),
            format_count(entry.tokens_per_s),
            format_money(cost),
            Text("█" * max(1, round(cost / dearest * BAR_WIDTH)), style="cyan"),
        )
    return made


def _comparisons(plan: Plan) -> Table:
    """This plan beside the best ones of other searches."""
    made = table(
        "",
        "mapping",
        "layers",
        "devices",
        "tokens/s",
        "step",
        numbers=("devices", "tokens/s", "step"),
    )
    for label, entry in facts.comparisons(plan):
        if entry.step_time_s is None or entry.tokens_per_s is None:
            made.add_row(label, Text(entry.reason), "", "", "", "")
            continue
        made.add_row(
            label,
            Text(entry.mapping or ""),
            Text(facts.runs(entry.layers)),
            str(entry.devices),
            format_count(entry.tokens_per_s),
            format_duration(entry.step_time_s),
        )
    return made


def _stages(plan: Plan) -> Table:
    made = table(
        "stage",
        "devices",
        "GPU",
        "layers",
        "tp",
        "dp",
        "micro-\nbatches",
        "forward",
        "backward",
        "",
        numbers=("stage", "layers", "tp", "dp", "micro-\nbatches", "forward", "backward"),
        whole=("GPU",),
    )
    for number, (stage, predicted) in enumerate(
        zip(plan.stages, plan.predicted.stages, strict=True)
    ):
        layers = str(stage.layers) if len(stage.chunks) == 1 else facts.runs(stage.chunks)
        made.add_row(
            str(number),
            Text(facts.device_names(stage.devices)),
            Text(stage.gpu),
            layers,
            str(stage.tensor_parallel),
            str(len(stage.replicas)),
            facts.micro_batches(plan, number),
            format_duration(predicted.forward_s),
            format_duration(predicted.backward_s),
            predicted.origin.letter,
        )
    return made


def _memory(plan: Plan) -> Table:
    made = table(
        "stage",
        "GPU",
        "",
        "used",
        "of",
        "free",
        "largest items",
        numbers=("stage", "used", "of", "free"),
        whole=("GPU", ""),
    )
    for stage, group in groupby(facts.memory_classes(plan), key=lambda each: each.device.stage):
        fullest = next(group)
        device = fullest.device
        share = device.peak_memory_bytes / device.capacity_bytes
        filled = min(MEMORY_WIDTH, round(share * MEMORY_WIDTH))
        bar = Text("█" * filled, style=FIT_STYLES[fullest.fit])
        bar.append("░" * (MEMORY_WIDTH - filled), style="dim")
        largest = sorted(device.items, key=lambda item: -item.memory_bytes)[:2]
        made.add_row(
            str(stage),
            Text(device.gpu),
            bar,
            format_bytes(device.peak_memory_bytes),
            format_bytes(device.capacity_bytes),
            facts.free_or_short(device.headroom_bytes),
            Text(
                "\n".join(
                    f"{facts.item_label(i.name)} {format_bytes(i.memory_bytes)}" for i in largest
                )
            ),
        )
    return made


def _breakdown(plan: Plan) -> Table:
    made = table("", "seconds", "share", "", numbers=("seconds", "share"))
    predicted = plan.predicted
    for _, label, seconds, share in facts.breakdown(predicted.breakdown_s, predicted.step_time_s):
        made.add_row(
            label,
            f"{seconds:,.3f}",
            f"{share:.1%}",
            Text("█" * max(1, round(share * BAR_WIDTH)), style="cyan"),
        )
    return made
