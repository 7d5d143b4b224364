"""explanation.json: why a plan is as it is, what was rejected, and what would make it faster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Document, Record
from hetcli.spec.plan import Alternative

__all__ = ["Bottleneck", "Explanation", "Lever", "Neighbour", "WhatIf"]

Count = Annotated[int, Field(ge=0)]


class Bottleneck(Record):
    """The stage that the others wait for, and the device with the least memory left.

    `busy_share` is the part of the step in which that stage works or sends; `bound_by` is the
    largest entry of the step's breakdown, and what it means for the plan.
    """

    stage: Count
    gpu: str
    busy_s: float
    busy_share: float
    bound_by: str
    memory_device: str
    memory_gpu: str
    headroom_bytes: int


class Lever(Record):
    """What the same plan would take if one thing of the hardware were twice as fast."""

    kind: Literal["device", "link"]
    name: str
    step_time_s: float
    gain: float


class Neighbour(Record):
    """A plan of the ranking beside the best one: what differs, and how much slower it is."""

    plan: Alternative
    differs: str
    slower: float


class WhatIf(Record):
    """What the best plan would be in another situation; null where nothing fits then.

    `gain` is the change of tokens a second against the plan.
    """

    change: str
    mapping: str | None = None
    layers: tuple[Count, ...] = ()
    devices: Count = 0
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    cost_per_million_tokens: float | None = None
    gain: float | None = None
    reason: str = ""


class Explanation(Document):
    """The answer of `hetcli explain`; `rejected` counts candidates by the rule that left them out.

    The levers come largest gain first: the first one is what binds.
    """

    kind: Literal["explanation"] = "explanation"
    plan: str
    step_time_s: float
    tokens_per_s: float
    binds: str
    bottleneck: Bottleneck
    levers: tuple[Lever, ...]
    rejected: dict[str, Count]
    neighbours: tuple[Neighbour, ...]
    what_if: tuple[WhatIf, ...]
