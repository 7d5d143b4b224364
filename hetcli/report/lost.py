"""Why a plan of the ranking is slower than the first one: the causes that take more of its step."""

from __future__ import annotations

from typing import Final

from hetcli.report import facts
from hetcli.spec.plan import Alternative, Plan
from hetcli.units import format_duration

__all__ = ["why_slower"]

_MOST: Final = 2
# A cause that explains less than this share of all that grew says nothing.
_SHARE: Final = 0.1


def why_slower(plan: Plan, other: Alternative) -> list[str]:
    """`pipeline bubble +1.2 s`, `compute +310 ms`: the largest causes first.

    A plan whose parts are not known says what most of its step is. One that is as fast lost on a
    tie, and says so.
    """
    if other.step_time_s <= plan.predicted.step_time_s:
        return ["as fast; the first one was kept"]
    own = plan.predicted.breakdown_s
    more = {name: value - own.get(name, 0.0) for name, value in other.breakdown_s.items()}
    grown = sorted((item for item in more.items() if item[1] > 0), key=lambda item: -item[1])
    total = sum(seconds for _, seconds in grown)
    causes = [
        f"{facts.BREAKDOWN_LABELS.get(name, name)} +{format_duration(seconds)}"
        for name, seconds in grown[:_MOST]
        if seconds >= _SHARE * total
    ]
    if not causes:
        return [f"mostly {facts.BREAKDOWN_LABELS.get(other.bound_by, other.bound_by)}"]
    return causes
