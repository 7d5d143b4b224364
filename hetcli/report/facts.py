"""What every form of a report says of a plan, in words: picked and formatted, not computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from hetcli.spec.hosts import fold_hosts
from hetcli.spec.plan import Comparison, Plan, PlanDevice, PredictedDevice
from hetcli.units import format_bytes, format_count, format_duration, format_money

__all__ = [
    "BREAKDOWN_LABELS",
    "NEGLIGIBLE",
    "Fit",
    "MemoryClass",
    "answer_rows",
    "assumed",
    "breakdown",
    "certificate",
    "change",
    "comparisons",
    "device_names",
    "fit_of",
    "free_or_short",
    "idle_nodes",
    "item_label",
    "memory_classes",
    "micro_batches",
    "room",
    "runs",
    "shares",
    "title",
    "with_rest",
    "worst_device",
]

# A share of the step that would be printed as 0.0 % is left out; plan.json has it.
NEGLIGIBLE: Final = 0.0005

BREAKDOWN_LABELS: Final = {
    "compute": "compute",
    "tensor_parallel": "tensor parallel",
    "context_parallel": "context parallel",
    "expert_parallel": "expert parallel",
    "pipeline_p2p": "pipeline transfers",
    "pipeline_bubble": "pipeline bubble",
    "data_parallel": "gradient sync, exposed",
    "optimizer": "optimizer",
    "offload": "offload",
    "rest": "waits for other stages",
}

# Whether a device holds its share; anything but the first is said in words, not by colour alone.
Fit = Literal["fits", "below the margin", "does not fit"]


@dataclass(frozen=True, slots=True)
class MemoryClass:
    """Devices of one stage with the same budget; `device` stands for all of them."""

    device: PredictedDevice
    devices: tuple[PlanDevice, ...]
    fit: Fit


def title(plan: Plan) -> str:
    """What is planned, where and for whom."""
    return f"{plan.inputs.model.name} on {plan.inputs.cluster.name} for {plan.target}"


def assumed(plan: Plan) -> str:
    """The choices that every number rests on."""
    work, degrees = plan.inputs.workload, plan.parallelism
    adapters = plan.inputs.model.adapters
    fitted = plan.inputs.cluster.hardware
    rates = "" if fitted is None else f", rates of {fitted.name}"
    if plan.inputs.cluster.efficiency is not None:
        rates += ", efficiencies fitted to runs"
    trained = "" if adapters is None else f"adapters of rank {adapters.rank} alone are trained, "
    return trained + (
        f"{work.global_batch:,} x {work.sequence:,} tokens, {degrees.precision}, "
        f"{degrees.attention} attention, {work.optimizer}, "
        f"margin {format_bytes(work.memory_margin)}{rates}"
    )


def answer_rows(plan: Plan) -> list[tuple[str, str]]:
    """The answer, line by line: a label and what it says."""
    predicted = plan.predicted
    worst = worst_device(predicted.devices)
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
    if predicted.training_time_s is not None:
        whole = f"{format_duration(predicted.training_time_s)} for the whole token budget"
        if predicted.training_cost is not None:
            whole += f", {format_money(predicted.training_cost)}"
        rows.append(("training", whole))
    rows.append(("optimum", certificate(plan)))
    if mixed := shares(plan):
        rows.append(("mixing", mixed))
    rows.append(
        (
            "worst device",
            f"{worst.node}:{worst.index} ({worst.gpu}): {format_bytes(worst.peak_memory_bytes)} of "
            f"{format_bytes(worst.capacity_bytes)}, {room(worst.headroom_bytes)}",
        )
    )
    used = sum(len(stage.devices) for stage in plan.stages)
    idle = len(plan.search.idle_devices)
    where = f" (on {idle_nodes(plan)})" if idle else ""
    rows.append(("devices", f"{used:,} used, {idle or 'none'} idle{where}"))
    return rows


def certificate(plan: Plan) -> str:
    """How far the plan can be from the best one, and what was looked at."""
    found = plan.certificate
    if found.gap is None or found.lower_bound_s is None:
        return found.reason or "no search was made"
    looked = (
        f"{plan.search.seen:,} candidates, {sum(plan.search.pruned.values()):,} pruned, "
        f"{plan.search.scored:,} scored"
    )
    return (
        f"no plan of the {plan.search.space} space is faster than "
        f"{format_duration(found.lower_bound_s)} (gap {found.gap:.1%}); {looked}"
    )


_COMPARED: Final = {
    "single-type": "only {gpu}",
    "with-type": "with {gpu} too",
    "uniform-layers": "even layers",
    "free": "no restriction of the target",
}


def comparisons(plan: Plan) -> Iterator[tuple[str, Comparison]]:
    """Every comparison with its label."""
    for entry in plan.comparisons.entries if plan.comparisons else ():
        yield _COMPARED[entry.kind].format(gpu=entry.gpu), entry


def shares(plan: Plan) -> str:
    """How much of the cards' own speed the plan brings; empty where that is not known."""
    found = plan.comparisons
    if found is None or found.share_of_theoretical is None or found.hetero_speedup_ratio is None:
        return ""
    return (
        f"{found.share_of_theoretical:.1%} of what all cards reach among their own kind, "
        f"{found.hetero_speedup_ratio:.1%} of the kinds' own best plans together"
    )


