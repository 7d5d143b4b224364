"""What a search found: plans with their predictions, and what became of every candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hetcli.perf.configuration import Configuration
from hetcli.perf.prediction import Prediction
from hetcli.perf.step import predict
from hetcli.search.families import Problem
from hetcli.search.layout import Layout, configuration
from hetcli.search.requirements import Requirements

__all__ = ["Found", "Scored", "layout_key", "predicted"]

# Plans that are predicted in full for every plan of the ranking.
SPARE = 2


@dataclass(frozen=True, slots=True)
class Scored:
    """A plan with its prediction; `value` is what is minimised (seconds, or dollars a step)."""

    value: float
    layout: Layout
    configuration: Configuration
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search, best plan first; no plan of the space beats `bound`.

    Every candidate that was `seen` was `scored`, or stands in `pruned` under the rule that left it
    out.
    """

    plans: tuple[Scored, ...]
    bound: float
    seen: int
    scored: int
    pruned: Counter[str]
    complete: bool
    interrupted: bool = False


def predicted(
    problem: Problem, requirements: Requirements, best: Iterable[tuple[float, Layout]]
) -> tuple[Scored, ...]:
    """The best of the given plans, predicted in full and ranked by that.

    Those are left out whose whole prediction does not fit or keep the requirements.
    """
    ranked = sorted(best, key=lambda plan: (plan[0], layout_key(plan[1])))
    plans: list[Scored] = []
    for value, layout in ranked[: SPARE * problem.options.top]:
        whole = configuration(layout, problem.workload)
        prediction = predict(
            whole, model=problem.model, workload=problem.workload, hardware=problem.hardware
        )
        if prediction.worst_device.headroom_bytes < problem.workload.memory_margin:
            continue
        if requirements.broken_by(whole, prediction) is not None:
            continue
        value = prediction.step_time_s
        if problem.workload.objective == "cost":
            assert prediction.cost_per_step is not None
            value = prediction.cost_per_step
        plans.append(Scored(value, layout, whole, prediction))
    return tuple(sorted(plans, key=lambda plan: (plan.value, layout_key(plan.layout))))


def layout_key(layout: Layout) -> tuple[object, ...]:
    """A total order of layouts, so that equal values are ranked the same way every time."""
    return (
        layout.stages,
        layout.degrees,
        tuple((pool.index, number) for pool, number in layout.runs),
        layout.recompute,
        layout.layers,
    )
