"""One plan in all forms: the page, Markdown, the trace, the terminal, and plain data."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.console import Console, RenderableType

from hetcli.report.markdown import plan_markdown
from hetcli.report.page import report_page
from hetcli.report.pareto import trade
from hetcli.report.step_view import step_view, trade_view
from hetcli.report.steps import step_data
from hetcli.report.terminal import plan_view
from hetcli.report.trace import trace_document
from hetcli.spec.base import SCHEMA_VERSION
from hetcli.spec.explanation import Explanation
from hetcli.spec.observation import Observation
from hetcli.spec.plan import Plan
from hetcli.spec.profile import Profile
from hetcli.spec.trial import Trial
from hetcli.units import format_duration

if TYPE_CHECKING:
    from hetcli.perf.hardware import Hardware
    from hetcli.perf.timeline import StepTimeline

__all__ = ["Report"]


def _data(document: BaseModel | None) -> Any:
    return None if document is None else document.model_dump(mode="json")


@dataclass(frozen=True)
class Report:
    """A plan, its step as the simulator runs it, and what the page shows beside it."""

    plan: Plan
    step: StepTimeline
    hardware: Hardware
    profiles: tuple[Profile, ...] = ()
    explanation: Explanation | None = None
    trial: Trial | None = None
    observation: Observation | None = None

    @property
    def disagreement(self) -> str:
        """Empty, or how this version's simulation differs from what the plan promises."""
        promised = self.plan.predicted.step_time_s
        # One microsecond is what the timeline shows.
        if abs(self.step.step_s - promised) <= 1e-6:
            return ""
        return (
            f"the plan predicts {format_duration(promised)} a step, this version of hetcli "
            f"simulates {format_duration(self.step.step_s)}: plan again"
        )

    def view(self, *, verbose: bool = False) -> Iterator[RenderableType]:
        """The terminal's form."""
        yield from plan_view(self.plan, verbose=verbose)
        yield from step_view(step_data(self.step))
        yield from trade_view(trade(self.plan))

    def text(self) -> str:
        """The terminal's form without colour."""
        console = Console(
            file=io.StringIO(), width=100, no_color=True, highlight=False, emoji=False
        )
        with console.capture() as captured:
            for renderable in self.view():
                console.print(renderable)
        return captured.get()

    def html(self) -> str:
        """The page."""
        return report_page(
            self.plan,
            self.step,
            self.hardware,
            profiles=self.profiles,
            explanation=self.explanation,
            trial=self.trial,
            observation=self.observation,
        )

    def markdown(self) -> str:
        """Markdown for issue trackers."""
        return plan_markdown(self.plan, step_data(self.step), self.explanation)

    def trace(self) -> str:
        """The trace as JSON text."""
        document = trace_document(self.plan, self.step)
        return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"

    @property
    def document(self) -> dict[str, Any]:
        """The same as plain data."""
        found = trade(self.plan)
        return {
            "schema_version": SCHEMA_VERSION,
            "plan": self.plan.model_dump(mode="json"),
            "timeline": step_data(self.step),
            "explanation": _data(self.explanation),
            "profiles": [_data(each) for each in self.profiles],
            "trial": _data(self.trial),
            "observation": _data(self.observation),
            "trade": {
                "against": found.against,
                "plans": [
                    {
                        "rank": each.rank,
                        "mapping": each.mapping,
                        "tokens_per_s": each.tokens_per_s,
                        "cost_per_step"
                        if found.against == "cost"
                        else "headroom_bytes": each.value,
                        "best": each.best,
                    }
                    for each in found.choices
                ],
            },
        }
