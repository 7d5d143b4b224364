"""Which limit leaves no plan, and what the job would need: the same search with fewer limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hetcli.errors import InfeasibleError
from hetcli.search.families import Problem
from hetcli.search.grid import Grid, Scored
from hetcli.search.options import PlanOptions
from hetcli.units import format_count, format_money

__all__ = ["unsatisfied"]


def unsatisfied(problem: Problem) -> InfeasibleError | None:
    """Why the user's limits on money, speed, nodes and devices leave nothing.

    None when they are not the reason: then nothing fits at all.
    """
    options = problem.options
    name = problem.model.name
    dear = replace(options, max_cost_per_step=None)
    slow = replace(options, min_steps_per_s=None, min_tokens_per_s=None)
    either = replace(dear, min_steps_per_s=None, min_tokens_per_s=None)
    if dear != options and (best := _best(problem, dear, cheapest=True)):
        cost = best.prediction.cost_per_step
        assert cost is not None
        assert options.max_cost_per_step is not None
        return InfeasibleError(
            f"no plan of {name} costs at most {format_money(options.max_cost_per_step)} a step",
            why=f"the cheapest within the other limits costs {format_money(cost)} and does "
            f"{_speed(best)}",
            fix=f"--max-cost-per-step {_rounded(cost, math.ceil):g}",
        )
    if slow != options and (best := _best(problem, slow)):
        rate = _rounded(1 / best.prediction.step_time_s, math.floor)
        return InfeasibleError(
            f"no plan of {name} is as fast as asked for",
            why=f"the fastest within the other limits does {_speed(best)}",
            fix=f"--min-throughput {rate:g}steps/s",
        )
    if either not in (options, dear, slow) and (best := _best(problem, either)):
        return InfeasibleError(
            f"no plan of {name} satisfies either the limit on money or the one on speed",
            why=f"the fastest of all does {_speed(best)}",
            fix="loosen both",
        )
    free = replace(options, max_nodes=None, quotas=())
    if free != options and (best := _best(problem, replace(either, max_nodes=None, quotas=()))):
        devices = best.configuration.devices
        nodes = len({device.node for device in devices})
        return InfeasibleError(
            f"no plan of {name} keeps the limits on nodes and devices",
            why=f"without them the best one uses {len(devices)} devices on {nodes} nodes",
            fix="raise --max-nodes or the quotas",
        )
    return None


def _best(problem: Problem, options: PlanOptions, *, cheapest: bool = False) -> Scored | None:
    """The best plan within other limits, or the cheapest one."""
    workload = problem.workload
    if cheapest:
        workload = workload.model_copy(update={"objective": "cost"})
    found = Grid(replace(problem, workload=workload, options=replace(options, top=1))).run()
    return found.plans[0] if found.plans else None


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
