"""replan.json: the ways to go on after a change, and which of them is best."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetcli.spec.base import Document, Name, Record
from hetcli.spec.plan import PlanDevice, Target

__all__ = ["Replan", "ReplanOption"]

Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class ReplanOption(Record):
    """One way to go on.

    `runs_on` are the targets that can run it. `reshards` says that a checkpoint of the old plan has
    to be cut anew; `from_checkpoint` that some state was only on devices that are gone.
    `break_even_s` is the time after which it has caught up with the way that needs the least
    moving; null where it never does, 0 for that way itself.
    """

    name: Name
    step_time_s: Positive
    tokens_per_s: Positive
    global_batch: Annotated[int, Field(gt=0)]
    layers: tuple[tuple[Count, ...], ...]
    tensor_parallel: tuple[tuple[Count, ...], ...]
    micro_batches: tuple[tuple[Count, ...], ...]
    fits: bool
    headroom_bytes: int
    runs_on: tuple[Target, ...]
    idle: tuple[PlanDevice, ...]
    moved_bytes: NonNegative
    moving_s: NonNegative
    from_checkpoint: bool
    reshards: bool
    break_even_s: NonNegative | None


class Replan(Document):
    """The answer of `hetcli replan`; `chosen` is the place of the best option that can be run."""

    hetcli_version: str
    before_tokens_per_s: Positive
    lost: tuple[PlanDevice, ...]
    options: tuple[ReplanOption, ...]
    chosen: Count
    checkpoint: Name
    rejected: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
