"""observation.json: what a real run did, beside what its plan promised."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Document, Name, Origin, Record
from hetcli.spec.trial import Compared

__all__ = ["Correction", "Observation", "ObservedLog", "SlowRank"]

Size = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class ObservedLog(Record):
    """One log file. `slow_iterations` took more than half as long again as the median one."""

    source: Name
    format: Literal["megatron", "deepspeed", "torchtitan", "nemo"]
    iterations: Count
    first_iteration: Count
    last_iteration: Count
    skipped: Count
    step_time_s: Positive | None
    step_p95_s: Positive | None
    step_minimum_s: Positive | None
    slow_iterations: tuple[Count, ...]
    peak_memory_bytes: Positive | None
    reason: str = ""


class SlowRank(Record):
    """A rank whose own work takes longer than that of the ranks that do the same."""

    rank: Count
    stage: Count
    timer: Name
    slowness: Positive


class Correction(Record):
    """By how much devices of a type compute slower (above 1) or faster than was predicted."""

    device: Name
    factor: Positive
    origin: Origin
    rows: Size


class Observation(Document):
    """The answer of `hetcli observe`; what needs the plan is null without one."""

    hetcli_version: str
    logs: Annotated[tuple[ObservedLog, ...], Field(min_length=1)]
    step_time_s: Compared
    tokens_per_s: Compared
    peak_memory_bytes: Compared
    drift: bool
    tolerance: Positive
    corrections: tuple[Correction, ...] = ()
    slow_ranks: tuple[SlowRank, ...] = ()
    notes: tuple[str, ...] = ()
