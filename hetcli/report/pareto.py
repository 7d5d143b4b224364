"""Which of the ranked plans no other beats: speed against money, or against memory left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hetcli.report import facts
from hetcli.spec.plan import Plan

__all__ = ["Choice", "Trade", "trade"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One plan of the ranking; `best`: no other one is better in one thing and as good in both."""

    rank: int
    mapping: str
    tokens_per_s: float
    value: float
    best: bool


@dataclass(frozen=True, slots=True)
class Trade:
    """What speed is weighed against: `cost`, dollars a step, or `memory`, bytes left at least."""

    against: Literal["cost", "memory"]
    choices: tuple[Choice, ...]


def trade(plan: Plan) -> Trade:
    """The front where one was searched, else the ranking: by cost, or memory without prices."""
    found = [
        (each.rank, each.mapping, each.tokens_per_s, each.cost_per_step, each.headroom_bytes)
        for each in plan.front or plan.alternatives
    ]
    if not found:
        predicted = plan.predicted
        left = facts.worst_device(predicted.devices).headroom_bytes
        found = [(1, "this plan", predicted.tokens_per_s, predicted.cost_per_step, left)]
    priced = [
        (rank, mapping, speed, cost) for rank, mapping, speed, cost, _ in found if cost is not None
    ]
    if len(priced) == len(found):
        return Trade("cost", _choices(priced, sign=-1))
    return Trade("memory", _choices([(*each[:3], float(each[4])) for each in found], sign=1))


def _choices(points: list[tuple[int, str, float, float]], *, sign: int) -> tuple[Choice, ...]:
    """The points and which are on the front; a higher value times `sign` is better."""

    def beaten(speed: float, value: float) -> bool:
        return any(
            other_speed >= speed
            and sign * other >= sign * value
            and (other_speed, other) != (speed, value)
            for _, _, other_speed, other in points
        )

    return tuple(
        Choice(rank, mapping, speed, value, best=not beaten(speed, value))
        for rank, mapping, speed, value in points
    )
