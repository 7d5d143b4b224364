"""The one best plan of a problem, for those who ask many questions and need no ranking."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hetcli.search.families import Problem
from hetcli.search.found import Scored
from hetcli.search.grid import Grid

__all__ = ["best_plan"]


def best_plan(problem: Problem, *, objective: str | None = None, **changes: Any) -> Scored | None:
    """The best plan with some options changed; None when nothing fits.

    `changes` are fields of the options; `objective` replaces the workload's.
    """
    workload = problem.workload
    if objective is not None:
        workload = workload.model_copy(update={"objective": objective})
    options = replace(problem.options, top=1, **changes)
    plans = Grid(replace(problem, workload=workload, options=options)).run().plans
    return plans[0] if plans else None
