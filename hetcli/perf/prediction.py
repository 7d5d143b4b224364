"""What the performance model says of a configuration, itemised, each part with its origin."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hetcli.perf.configuration import DeviceId
from hetcli.spec.base import Origin

__all__ = ["Breakdown", "DeviceMemory", "MemoryItem", "Prediction", "StagePrediction"]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where a step's seconds go, on the critical path; the fields sum to the step time.

    `pipeline_bubble` is idle time of the slowest stage's devices, `data_parallel` the part of the
    gradient synchronisation and parameter gathering that nothing hides.
    """

    compute: float = 0.0
    tensor_parallel: float = 0.0
    context_parallel: float = 0.0
    expert_parallel: float = 0.0
    pipeline_p2p: float = 0.0
    pipeline_bubble: float = 0.0
    data_parallel: float = 0.0
    optimizer: float = 0.0
    offload: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum((float(getattr(self, item.name)) for item in fields(self)), 0.0)


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One entry of a device's budget, bytes."""

    name: str
    nbytes: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of every device of one stage replica (they are equal): items sum to the peak."""

    stage: int
    replica: int
    devices: tuple[DeviceId, ...]
    items: tuple[MemoryItem, ...]
    capacity_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Bytes at the worst moment of a step."""
        return sum(item.nbytes for item in self.items)

    @property
    def headroom_bytes(self) -> int:
        """What stays free; negative when it does not fit."""
        return self.capacity_bytes - self.peak_bytes


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """One stage, worst replica: seconds of a micro-batch and of the whole step."""

    stage: int
    forward_s: float
    backward_s: float
    send_s: float
    busy_s: float
    gradient_sync_s: float
    optimizer_s: float
    breakdown: Breakdown
    origin: Origin


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time, memory and money of one optimizer step.

    `mfu` is model FLOPs (no recompute) over step time times the dense peak of all devices used.
    `cost_per_step` is in dollars; None when a used node has no price.
    """

    step_time_s: float
    tokens_per_s: float
    model_flops: float
    mfu: float | None
    cost_per_step: float | None
    breakdown: Breakdown
    stages: tuple[StagePrediction, ...]
    memory: tuple[DeviceMemory, ...]
    origin: Origin
    assumptions: tuple[str, ...] = ()

    @property
    def worst_device(self) -> DeviceMemory:
        """The devices with the least headroom."""
        return min(self.memory, key=lambda entry: entry.headroom_bytes)

    @property
    def fits(self) -> bool:
        """Whether every device holds its share."""
        return self.worst_device.headroom_bytes >= 0
