"""A parallel configuration: exactly who computes what. The search proposes one, `perf` judges it.

A configuration is one or more pipelines. In the grid space there is one, whose stages all have the
same number of data-parallel replicas; in the free space pipelines have shapes of their own, and a
layer's gradients are synchronised among all who hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

__all__ = [
    "Configuration",
    "DeviceId",
    "Framework",
    "Kernel",
    "LayerRange",
    "Offload",
    "Pipeline",
    "Recompute",
    "Replica",
    "ScheduleName",
    "Shape",
    "Stage",
    "TrainingPrecision",
]

Framework = Literal["megatron", "deepspeed", "fsdp"]
Kernel = Literal["flash", "unfused"]
Offload = Literal["none", "optimizer", "optimizer+parameters"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "wave", "bidirectional"]
TrainingPrecision = Literal["bf16", "fp16", "fp32", "fp8"]


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """One device: its node's name and its index in the node (PCI bus order)."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


@dataclass(frozen=True, slots=True)
class LayerRange:
    """`count` consecutive decoder layers from `first` (0-based). A count of 0 is legal."""

    first: int
    count: int

    @property
    def stop(self) -> int:
        """The layer after the last one."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Recompute:
    """What the backward pass computes again: nothing, the attention core, or whole layers.

    With `full`, the first `layers` layers of every chunk are recomputed (None: all of them), as
    Megatron-LM's `--recompute-method block` does.
    """

    granularity: Literal["none", "selective", "full"] = "none"
    layers: int | None = None


@dataclass(frozen=True, slots=True)
class Replica:
    """One data-parallel member of a stage.

    `devices` are its tensor x context ranks, tensor ranks innermost. It runs `micro_batches`
    micro-batches of `micro_batch_size` sequences in every step.
    """

    devices: tuple[DeviceId, ...]
    micro_batches: int
    micro_batch_size: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage. `chunks` has one range, or one for each virtual stage (model chunk)."""

    chunks: tuple[LayerRange, ...]
    tensor_parallel: int
    replicas: tuple[Replica, ...]
    recompute: Recompute = Recompute()

    @property
    def layer_count(self) -> int:
        """Decoder layers that every device of the stage holds."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def data_parallel(self) -> int:
        """Number of replicas."""
        return len(self.replicas)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in order; the first holds the embedding, the last the final norm and the head."""

    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Configuration:
    """Everything that decides time and memory, beside model, workload and hardware.

    `zero_stage` 1 is also Megatron-LM's distributed optimizer. `expert_tensor_parallel` times
    `expert_parallel` ranks share a layer's experts.
    """

    pipelines: tuple[Pipeline, ...]
    micro_batch_size: int
    global_batch: int
    sequence: int
    precision: TrainingPrecision
    framework: Framework = "megatron"
    # Release of the framework's container or package (NeMo's year.month); None: the latest known.
    framework_release: str | None = None
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 1
    offload: Offload = "none"
    schedule: ScheduleName = "1f1b"
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    # Tensor-parallel collectives beside the products (Megatron-LM's --tp-comm-overlap).
    overlap_tensor_parallel: bool = False
    # Whether fp32 products may run on the tf32 units (torch.backends.cuda.matmul.allow_tf32).
    allow_tf32: bool = False
    # Whether DeepSpeed's tensor ranks each send their part of a boundary activation, as its
    # pipeline engine does by default (`pipe_partitioned`); else one of them sends it whole.
    partitioned_boundaries: bool = True
    # Whether each tensor rank sends the whole attention mask, in 16 bit, with every activation:
    # GPT2ModelPipe of Megatron-LM 1.1.5 under DeepSpeed does (deepspeed/runtime/pipe/engine.py,
    # `_exec_send_activations`). Later models make it anew on every stage.
    sends_mask: bool = False
    # What gradients are reduced in, where that is not the framework's default.
    gradient_precision: TrainingPrecision | None = None
    # The attention kernel asked for; "auto" takes the best one that each device type has.
    attention: Literal["auto", "flash", "unfused"] = "auto"
    # Whether the loss reads the head's output in its own type (flash-attention's CrossEntropyLoss)
    # and keeps no copy of it in fp32.
    fused_loss: bool = False
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All stages of all pipelines, pipeline by pipeline."""
        return tuple(stage for pipeline in self.pipelines for stage in pipeline.stages)

    @cached_property
    def devices(self) -> tuple[DeviceId, ...]:
        """Every device that the configuration uses, in rank order of the default Megatron order."""
        return tuple(
            device
            for stage in self.stages
            for replica in stage.replicas
            for device in replica.devices
        )

    @property
    def is_grid(self) -> bool:
        """One pipeline shape, so that a framework with global tp, pp, dp can run it."""
        return len(self.pipelines) == 1

    @property
    def pipeline_parallel(self) -> int:
        """Stages of the longest pipeline."""
        return max(len(pipeline.stages) for pipeline in self.pipelines)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cost of one layer on one device depends on, beside the layer and the device type."""

    sequence: int
    micro_batch_size: int
    precision: TrainingPrecision
    kernel: Kernel
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    sequence_parallel: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    framework: Framework = "megatron"
    framework_release: str | None = None
    allow_tf32: bool = False
    fused_loss: bool = False