def idle_nodes(plan: Plan) -> str:
    """The nodes with a device that the plan leaves idle, folded; empty without any."""
    return fold_hosts(sorted({device.node for device in plan.search.idle_devices}))


def worst_device(devices: Sequence[PredictedDevice]) -> PredictedDevice:
    """The device with the least memory left: the headline of every plan."""
    return min(devices, key=lambda device: device.headroom_bytes)


def room(headroom_bytes: int) -> str:
    """What is free on a device, or how much is missing."""
    if headroom_bytes < 0:
        return f"does not fit: short by {format_bytes(-headroom_bytes)}"
    return f"{format_bytes(headroom_bytes)} free"


def free_or_short(headroom_bytes: int) -> str:
    """The same for a table: what is free, or `short` of how much."""
    if headroom_bytes < 0:
        return f"short {format_bytes(-headroom_bytes)}"
    return format_bytes(headroom_bytes)


def fit_of(device: PredictedDevice, margin: int) -> Fit:
    """Whether a device holds its share and `margin` bytes more."""
    if device.headroom_bytes < 0:
        return "does not fit"
    return "below the margin" if device.headroom_bytes < margin else "fits"


def memory_classes(plan: Plan) -> Iterator[MemoryClass]:
    """The devices of each stage, alike ones together, the fullest first."""
    margin = plan.inputs.workload.memory_margin
    for _, group in groupby(plan.predicted.devices, key=lambda device: device.stage):
        alike: dict[object, list[PredictedDevice]] = {}
        for device in group:
            key = (device.gpu, device.items, device.capacity_bytes)
            alike.setdefault(key, []).append(device)
        for members in sorted(alike.values(), key=lambda each: each[0].headroom_bytes):
            names = tuple(PlanDevice(node=each.node, index=each.index) for each in members)
            yield MemoryClass(members[0], names, fit_of(members[0], margin))


def item_label(name: str) -> str:
    """`communication_buffers` as people write it."""
    return name.replace("_", " ")


def breakdown(seconds: dict[str, float], total: float) -> list[tuple[str, str, float, float]]:
    """(name, label, seconds, share of `total`) of every part that can be seen."""
    return [
        (name, BREAKDOWN_LABELS.get(name, name), value, value / total)
        for name, value in seconds.items()
        if value / total >= NEGLIGIBLE
    ]


def change(share: float) -> str:
    """`+3.1%`, and no sign on what is nothing."""
    text = f"{share:+.1%}"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def with_rest(seconds: dict[str, float], total: float) -> dict[str, float]:
    """The parts of a stage's step and what is left of it: waiting for slower stages' ends."""
    return {**seconds, "rest": max(0.0, total - sum(seconds.values()))}


def micro_batches(plan: Plan, stage: int) -> str:
    """`32 x 2`: how many micro-batches of how many sequences a stage's replicas run."""
    replicas = plan.stages[stage].replicas
    pairs = sorted({(each.micro_batches, each.micro_batch_size) for each in replicas})
    return " ".join(f"{count} x {size}" for count, size in pairs)


def runs(counts: Sequence[int]) -> str:
    """`10,10,6,6` as `10x2 6x2`."""
    parts = []
    for value, group in groupby(counts):
        length = len(list(group))
        parts.append(str(value) if length == 1 else f"{value}x{length}")
    return " ".join(parts)


def device_names(devices: Sequence[PlanDevice]) -> str:
    """`a100-[0-1]:0-7`: nodes whose devices have the same indices together."""
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
