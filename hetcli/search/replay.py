"""A plan run again in the simulator: when each of its devices does what."""

from __future__ import annotations

from hetcli.perf.hardware import Hardware
from hetcli.perf.prediction import Breakdown
from hetcli.perf.timeline import StepTimeline, step_timeline
from hetcli.search.document import configuration_of
from hetcli.spec.plan import Plan

__all__ = ["replay"]


def replay(plan: Plan, hardware: Hardware) -> StepTimeline:
    """The timeline of one step of `plan` on the hardware that it was made for."""
    return step_timeline(
        configuration_of(plan),
        model=plan.inputs.model,
        hardware=hardware,
        breakdown=Breakdown(**plan.predicted.breakdown_s),
    )
