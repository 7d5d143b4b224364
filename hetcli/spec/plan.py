"""plan.json: what the search found, what it will cost, and everything needed to export it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Document, Origin, Record
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import Model
from hetcli.spec.workload import Pretrain

__all__ = [
    "Alternative",
    "Certificate",
    "Comparison",
    "Comparisons",
    "Inputs",
    "MemoryEntry",
    "Parallelism",
    "Plan",
    "PlanDevice",
    "PlanReplica",
    "PlanStage",
    "Predicted",
    "PredictedDevice",
    "PredictedStage",
    "Search",
    "Target",
]

Target = Literal["megatron", "deepspeed", "flagscale", "free"]
Size = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class Inputs(Record):
    """What the plan was made from, whole, so that the plan can be checked and exported alone."""

    cluster: Cluster
    model: Model
    workload: Pretrain


class PlanDevice(Record):
    """A device by node name and index in the node (PCI bus order)."""

    node: str
    index: Count


class PlanReplica(Record):
    """One data-parallel member of a stage.

    `gradient_weight` is its share of the global batch, by which its mean gradient counts.
    """

    devices: tuple[PlanDevice, ...]
    micro_batches: Size
    micro_batch_size: Size
    gradient_weight: Annotated[float, Field(gt=0, le=1)]


class PlanStage(Record):
    """One stage. `chunks` are the layer counts of its virtual stages; `layers` is their sum."""

    pipeline: Count = 0
    layers: Count
    first_layer: Count
    chunks: tuple[Count, ...]
    gpu: str
    tensor_parallel: Size
    recompute: Literal["none", "selective", "full"]
    recompute_layers: Count | None = None
    devices: tuple[PlanDevice, ...]
    replicas: tuple[PlanReplica, ...]


class Parallelism(Record):
    """The degrees that a framework takes; `data_parallel` is null where replicas differ in shape.

    `pipeline_splits` are the layers of each stage, first stage first.
    """

    tensor_parallel: Size
    pipeline_parallel: Size
    data_parallel: Size | None
    context_parallel: Size
    expert_parallel: Size
    expert_tensor_parallel: Size
    virtual_stages: Size
    sequence_parallel: bool
    micro_batch_size: Size
    global_batch: Size
    gradient_accumulation: Size
    zero_stage: Annotated[int, Field(ge=0, le=3)]
    offload: Literal["none", "optimizer", "optimizer+parameters"]
    schedule: str
    precision: Literal["bf16", "fp16", "fp32", "fp8"]
    attention: Literal["auto", "flash", "unfused"]
    overlap_grad_reduce: bool
    overlap_param_gather: bool


class MemoryEntry(Record):
    """One item of a device's memory."""

    name: str
    memory_bytes: Count
    origin: Origin


class PredictedDevice(Record):
    """The budget of one device at its peak."""

    node: str
    index: Count
    gpu: str
    stage: Count
    replica: Count
    peak_memory_bytes: Count
    capacity_bytes: Count
    headroom_bytes: int
    items: tuple[MemoryEntry, ...]


class PredictedStage(Record):
    """The time of one stage's worst replica."""

    stage: Count
    forward_s: float
    backward_s: float
    send_s: float
    busy_s: float
    gradient_sync_s: float
    optimizer_s: float
    breakdown_s: dict[str, float]
    origin: Origin


class Predicted(Record):
    """Time, memory and money of one optimizer step; null where a number cannot be known."""

    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    model_flops: float
    mfu: float | None
    cost_per_step: float | None
    cost_per_million_tokens: float | None
    breakdown_s: dict[str, float]
    stages: tuple[PredictedStage, ...]
    devices: tuple[PredictedDevice, ...]
    origin: Origin
    # Of the whole token budget, where the workload gives one.
    training_time_s: float | None = None
    training_cost: float | None = None

    @property
    def fits(self) -> bool:
        """Whether every device holds its share, the margin apart."""
        return all(device.headroom_bytes >= 0 for device in self.devices)


class Certificate(Record):
    """How far the plan can be from the best one: no plan of the space is faster than the bound.

    Both are null where no search was made (`hetcli estimate`); `reason` says why.
    """

    lower_bound_s: float | None
    gap: float | None
    reason: str = ""


class Alternative(Record):
    """Another plan of the ranking, in short; `breakdown_s` has the causes of `Predicted`'s."""

    rank: Size
    mapping: str
    parallelism: Parallelism
    layers: tuple[Count, ...]
    step_time_s: float
    tokens_per_s: float
    cost_per_step: float | None
    bound_by: str
    breakdown_s: dict[str, float] = Field(default_factory=dict)
    worst_device: str
    headroom_bytes: int


class Comparison(Record):
    """What the same search finds under another restriction; null where nothing fits.

    The kind says which: one type of card only, a type that the plan declines used all the same,
    the same number of layers on every stage, or none of the target's restrictions.
    """

    kind: Literal["single-type", "with-type", "uniform-layers", "free"]
    gpu: str | None = None
    mapping: str | None = None
    layers: tuple[Count, ...] = ()
    devices: Count = 0
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    cost_per_step: float | None = None
    reason: str = ""


class Comparisons(Record):
    """What every restriction costs, and how much of the cards' own speed the plan brings.

    `theoretical_tokens_per_s` is the sum over all cards of what one of their type does on average
    in that type's own best plan, with `share_of_theoretical` the plan's part of it (HETHUB, arXiv
    2405.16256); `hetero_speedup_ratio` divides the plan's speed by the sum of the speeds of the
    types' own best plans (H2, arXiv 2505.17548). Null where some type cannot run alone.
    """

    entries: tuple[Comparison, ...]
    theoretical_tokens_per_s: float | None
    share_of_theoretical: float | None
    hetero_speedup_ratio: float | None
    reason: str = ""


class Search(Record):
    """What the search looked at: candidates seen, pruned by each rule, scored in full.

    `asked` has what the user fixed or limited, by the name of the option.
    """

    space: Literal["grid", "free", "given"]
    seen: Count
    scored: Count
    pruned: dict[str, Count]
    complete: bool
    idle_devices: tuple[PlanDevice, ...] = ()
    asked: dict[str, bool | int | float | str | dict[str, Count]] = Field(default_factory=dict)


class Plan(Document):
    """The answer of `hetcli plan` and `hetcli estimate`."""

    kind: Literal["pretrain"] = "pretrain"
    hetcli_version: str
    inputs: Inputs
    target: Target
    parallelism: Parallelism
    stages: Annotated[tuple[PlanStage, ...], Field(min_length=1)]
    predicted: Predicted
    certificate: Certificate
    alternatives: tuple[Alternative, ...]
    # No plan is both faster and cheaper than one of these, fastest first; where it was asked for.
    front: tuple[Alternative, ...] = ()
    comparisons: Comparisons | None = None
    search: Search
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()
