"""The memory of one replica of a stage of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.compute import shape_of
from hetcli.perf.configuration import Configuration, LayerRange, Recompute, ScheduleName
from hetcli.perf.hardware import Hardware
from hetcli.perf.memory.in_flight import held_chunks
from hetcli.perf.memory.stage_model import ITEMS, Granularity, LayerKind, stage_memory_model
from hetcli.perf.prediction import MemoryItem
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import Layer, Model

__all__ = ["allocated_bytes", "layer_kinds", "stage_ends", "stage_memory"]

# Sizes follow from the published dimensions of model and recipe; the rest was fitted or assumed.
_ORIGINS: Final = MappingProxyType(
    dict.fromkeys(ITEMS, Origin.DATASHEET)
    | {
        "communication_buffers": Origin.ASSUMED,
        "context": Origin.ASSUMED,
        "fragmentation": Origin.FITTED,
    }
)


@dataclass(frozen=True, slots=True)
class _Peak:
    items: tuple[int, ...]
    unseen_bytes: int


def stage_memory(
    configuration: Configuration,
    model: Model,
    hardware: Hardware,
    pipeline: int,
    stage: int,
    replica: int,
) -> tuple[MemoryItem, ...]:
    """Everything that each device of a replica holds at its fullest moment; the items sum to it.

    Raises ConfigurationError when the schedule is not defined for the configuration's numbers, or
    when fused attention is asked of a card that has none.
    """
    peak = _peak(configuration, model, hardware, pipeline, stage, replica)
    return tuple(
        MemoryItem(name, nbytes, _ORIGINS[name])
        for name, nbytes in zip(ITEMS, peak.items, strict=True)
    )


def allocated_bytes(
    configuration: Configuration,
    model: Model,
    hardware: Hardware,
    pipeline: int,
    stage: int,
    replica: int,
) -> int:
    """What the framework's allocator counts of it (torch.cuda.max_memory_allocated): all tensors
    and library workspaces, but no context, no buffers of NCCL and no fragments."""
    peak = _peak(configuration, model, hardware, pipeline, stage, replica)
    return sum(peak.items[:-1]) - peak.unseen_bytes


@lru_cache(maxsize=1024)
def layer_kinds(layers: tuple[Layer, ...], recompute: Recompute) -> tuple[LayerKind, ...]:
    """The distinct layers, each as recomputed and, when only some are, as not recomputed."""
    granularities = [recompute.granularity]
    if recompute.granularity == "full" and recompute.layers is not None:
        granularities.append("none")
    return tuple(
        (layer, granularity) for layer in dict.fromkeys(layers) for granularity in granularities
    )


def stage_ends(schedule: ScheduleName, stages: int, stage: int) -> tuple[bool, bool]:
    """Whether a stage holds the embedding, and the head.

    Chunks that zigzag over the stages begin and end at the first one; of two pipelines in opposite
    directions each begins where the other one ends.
    """
    if schedule in ("zb-v", "wave"):
        return stage == 0, stage == 0
    if schedule == "bidirectional":
        outer = stage in (0, stages - 1)
        return outer, outer
    return stage == 0, stage == stages - 1


def _peak(
    configuration: Configuration,
    model: Model,
    hardware: Hardware,
    pipeline: int,
    stage: int,
    replica: int,
) -> _Peak:
    stages = configuration.pipelines[pipeline].stages
    here, member = stages[stage], stages[stage].replicas[replica]
    device_type = hardware.node_of(member.devices[0]).device_type
    shape = replace(
        shape_of(configuration, here, device_type),
        micro_batch_size=member.micro_batch_size,
        recompute="none",
    )
    kinds = layer_kinds(tuple(run.layer for run in model.layers), here.recompute)
    memory = stage_memory_model(
        model,
        device_type,
        shape,
        kinds,
        framework=configuration.framework,
        zero_stage=configuration.zero_stage,
        offload=configuration.offload,
        data_parallel=here.data_parallel,
        pipelined=len(stages) > 1,
    )
    chunks = np.array([_counts(chunk, model, here.recompute, kinds) for chunk in here.chunks])
    moments = np.array(
        held_chunks(
            configuration.schedule, len(stages), stage, member.micro_batches, len(here.chunks)
        )
    )
    is_first, is_last = stage_ends(configuration.schedule, len(stages), stage)
    items = memory.items(
        chunks.sum(0),
        moments @ chunks,
        is_first=is_first,
        is_last=is_last,
        first_in_flight=moments[:, 0],
        last_in_flight=moments[:, -1] if configuration.schedule == "gpipe" else 1,
    )
    table = np.array([np.broadcast_to(items[name], len(moments)) for name in ITEMS])
    worst = int(table.sum(0).argmax())
    return _Peak(tuple(map(int, table[:, worst])), memory.unseen_bytes)


def _counts(
    chunk: LayerRange, model: Model, recompute: Recompute, kinds: tuple[LayerKind, ...]
) -> NDArray[np.int64]:
    """Layers of each kind in a chunk."""
    counts = np.zeros(len(kinds), np.int64)
    index = {kind: position for position, kind in enumerate(kinds)}
    for part, granularity in _parts(chunk, recompute):
        first = 0
        for run in model.layers:
            shared = min(part.stop, first + run.count) - max(part.first, first)
            if shared > 0:
                counts[index[run.layer, granularity]] += shared
            first += run.count
    return counts


def _parts(chunk: LayerRange, recompute: Recompute) -> Iterator[tuple[LayerRange, Granularity]]:
    """A chunk as the layers that are recomputed and those that are not."""
    again = chunk.count
    if recompute.granularity == "full" and recompute.layers is not None:
        again = min(recompute.layers, chunk.count)
    yield LayerRange(chunk.first, again), recompute.granularity
    if again < chunk.count:
        yield LayerRange(chunk.first + again, chunk.count - again), "none"
