"""Forward and backward time of a layer, the embedding and the head on one device type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hetcli.errors import ConfigurationError
from hetcli.perf.compute.operations import (
    Elementwise,
    Operation,
    head_operations,
    layer_operations,
)
from hetcli.perf.compute.rates import Rates
from hetcli.perf.configuration import Configuration, Kernel, Shape, Stage
from hetcli.perf.hardware import DeviceType
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import Layer, Model

__all__ = [
    "LayerTime",
    "embedding_time",
    "head_time",
    "kernel_of",
    "layer_time",
    "shape_of",
]


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one micro-batch on a device doing its share, without communication.

    `backward_s` includes what the shape's recomputation computes again.
    """

    forward_s: float
    backward_s: float
    origin: Origin


def kernel_of(device_type: DeviceType, attention: Literal["auto", "flash", "unfused"]) -> Kernel:
    """The attention kernel that runs: the one asked for, or the best that the card has.

    Raises ConfigurationError when a fused kernel is asked of a card that has none.
    """
    if attention == "auto":
        return "flash" if device_type.gpu.flash_attention else "unfused"
    if attention == "flash" and not device_type.gpu.flash_attention:
        raise ConfigurationError(
            f"flash attention on {device_type.gpu.name}",
            why="no fused attention kernel exists for this architecture",
            fix="choose --attention auto or unfused",
        )
    return attention


def shape_of(configuration: Configuration, stage: Stage, device_type: DeviceType) -> Shape:
    """What a layer of `stage` costs depends on, for its largest micro-batch."""
    return Shape(
        sequence=configuration.sequence,
        micro_batch_size=max(replica.micro_batch_size for replica in stage.replicas),
        precision=configuration.precision,
        kernel=kernel_of(device_type, configuration.attention),
        tensor_parallel=stage.tensor_parallel,
        context_parallel=configuration.context_parallel,
        expert_parallel=configuration.expert_parallel,
        expert_tensor_parallel=configuration.expert_tensor_parallel,
        sequence_parallel=configuration.sequence_parallel,
        recompute=stage.recompute.granularity,
        framework=configuration.framework,
    )


def layer_time(layer: Layer, model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """One decoder layer; a device that is faster than the host launches waits for the host."""
    rates = Rates(device_type, shape)
    forward = backward = again = 0.0
    for part, operation in layer_operations(layer, model, shape):
        seconds = rates.seconds(operation)
        forward += seconds
        backward += rates.seconds(operation, backward=True)
        if shape.recompute == "full" or (shape.recompute == "selective" and part == "core"):
            again += seconds
    host = rates.framework.host_layer_s.value
    whole = shape.recompute == "full"
    return LayerTime(
        max(forward, host),
        max(backward, host) + (max(again, host) if whole else again),
        rates.origin,
    )


def _ends(operations: Sequence[Operation], shape: Shape, device_type: DeviceType) -> LayerTime:
    rates = Rates(device_type, shape)
    return LayerTime(
        sum(rates.seconds(each) for each in operations),
        sum(rates.seconds(each, backward=True) for each in operations),
        rates.origin,
    )


def embedding_time(model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """The table look-up, and the sparse sum of its gradient; HBM-bound."""
    tokens = shape.micro_batch_size * shape.sequence / shape.context_parallel
    return _ends([Elementwise(2 * tokens * model.hidden_size, kernels=2)], shape, device_type)


def head_time(model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """Final norm, logits and loss."""
    return _ends(head_operations(model, shape), shape, device_type)
