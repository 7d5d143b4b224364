"""A plan in the terminal: the answer first, then why, in at most 100 columns.

Every number shown stands in plan.json; nothing is computed here beyond picking and formatting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report.tables import heading, indented, pairs, table
from hetcli.spec.hosts import fold_hosts
from hetcli.spec.plan import Alternative, Plan, PlanDevice, PredictedDevice
from hetcli.units import format_bytes, format_count, format_duration, format_money

__all__ = ["plan_view"]

BAR_WIDTH = 40
# A share of the step that would be printed as 0.0 % is left out; plan.json has it.
NEGLIGIBLE = 0.0005

_BREAKDOWN_LABELS = {
    "compute": "compute",
    "tensor_parallel": "tensor parallel",
    "context_parallel": "context parallel",
    "expert_parallel": "expert parallel",
    "pipeline_p2p": "pipeline transfers",
    "pipeline_bubble": "pipeline bubble",
    "data_parallel": "gradient sync, exposed",
    "optimizer": "optimizer",
    "offload": "offload",
}


def plan_view(plan: Plan, *, verbose: bool = False) -> Iterator[RenderableType]:
    """The plan as renderables, section by section."""
    yield _title(plan)
    yield indented(_answer(plan))
    if plan.alternatives:
        yield heading("Best plans")
        yield indented(_alternatives(plan.alternatives))
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
    work = plan.inputs.workload
    degrees = plan.parallelism
    assumed = (
        f"{work.global_batch:,} x {work.sequence:,} tokens, {degrees.precision}, "
        f"{degrees.attention} attention, {work.optimizer}, "
        f"margin {format_bytes(work.memory_margin)}"
    )
    title = Text(f"{plan.inputs.model.name} on {plan.inputs.cluster.name} for {plan.target}\n")
    title.stylize("bold")
    title.append(f"assumes {assumed}", style="dim not bold")
    if plan.assumptions:
        title.append(
            f"\nand {len(plan.assumptions)} more that the plan lists (-v shows them)",
            style="dim not bold",
        )
    return title


def _answer(plan: Plan) -> Table:
    predicted = plan.predicted
    worst = _worst(predicted.devices)
    speed = (
        f"{format_duration(predicted.step_time_s)} a step, "
        f"{format_count(predicted.tokens_per_s)} tokens/s"
    )
    if predicted.mfu is not None:
        speed += f", MFU {predicted.mfu:.1%}"
    rows = [("step", f"{speed}  [{predicted.origin.letter}]")]
    if predicted.cost_per_step is not None and predicted.cost_per_million_tokens is not None:
        rows.append(
            (
                "money",
                f"{format_money(predicted.cost_per_step)} a step, "
                f"{format_money(predicted.cost_per_million_tokens)} a million tokens",
            )
        )
    else:
        rows.append(("money", "unknown: a node that is used has no price_per_hour"))
    rows.append(("optimum", _certificate(plan)))
    rows.append(
        (
            "worst device",
            f"{worst.node}:{worst.index} ({worst.gpu}): {format_bytes(worst.peak_memory_bytes)} of "
            f"{format_bytes(worst.capacity_bytes)}, {format_bytes(worst.headroom_bytes)} free",
        )
    )
    used = sum(len(stage.devices) for stage in plan.stages)
    idle = len(plan.search.idle_devices)
    rows.append(("devices", f"{used} used, {idle or 'none'} idle{_idle_names(plan)}"))
    return pairs(rows)


def _certificate(plan: Plan) -> str:
    certificate = plan.certificate
    if certificate.gap is None or certificate.lower_bound_s is None:
        return certificate.reason or "no search was made"
    looked = (
        f"{plan.search.seen:,} candidates, {sum(plan.search.pruned.values()):,} pruned, "
        f"{plan.search.scored:,} scored"
    )
    return (
        f"no plan of the {plan.search.space} space is faster than "
        f"{format_duration(certificate.lower_bound_s)} (gap {certificate.gap:.1%}); {looked}"
    )


def _idle_names(plan: Plan) -> str:
    nodes = sorted({device.node for device in plan.search.idle_devices})
    return f" (on {fold_hosts(nodes)})" if nodes else ""


def _worst(devices: Sequence[PredictedDevice]) -> PredictedDevice:
    return min(devices, key=lambda device: device.headroom_bytes)


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
            Text(_runs(entry.layers)),
            format_count(entry.tokens_per_s),
            format_duration(entry.step_time_s),
            Text(entry.bound_by),
            Text(entry.worst_device),
            free,
        )
    return made


def _runs(counts: Sequence[int]) -> str:
    """`10,10,6,6` as `10x2 6x2`."""
    parts = []
    for value, group in groupby(counts):
        length = len(list(group))
        parts.append(str(value) if length == 1 else f"{value}x{length}")
    return " ".join(parts)


def _stages(plan: Plan) -> Table:
    made = table(
        "stage",
        "devices",
        "GPU",
        "layers",
        "tp",
        "dp",
        "micro-batches",
        "forward",
        "backward",
        "",
        numbers=("stage", "layers", "tp", "dp", "micro-batches", "forward", "backward"),
        whole=("GPU",),
    )
    for number, (stage, predicted) in enumerate(
        zip(plan.stages, plan.predicted.stages, strict=True)
    ):
        layers = str(stage.layers) if len(stage.chunks) == 1 else f"{_runs(stage.chunks)}"
        batches = sorted({(item.micro_batches, item.micro_batch_size) for item in stage.replicas})
        made.add_row(
            str(number),
            Text(_devices(stage.devices)),
            Text(stage.gpu),
            layers,
            str(stage.tensor_parallel),
            str(len(stage.replicas)),
            " ".join(f"{count} x {size}" for count, size in batches),
            format_duration(predicted.forward_s),
            format_duration(predicted.backward_s),
            predicted.origin.letter,
        )
    return made


def _devices(devices: Sequence[PlanDevice]) -> str:
    by_node: dict[str, list[int]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device.index)
    by_indices: dict[tuple[int, ...], list[str]] = {}
    for node, indices in by_node.items():
        by_indices.setdefault(tuple(sorted(indices)), []).append(node)
    return " ".join(
        f"{fold_hosts(nodes)}:{_ranges(indices)}" for indices, nodes in by_indices.items()
    )


def _ranges(indices: Sequence[int]) -> str:
    """`0-3,6` for (0, 1, 2, 3, 6)."""
    parts: list[str] = []
    start = previous = indices[0]
    for index in [*indices[1:], None]:
        if index is not None and index == previous + 1:
            previous = index
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if index is not None:
            start = previous = index
    return ",".join(parts)


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
    margin = plan.inputs.workload.memory_margin
    by_stage = groupby(plan.predicted.devices, key=lambda device: device.stage)
    for stage, group in by_stage:
        device = _worst(list(group))
        share = device.peak_memory_bytes / device.capacity_bytes
        style, word = "green", ""
        if device.headroom_bytes < 0:
            style, word = "red", " does not fit"
        elif device.headroom_bytes < margin:
            style, word = "yellow", " below the margin"
        filled = min(BAR_WIDTH // 2, round(share * BAR_WIDTH / 2))
        bar = Text("█" * filled, style=style)
        bar.append("░" * (BAR_WIDTH // 2 - filled), style="dim")
        largest = sorted(device.items, key=lambda item: -item.memory_bytes)[:2]
        made.add_row(
            str(stage),
            Text(device.gpu),
            bar,
            format_bytes(device.peak_memory_bytes),
            format_bytes(device.capacity_bytes),
            format_bytes(device.headroom_bytes) + word,
            Text(", ".join(f"{i.name} {format_bytes(i.memory_bytes)}" for i in largest)),
        )
    return made


def _breakdown(plan: Plan) -> Table:
    made = table("", "seconds", "share", "", numbers=("seconds", "share"))
    total = plan.predicted.step_time_s
    for name, seconds in plan.predicted.breakdown_s.items():
        share = seconds / total
        if share < NEGLIGIBLE:
            continue
        made.add_row(
            _BREAKDOWN_LABELS.get(name, name),
            f"{seconds:,.3f}",
            f"{share:.1%}",
            Text("█" * max(1, round(share * BAR_WIDTH)), style="cyan"),
        )
    return made
