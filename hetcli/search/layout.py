"""A candidate of the grid space, and the configuration that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetcli.perf.configuration import (
    Configuration,
    Framework,
    LayerRange,
    Offload,
    Pipeline,
    Recompute,
    Replica,
    ScheduleName,
    Stage,
    TrainingPrecision,
)
from hetcli.search.placement import place
from hetcli.search.pools import Pool
from hetcli.spec.workload import Pretrain, RecomputeChoice

__all__ = ["Degrees", "Layout", "configuration", "interleaved_chunks"]


@dataclass(frozen=True, slots=True, order=True)
class Degrees:
    """Everything that is the same on all stages of a grid plan, the number of stages apart."""

    precision: TrainingPrecision
    tensor: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    expert_tensor: int = 1
    micro_batch_size: int = 1
    virtual_stages: int = 1
    recompute: RecomputeChoice = "none"
    zero_stage: int = 1
    offload: Offload = "none"
    sequence_parallel: bool = False
    overlap_grad_reduce: bool = True
    framework: Framework = "megatron"

    @property
    def members(self) -> int:
        """Tensor groups of a stage."""
        return self.context * self.data

    @property
    def devices_per_stage(self) -> int:
        """Devices of a stage."""
        return self.tensor * self.context * self.data

    @property
    def schedule(self) -> ScheduleName:
        """The pipeline schedule that runs so many chunks."""
        return "interleaved" if self.virtual_stages > 1 else "1f1b"


@dataclass(frozen=True, slots=True)
class Layout:
    """A candidate: degrees, the pools along the pipeline, and the layers of each stage.

    `recompute` is that of each stage, where they differ in it.
    """

    degrees: Degrees
    runs: tuple[tuple[Pool, int], ...]
    layers: tuple[int, ...]
    recompute: tuple[RecomputeChoice, ...] = ()

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return sum(count for _, count in self.runs)

    @property
    def stage_recompute(self) -> tuple[RecomputeChoice, ...]:
        """What each stage recomputes."""
        return self.recompute or (self.degrees.recompute,) * self.stages


def interleaved_chunks(layers: Sequence[int], virtual_stages: int) -> list[tuple[LayerRange, ...]]:
    """The layer ranges of every stage: chunk c of all stages comes before chunk c + 1.

    A stage's layers are spread evenly over its chunks, the later ones taking what does not divide.
    """
    shares = [
        [
            (count * (chunk + 1)) // virtual_stages - (count * chunk) // virtual_stages
            for chunk in range(virtual_stages)
        ]
        for count in layers
    ]
    ranges: list[list[LayerRange]] = [[] for _ in layers]
    first = 0
    for chunk in range(virtual_stages):
        for stage, share in enumerate(shares):
            ranges[stage].append(LayerRange(first, share[chunk]))
            first += share[chunk]
    return [tuple(each) for each in ranges]


def configuration(layout: Layout, workload: Pretrain) -> Configuration:
    """The configuration of a layout, every device named."""
    degrees = layout.degrees
    placed = place(layout.runs, tensor=degrees.tensor, context=degrees.context, data=degrees.data)
    micro_batches = workload.global_batch // (degrees.micro_batch_size * degrees.data)
    chunks = interleaved_chunks(layout.layers, degrees.virtual_stages)
    stages = tuple(
        Stage(
            chunks=ranges,
            tensor_parallel=degrees.tensor,
            replicas=tuple(
                Replica(devices, micro_batches, degrees.micro_batch_size) for devices in members
            ),
            recompute=Recompute(recompute),
        )
        for ranges, members, recompute in zip(chunks, placed, layout.stage_recompute, strict=True)
    )
    return Configuration(
        pipelines=(Pipeline(stages),),
        micro_batch_size=degrees.micro_batch_size,
        global_batch=workload.global_batch,
        sequence=workload.sequence,
        precision=degrees.precision,
        framework=degrees.framework,
        context_parallel=degrees.context,
        expert_parallel=degrees.expert,
        expert_tensor_parallel=degrees.expert_tensor,
        sequence_parallel=degrees.sequence_parallel,
        zero_stage=degrees.zero_stage,
        offload=degrees.offload,
        # Without sharded states every rank keeps its parameters: there is nothing to gather.
        overlap_grad_reduce=degrees.overlap_grad_reduce,
        overlap_param_gather=degrees.zero_stage > 0,
        schedule=degrees.schedule,
        attention=workload.attention,
    )
