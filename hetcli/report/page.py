"""report.html: one file that explains a plan, offline, to those who plan and to those who pay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup

from hetcli import units
from hetcli.report import facts
from hetcli.report.drawing import percent
from hetcli.report.lost import why_slower
from hetcli.report.measured import measured_node
from hetcli.report.origins import sources
from hetcli.report.pareto import trade
from hetcli.report.places import drawn_links, drawn_places
from hetcli.report.scatter import scatter
from hetcli.report.steps import step_data
from hetcli.shipped import shipped_folder
from hetcli.spec.explanation import Explanation
from hetcli.spec.observation import Observation
from hetcli.spec.plan import Plan
from hetcli.spec.profile import Profile
from hetcli.spec.trial import Trial

if TYPE_CHECKING:
    from hetcli.perf.hardware import Hardware
    from hetcli.perf.timeline import StepTimeline

__all__ = ["MAX_DRAWN_WORKS", "report_page"]

# So many works and their messages are about 400 kB of the page; of longer steps it shows the start
# and the end. The trace has everything.
MAX_DRAWN_WORKS: Final = 8_000


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of a bar: where it starts and how long it is, in percent, and what it stands for."""

    name: str
    label: str
    text: str
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar with a caption; `limits` are (percent, what they mean) marks on it."""

    label: str
    text: str
    segments: tuple[_Segment, ...]
    limits: tuple[tuple[float, str], ...] = ()
    fit: facts.Fit = "fits"


def report_page(
    plan: Plan,
    step: StepTimeline,
    hardware: Hardware,
    *,
    profiles: Sequence[Profile] = (),
    explanation: Explanation | None = None,
    trial: Trial | None = None,
    observation: Observation | None = None,
) -> str:
    """The page as text: no file beside it, no network; names from files are escaped.

    An explanation adds what would make the plan faster, a trial what a few real steps took, and an
    observation what a framework's log says.
    """
    template = _environment().get_template("page.html.j2")
    memory = _memory_bars(plan)
    return template.render(
        plan=plan,
        title=facts.title(plan),
        assumed=facts.assumed(plan),
        certificate=facts.certificate(plan),
        worst=facts.worst_device(plan.predicted.devices),
        idle=facts.idle_nodes(plan),
        used=sum(len(stage.devices) for stage in plan.stages),
        places=drawn_places(plan, hardware),
        links=_link_bars(hardware),
        step=step_data(step, limit=MAX_DRAWN_WORKS),
        replayed=step.step_s,
        memory=memory,
        items=_names(memory),
        whole=_time_bar("the whole step", plan.predicted.breakdown_s, plan.predicted.step_time_s),
        stage_times=[
            _time_bar(f"stage {stage.stage}", stage.breakdown_s, plan.predicted.step_time_s)
            for stage in plan.predicted.stages
        ],
        trade=trade(plan),
        scatter=scatter(trade(plan)),
        why_slower=why_slower,
        sources=sources(plan, hardware),
        measured=[measured_node(profile) for profile in profiles],
        explanation=explanation,
        trial=trial,
        observation=observation,
        facts=facts,
        units=units,
    )


def _link_bars(hardware: Hardware) -> list[tuple[Any, float]]:
    """Links with the share of the fastest one's rate."""
    links = drawn_links(hardware)
    fastest = max((link.bytes_per_s for link in links), default=1.0)
    return [(link, percent(link.bytes_per_s, fastest)) for link in links]


def _memory_bars(plan: Plan) -> list[_Bar]:
    """A bar for the devices of each stage with the same budget, all on one scale."""
    classes = list(facts.memory_classes(plan))
    margin = plan.inputs.workload.memory_margin
    scale = max(max(e.device.capacity_bytes, e.device.peak_memory_bytes) for e in classes)
    bars = []
    for each in classes:
        device = each.device
        names = facts.device_names(each.devices)
        bars.append(
            _Bar(
                label=f"stage {device.stage}, {len(each.devices)} x {device.gpu} ({names})",
                text=f"{units.format_bytes(device.peak_memory_bytes)} of "
                f"{units.format_bytes(device.capacity_bytes)}, "
                f"{units.format_bytes(device.headroom_bytes)} free",
                segments=_segments(
                    [
                        (
                            item.name,
                            facts.item_label(item.name),
                            f"{units.format_bytes(item.memory_bytes)} [{item.origin.letter}]",
                            item.memory_bytes,
                        )
                        for item in device.items
                    ],
                    scale,
                ),
                limits=(
                    (percent(device.capacity_bytes - margin, scale), "margin"),
                    (percent(device.capacity_bytes, scale), "limit of the card"),
                ),
                fit=each.fit,
            )
        )
    return bars


def _time_bar(label: str, seconds: dict[str, float], total: float) -> _Bar:
    parts = facts.breakdown(facts.with_rest(seconds, total), total)
    return _Bar(
        label=label,
        text=", ".join(f"{name} {share:.1%}" for _, name, _, share in parts),
        segments=_segments(
            [
                (name, text, f"{units.format_duration(value)}, {share:.1%}", value)
                for name, text, value, share in parts
            ],
            total,
        ),
    )


def _segments(parts: list[tuple[str, str, str, float]], scale: float) -> tuple[_Segment, ...]:
    segments, start = [], 0.0
    for name, label, text, value in parts:
        if value > 0:
            segments.append(
                _Segment(name, label, text, percent(start, scale), percent(value, scale))
            )
            start += value
    return tuple(segments)


def _names(bars: list[_Bar]) -> dict[str, str]:
    """Every item of the bars with its label, in order of appearance."""
    return {part.name: part.label for bar in bars for part in bar.segments}


@cache
def _environment() -> jinja2.Environment:
    folder = shipped_folder("templates") / "report"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "as_bytes": units.format_bytes,
        "as_count": units.format_count,
        "as_duration": units.format_duration,
        "as_money": units.format_money,
        "as_rate": units.format_rate,
        "as_flops": units.format_flops,
        "embedded": _embedded,
    }
    # The page's own style and script go in as they are.
    environment.globals["style"] = Markup((folder / "page.css").read_text("utf-8"))
    environment.globals["script"] = Markup((folder / "page.js").read_text("utf-8"))
    return environment


def _embedded(data: Any) -> Markup:
    """JSON that no content can end early: `<`, `>` and `&` as escapes."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
