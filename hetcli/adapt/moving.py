"""What it takes to go from one configuration to another: bytes, seconds, and the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetcli.perf.configuration import Configuration, DeviceId, Stage
from hetcli.perf.hardware import Hardware
from hetcli.perf.memory.states import recipe
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.parameters import (
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
)

__all__ = ["Move", "move"]

# What a device holds of the model: (content, tensor-parallel degree, tensor rank).
_Slice = tuple[int, int, int]
_EMBEDDING, _HEAD = -1, -2


@dataclass(frozen=True, slots=True)
class Move:
    """The change between two configurations.

    `received_bytes` go over the network (or come from storage) in `seconds`; `state_is_lost` says
    that no device left holds some of the state, so that it must come from a checkpoint;
    `reshards` that tensor or pipeline slices change, so that the checkpoint has to be cut anew.
    """

    received_bytes: float
    seconds: float
    state_is_lost: bool
    reshards: bool


def move(before: Configuration, after: Configuration, model: Model, hardware: Hardware) -> Move:
    """What the devices of `after` must get that they do not have from `before`.

    Every node receives through its NICs at the same time; the one that gets most decides.
    """
    had, needed = _holdings(before, model), _holdings(after, model)
    sizes = _sizes(after, model)
    weight, optimizer = _bytes_per_parameter(after)
    stage_of = _stage_of(after)
    received: dict[str, float] = {}
    for device, slices in needed.items():
        new = slices - had.get(device, frozenset())
        count = sum(sizes[content] / degree for content, degree, _ in new)
        ranks = max(1, stage_of[device].data_parallel * after.context_parallel)
        nbytes = count * (weight + optimizer / ranks)
        received[device.node] = received.get(device.node, 0.0) + nbytes
    seconds = max(
        (
            nbytes / hardware.by_name[node].nic.bytes_per_s
            for node, nbytes in received.items()
            if nbytes
        ),
        default=0.0,
    )
    return Move(
        received_bytes=sum(received.values()),
        seconds=seconds,
        state_is_lost=_lost(before, had, hardware),
        reshards=_shape(before) != _shape(after),
    )


def _lost(
    before: Configuration, had: Mapping[DeviceId, frozenset[_Slice]], hardware: Hardware
) -> bool:
    """Whether a slice, or a part of the optimizer's state, was only on devices that are gone."""
    alive = {device for node in hardware.nodes for device in node.device_ids}
    gone = had.keys() - alive
    if not gone:
        return False
    # ZeRO keeps each part of the optimizer's state on one device only.
    if before.zero_stage > 0:
        return True
    left = frozenset[_Slice]().union(*(had[device] for device in had.keys() - gone))
    return any(had[device] - left for device in gone)


def _holdings(configuration: Configuration, model: Model) -> dict[DeviceId, frozenset[_Slice]]:
    found: dict[DeviceId, frozenset[_Slice]] = {}
    for pipeline in configuration.pipelines:
        last = len(pipeline.stages) - 1
        for at, stage in enumerate(pipeline.stages):
            contents = [layer for chunk in stage.chunks for layer in range(chunk.first, chunk.stop)]
            if at == 0 or (at == last and model.tied_embeddings):
                contents.append(_EMBEDDING)
            if at == last:
                contents.append(_HEAD)
            for replica in stage.replicas:
                for position, device in enumerate(replica.devices):
                    rank = position % stage.tensor_parallel
                    found[device] = frozenset(
                        (content, stage.tensor_parallel, rank) for content in contents
                    )
    return found


def _sizes(configuration: Configuration, model: Model) -> dict[int, float]:
    """Parameters by content; experts are those that one rank of their group holds."""
    ranks = configuration.expert_parallel
    sizes: dict[int, float] = {}
    for number, layer in enumerate(model.each_layer()):
        own = layer_parameters(layer, model)
        sizes[number] = own.total - own.experts + own.experts / ranks
    sizes[_EMBEDDING] = float(embedding_parameters(model).total)
    sizes[_HEAD] = float(final_norm_parameters(model).total + head_parameters(model).total)
    return sizes


def _bytes_per_parameter(configuration: Configuration) -> tuple[float, float]:
    """Of the weight on every holder, and of the states that ZeRO spreads over holders."""
    costs = recipe(
        configuration.framework,
        configuration.precision,
        configuration.zero_stage,
        configuration.offload,
        pipelined=configuration.pipeline_parallel > 1,
    )
    whole = costs.weights.whole + costs.optimizer.whole
    return float(whole), float(costs.weights.sharded + costs.optimizer.sharded)


def _stage_of(configuration: Configuration) -> Mapping[DeviceId, Stage]:
    return {
        device: stage
        for stage in configuration.stages
        for replica in stage.replicas
        for device in replica.devices
    }


def _shape(configuration: Configuration) -> tuple[object, ...]:
    """What the slices of a checkpoint follow: layers and tensor degree of every kind of stage."""
    return tuple(
        sorted(
            {
                tuple(
                    (stage.tensor_parallel, tuple(chunk.count for chunk in stage.chunks))
                    for stage in pipeline.stages
                )
                for pipeline in configuration.pipelines
            }
        )
    )
