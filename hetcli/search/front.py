"""Time against money: the fastest plan of every budget between the cheapest plan and the fastest.

The fastest plan within a budget is beaten by nothing in both: whatever costs no more keeps the
budget, and would be the answer if it were faster.
"""

from __future__ import annotations

from dataclasses import replace

from hetcli.search.families import Problem
from hetcli.search.grid import Grid, Scored

__all__ = ["front"]

# Budgets looked at, in equal ratios: enough to draw a curve.
BUDGETS = 8


def front(problem: Problem, fastest: Scored) -> list[Scored]:
    """Plans of which none is beaten in both time and money, fastest first.

    Args:
        problem: with or without limits of its own; its objective does not matter.
        fastest: the fastest plan of the problem. Every device in the cluster must have a price.
    """
    cheapest = _search(problem, "cost", None)
    if cheapest is None:
        return [fastest]
    found = [fastest]
    ratio = (_cost(cheapest) / _cost(fastest)) ** (1 / BUDGETS)
    while ratio < 1 and (budget := _cost(found[-1]) * ratio) > _cost(cheapest):
        within = _search(problem, "throughput", budget)
        if within is None:
            break
        found.append(within)
    if _cost(cheapest) < _cost(found[-1]):
        found.append(cheapest)
    return found


def _cost(plan: Scored) -> float:
    cost = plan.prediction.cost_per_step
    assert cost is not None
    return cost


def _search(problem: Problem, objective: str, budget: float | None) -> Scored | None:
    options = replace(problem.options, top=1)
    if budget is not None:
        options = replace(options, max_cost_per_step=budget)
    workload = problem.workload.model_copy(update={"objective": objective})
    plans = Grid(replace(problem, workload=workload, options=options)).run().plans
    return plans[0] if plans else None
