"""A plan run again in the simulator: when each device does what, and on other hardware."""

from __future__ import annotations

from hetcli.perf.hardware import Hardware
from hetcli.perf.prediction import Breakdown
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.perf.timeline import StepTimeline, step_timeline
from hetcli.search.document import configuration_of, given_document
from hetcli.spec.hardware import HardwareFile
from hetcli.spec.plan import Plan

__all__ = ["on_fitted", "replay"]


def on_fitted(plan: Plan, fitted: HardwareFile) -> Plan:
    """The same configuration with fitted rates in the place of the shipped ones.

    No search is made: another plan may be the best one now, so the gap is unknown.
    """
    given = plan.inputs
    cluster = given.cluster.model_copy(update={"hardware": fitted})
    hardware = resolve(cluster)
    configuration = configuration_of(plan)
    return given_document(
        configuration,
        predict(configuration, model=given.model, workload=given.workload, hardware=hardware),
        cluster=cluster,
        model=given.model,
        workload=given.workload,
        hardware=hardware,
        target=plan.target,
        reason=f"no search was made with rates of {fitted.name}",
    )


def replay(plan: Plan, hardware: Hardware) -> StepTimeline:
    """The timeline of one step of `plan` on the hardware that it was made for."""
    return step_timeline(
        configuration_of(plan),
        model=plan.inputs.model,
        hardware=hardware,
        breakdown=Breakdown(**plan.predicted.breakdown_s),
    )
