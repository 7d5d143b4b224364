"""Which limit leaves no plan, and what the job would need: the same search with fewer limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hetcli.errors import InfeasibleError
from hetcli.search.best import best_plan
from hetcli.search.families import Problem
from hetcli.search.found import Scored
from hetcli.units import format_count, format_money

__all__ = ["unsatisfied"]


def unsatisfied(problem: Problem) -> InfeasibleError | None:
    """Why the user's limits on money, speed, nodes and devices leave nothing.

    None when they are not the reason: then nothing fits at all.
    """
    options = problem.options
    name = problem.model.name
    no_speed: dict[str, Any] = {"min_steps_per_s": None, "min_tokens_per_s": None}
    no_limits = {**no_speed, "max_cost_per_step": None}
    dear = options.max_cost_per_step is not None
    slow = replace(options, **no_speed) != options
    if dear and (best := best_plan(problem, objective="cost", max_cost_per_step=None)):
        cost = best.prediction.cost_per_step
        assert cost is not None
        assert options.max_cost_per_step is not None
        return InfeasibleError(
            f"no plan of {name} costs at most {format_money(options.max_cost_per_step)} a step",
            why=f"the cheapest within the other limits costs {format_money(cost)} and does "
            f"{_speed(best)}",
            fix=f"--max-cost-per-step {_rounded(cost, math.ceil):g}",
        )
    if slow and (best := best_plan(problem, objective="throughput", **no_speed)):
        rate = _rounded(1 / best.prediction.step_time_s, math.floor)
        return InfeasibleError(
            f"no plan of {name} is as fast as asked for",
            why=f"the fastest within the other limits does {_speed(best)}",
            fix=f"--min-throughput {rate:g}steps/s",
        )
    if dear and slow and (best := best_plan(problem, objective="throughput", **no_limits)):
        return InfeasibleError(
            f"no plan of {name} satisfies either the limit on money or the one on speed",
            why=f"the fastest of all does {_speed(best)}",
            fix="loosen both",
        )
    free: dict[str, Any] = {"max_nodes": None, "quotas": ()}
    if replace(options, **free) != options and (best := best_plan(problem, **no_limits, **free)):
        devices = best.configuration.devices
        nodes = len({device.node for device in devices})
        return InfeasibleError(
            f"no plan of {name} keeps the limits on nodes and devices",
            why=f"without them the best one uses {len(devices)} devices on {nodes} nodes",
            fix="raise --max-nodes or the quotas",
        )
    return None


def _speed(best: Scored) -> str:
    prediction = best.prediction
    return (
        f"{format_count(prediction.tokens_per_s)} tokens/s ({1 / prediction.step_time_s:.3g} "
        "steps/s)"
    )


def _rounded(value: float, to_whole: Callable[[float], int]) -> float:
    """The value with three significant digits, rounded so that the plan keeps the limit."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{to_whole(value / unit) * unit:.3g}")
