"""Time against money: the fastest plan of every budget between the cheapest plan and the fastest.

The fastest plan within a budget is beaten by nothing in both: whatever costs no more keeps the
budget, and would be the answer if it were faster.
"""

from __future__ import annotations

from hetcli.search.best import best_plan
from hetcli.search.families import Problem
from hetcli.search.found import Scored

__all__ = ["front"]

# Budgets looked at, in equal ratios: enough to draw a curve.
BUDGETS = 8


def front(problem: Problem, fastest: Scored) -> list[Scored]:
    """Plans of which none is beaten in both time and money, fastest first.

    Args:
        problem: with or without limits of its own; its objective does not matter.
        fastest: the fastest plan of the problem. Every device in the cluster must have a price.
    """
    cheapest = best_plan(problem, objective="cost")
    if cheapest is None:
        return [fastest]
    found = [fastest]
    ratio = (_cost(cheapest) / _cost(fastest)) ** (1 / BUDGETS)
    while ratio < 1 and (budget := _cost(found[-1]) * ratio) > _cost(cheapest):
        within = best_plan(problem, objective="throughput", max_cost_per_step=budget)
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
