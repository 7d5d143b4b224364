"""What a user may fix or forbid before the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hetcli.perf.configuration import Framework, Offload, ScheduleName
from hetcli.spec.plan import Target
from hetcli.spec.workload import RecomputeChoice

__all__ = ["EstimateRequest", "PlanOptions", "framework_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Limits of a search; a degree that is None is searched, any other value is kept."""

    target: Target = "megatron"
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    context_parallel: int | None = None
    expert_parallel: int | None = None
    expert_tensor_parallel: int | None = None
    micro_batch_size: int | None = None
    virtual_stages: int | None = None
    recompute: RecomputeChoice | None = None
    zero_stage: int | None = None
    offload: Offload = "none"
    top: int = 5
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """One configuration that a user gives; what is None takes the value of a plain run.

    `stage_layers` is "10,10,6,6"; `stage_groups` names the node group of each stage. Without
    `data_parallel` all devices of the groups are used.
    """

    target: Target = "megatron"
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    context_parallel: int | None = None
    expert_parallel: int | None = None
    expert_tensor_parallel: int | None = None
    micro_batch_size: int | None = None
    stage_layers: str | None = None
    stage_groups: str | None = None
    virtual_stages: int = 1
    schedule: ScheduleName | Literal["1f1b", "interleaved"] | None = None
    recompute: RecomputeChoice | None = None
    zero_stage: int | None = None
    offload: Offload | None = None
    sequence_parallel: bool | None = None


def framework_of(target: Target) -> Framework:
    """The framework whose rules and memory a target has."""
    return "deepspeed" if target == "deepspeed" else "megatron"
