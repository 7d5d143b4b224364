"""What a user may fix or forbid before the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from hetcli.perf.configuration import Framework, Offload, ScheduleName
from hetcli.spec.plan import Target
from hetcli.spec.workload import RecomputeChoice

__all__ = ["Asked", "EstimateRequest", "PlanOptions", "asked", "framework_of", "options_of"]

# What an option says: yes, a number, a word, or a number for each of several names.
Asked = bool | int | float | str | dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Limits of a search; a degree that is None is searched, any other value is kept."""

    target: Target = "megatron"
    # Equal replicas only, or mixes of unlike pipelines too.
    space: Literal["grid", "free"] = "grid"
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
    # What a step may cost (dollars), how fast the job must be at least, and what it may use: the
    # quotas are pairs of a device type, fabric, zone or region and a number of devices.
    max_cost_per_step: float | None = None
    min_steps_per_s: float | None = None
    min_tokens_per_s: float | None = None
    max_nodes: int | None = None
    quotas: tuple[tuple[str, int], ...] = ()
    # Device types or places of which some device must take part.
    must_use: tuple[str, ...] = ()
    # Whether gradients are reduced beside the last backward pass.
    overlap_grad_reduce: bool = True
    # As many layers on every stage as divide.
    uniform_layers: bool = False
    # Whether to look for the front of time against money too.
    pareto: bool = False
    # Whether to compare the plan with what other restrictions allow; None decides by size.
    compare: bool | None = None
    top: int = 5
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """One configuration that a user gives; what is None takes the value of a plain run.

    `stage_layers` is "10,10,6,6"; `stage_groups` names the node group of each stage. Without
    `data_parallel` all devices of the groups are used. `per_gpu_batch` is "fast=64,slow=32": the
    micro-batch size of every data-parallel rank, by node group or GPU type.
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
    per_gpu_batch: str | None = None
    virtual_stages: int = 1
    schedule: ScheduleName | Literal["1f1b", "interleaved"] | None = None
    recompute: RecomputeChoice | None = None
    zero_stage: int | None = None
    offload: Offload | None = None
    sequence_parallel: bool | None = None


# Options that do not change which plans there are, or that the plan states elsewhere.
_NOT_ASKED = frozenset({"target", "top", "time_limit_s", "pareto", "compare"})


def asked(options: PlanOptions) -> dict[str, Asked]:
    """What the options fix or limit, by name, as it stands in a plan."""
    values: dict[str, Any] = {
        each.name: getattr(options, each.name)
        for each in fields(options)
        if each.name not in _NOT_ASKED and getattr(options, each.name) != each.default
    }
    if options.quotas:
        values["quotas"] = dict(options.quotas)
    if options.must_use:
        values["must_use"] = ",".join(options.must_use)
    return values


def options_of(target: Target, asked: Mapping[str, Any]) -> PlanOptions:
    """The options of a plan for `target` again: the inverse of `asked`."""
    values = dict(asked)
    if "quotas" in values:
        values["quotas"] = tuple(values["quotas"].items())
    if "must_use" in values:
        values["must_use"] = tuple(values["must_use"].split(","))
    return PlanOptions(target=target, **values)


def framework_of(target: Target) -> Framework:
    """The framework whose rules and memory a target has."""
    return "deepspeed" if target == "deepspeed" else "megatron"
