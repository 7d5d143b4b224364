"""Plans side by side, each against the first one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from hetcli.report import facts
from hetcli.report.tables import heading, indented, table
from hetcli.spec.base import SCHEMA_VERSION
from hetcli.spec.plan import Plan
from hetcli.units import format_count, format_duration, format_money

__all__ = ["Comparison", "Row", "compare", "comparison_document", "comparison_view"]


@dataclass(frozen=True, slots=True)
class Row:
    """One property of every plan; `from_files`: the values hold names from files.

    `changes` are relative to the first plan, and empty where they would say nothing.
    """

    label: str
    values: tuple[str, ...]
    changes: tuple[str, ...]
    from_files: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows of a comparison; `names` are the files' names."""

    names: tuple[str, ...]
    rows: tuple[Row, ...]


def compare(plans: Sequence[tuple[str, Plan]]) -> Comparison:
    """Inputs only where they differ; then degrees, the answer, memory and where the time goes."""
    found = [plan for _, plan in plans]
    rows = [*_inputs(found), *_shape(found), *_answer(found), *_breakdown(found)]
    return Comparison(tuple(name for name, _ in plans), tuple(rows))


def comparison_view(comparison: Comparison) -> Iterator[RenderableType]:
    """One table."""
    yield heading(f"{len(comparison.names)} plans; changes are against the first")
    made = table("", *comparison.names)
    for row in comparison.rows:
        cells = (
            Text(f"{value}  {change}" if change else value)
            for value, change in zip(row.values, row.changes, strict=True)
        )
        made.add_row(Text(row.label), *cells)
    yield indented(made)


def comparison_document(plans: Sequence[tuple[str, Plan]]) -> dict[str, Any]:
    """The same as plain data: what each plan predicts and how its step differs from the first's."""
    first = plans[0][1].predicted.step_time_s
    return {
        "schema_version": SCHEMA_VERSION,
        "plans": [
            {
                "name": name,
                "model": plan.inputs.model.name,
                "cluster": plan.inputs.cluster.name,
                "target": plan.target,
                "parallelism": plan.parallelism.model_dump(mode="json"),
                "layers": [stage.layers for stage in plan.stages],
                "devices": sum(len(stage.devices) for stage in plan.stages),
                "step_time_s": plan.predicted.step_time_s,
                "step_time_change": plan.predicted.step_time_s / first - 1,
                "tokens_per_s": plan.predicted.tokens_per_s,
                "mfu": plan.predicted.mfu,
                "cost_per_step": plan.predicted.cost_per_step,
                "gap": plan.certificate.gap,
                "headroom_bytes": facts.worst_device(plan.predicted.devices).headroom_bytes,
                "breakdown_s": plan.predicted.breakdown_s,
                "origin": plan.predicted.origin.value,
            }
            for name, plan in plans
        ],
    }


def _words(label: str, values: Sequence[str], *, from_files: bool = False) -> Row:
    return Row(label, tuple(values), ("",) * len(values), from_files)


def _numbers(label: str, values: Sequence[float | None], show: Callable[[float], str]) -> Row:
    first = values[0]

    def change(value: float | None) -> str:
        if not first or value is None or value == first:
            return ""
        return f"{value / first - 1:+.1%}"

    return Row(
        label,
        tuple("unknown" if value is None else show(value) for value in values),
        tuple(change(value) for value in values),
    )


def _inputs(plans: Sequence[Plan]) -> Iterator[Row]:
    """Inputs that are not the same in all plans."""
    named = (
        ("model", [plan.inputs.model.name for plan in plans]),
        ("cluster", [plan.inputs.cluster.name for plan in plans]),
        ("assumes", [facts.assumed(plan) for plan in plans]),
    )
    for label, values in named:
        if len(set(values)) > 1:
            yield _words(label, values, from_files=True)
    clusters = [plan.inputs.cluster for plan in plans]
    if len({each.name for each in clusters}) == 1 and any(each != clusters[0] for each in clusters):
        same = ["as the first" if each == clusters[0] else "changed" for each in clusters]
        yield _words("cluster file", same)


def _shape(plans: Sequence[Plan]) -> Iterator[Row]:
    degrees = [plan.parallelism for plan in plans]
    yield _words("target", [plan.target for plan in plans])
    yield _words(
        "tp pp dp",
        [
            f"{each.tensor_parallel} {each.pipeline_parallel} {each.data_parallel or 'mixed'}"
            for each in degrees
        ],
    )
    for label, values in (
        ("context parallel", [each.context_parallel for each in degrees]),
        ("expert parallel", [each.expert_parallel for each in degrees]),
        ("virtual stages", [each.virtual_stages for each in degrees]),
        ("micro-batch", [each.micro_batch_size for each in degrees]),
        ("ZeRO stage", [each.zero_stage for each in degrees]),
    ):
        if len(set(values)) > 1 or label == "micro-batch":
            yield _words(label, [str(value) for value in values])
    for word, texts in (
        ("schedule", [each.schedule for each in degrees]),
        ("precision", [each.precision for each in degrees]),
    ):
        yield _words(word, texts)
    yield _words("layers", [facts.runs([s.layers for s in plan.stages]) for plan in plans])
    used = [sum(len(stage.devices) for stage in plan.stages) for plan in plans]
    yield _numbers("devices", used, lambda value: f"{value:.0f}")


def _answer(plans: Sequence[Plan]) -> Iterator[Row]:
    predicted = [plan.predicted for plan in plans]
    yield _numbers("step time", [each.step_time_s for each in predicted], format_duration)
    yield _numbers("tokens/s", [each.tokens_per_s for each in predicted], format_count)
    yield _numbers("MFU", [each.mfu for each in predicted], lambda value: f"{value:.1%}")
    yield _numbers("a step costs", [each.cost_per_step for each in predicted], format_money)
    gaps = [plan.certificate.gap for plan in plans]
    yield _words("gap", ["unknown" if gap is None else f"{gap:.1%}" for gap in gaps])
    worst = [facts.worst_device(each.devices) for each in predicted]
    yield _words("worst device", [f"{e.node}:{e.index}" for e in worst], from_files=True)
    yield _words("free there", [facts.free_or_short(each.headroom_bytes) for each in worst])
    yield _words("origin", [each.origin.value for each in predicted])


def _breakdown(plans: Sequence[Plan]) -> Iterator[Row]:
    for name, label in facts.BREAKDOWN_LABELS.items():
        seconds = [plan.predicted.breakdown_s.get(name, 0.0) for plan in plans]
        if any(
            value / plan.predicted.step_time_s >= facts.NEGLIGIBLE
            for value, plan in zip(seconds, plans, strict=True)
        ):
            yield _numbers(label, seconds, format_duration)
