"""What the processes of a trial are told, and what each of them answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Record
from hetcli.spec.plan import Plan, PlanDevice

__all__ = ["Job", "Pacing", "RankReport", "RankStep", "RankWork"]

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class Pacing(Record):
    """A device that shall be as slow as one of `flop_per_s`."""

    device: PlanDevice
    flop_per_s: Positive


class Job(Record):
    """Plans to run one after the other, `steps` steps each after `warm_up` unmeasured ones.

    Rank r is the device `devices[r]`. A rank that waits for more than `stall_s` gives up.
    """

    plans: Annotated[tuple[Plan, ...], Field(min_length=1)]
    devices: Annotated[tuple[PlanDevice, ...], Field(min_length=1)]
    steps: Annotated[int, Field(gt=0)] = 5
    warm_up: Count = 2
    seed: int = 0
    processor: Literal["cuda", "cpu"] = "cpu"
    stall_s: Positive = 60.0
    pacing: tuple[Pacing, ...] = ()
    keep_gradients: bool = False


class RankWork(Record):
    """One work as a device did it; seconds from the start of its step.

    `sent_s` is when its messages no longer kept the device.
    """

    kind: Literal["forward", "backward", "backward-input", "backward-weight"]
    micro_batch: Count
    chunk: Count
    start_s: float
    end_s: float
    sent_s: float


class RankStep(Record):
    """One step of one device; moments are seconds from the start of the step.

    `pipeline_s` is the end of the last work, `reduced_s` when all gradients are summed, `agreed_s`
    when all devices know the loss, `step_s` the end of the update.
    """

    works: tuple[RankWork, ...]
    pipeline_s: float
    reduced_s: float
    agreed_s: float
    step_s: float
    loss: float


class RankReport(Record):
    """What one device did for one plan. `peak_memory_bytes` is null where nobody counts it."""

    device: PlanDevice
    pipeline: Count
    stage: Count
    replica: Count
    steps: tuple[RankStep, ...]
    peak_memory_bytes: Count | None
