"""trial.json: what a plan promised, and what a few real steps of it took."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Document, Name, Record
from hetcli.spec.plan import PlanDevice

__all__ = ["Compared", "Trial", "TrialDevice", "TrialStage"]

Size = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]


class Compared(Record):
    """A prediction beside its measurement; `error` is predicted / measured - 1.

    Null where a side is unknown, and the error also where the measurement is 0.
    """

    predicted: float | None
    measured: float | None
    error: float | None


class TrialDevice(Record):
    """One device. `slowness` is its time of a micro-batch over the median of its stage's."""

    device: PlanDevice
    stage: Count
    replica: Count
    forward_s: NonNegative
    backward_s: NonNegative
    busy_s: NonNegative
    waiting_s: NonNegative
    slowness: NonNegative
    peak_memory_bytes: Compared


class TrialStage(Record):
    """One stage, its slowest replica: seconds of a micro-batch, then of the whole step.

    `waiting_s` is the time until the end of the pipeline in which it neither computes nor sends;
    `synchronisation_s` what of the gradients' sum nothing hides.
    """

    stage: Count
    layers: Count
    forward_s: Compared
    backward_s: Compared
    sending_s: Compared
    waiting_s: Compared
    synchronisation_s: Compared
    optimizer_s: Compared


class Trial(Document):
    """The answer of `hetcli trial`. `losses` are those of the measured steps."""

    hetcli_version: str
    model: Name
    cluster: Name
    processor: Literal["cuda", "cpu"]
    steps: Size
    warm_up: Count
    step_time_s: Compared
    step_p95_s: NonNegative
    step_minimum_s: NonNegative
    stages: tuple[TrialStage, ...]
    devices: tuple[TrialDevice, ...]
    losses: tuple[float, ...]
    notes: tuple[str, ...] = ()
