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

    `backward_s` includes what the shape's recomputation computes again, and `weight_s`, the part
    that the weights' gradients take, which zero-bubble schedules do later.
    """

    forward_s: float
    backward_s: float
    origin: Origin
    weight_s: float = 0.0
    # The attention core's part of both, behind which context-parallel transfers hide.
    core_forward_s: float = 0.0
    core_backward_s: float = 0.0


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
        framework_release=configuration.framework_release,
        allow_tf32=configuration.allow_tf32,
        wire_precision=configuration.wire_precision,
    )


def layer_time(layer: Layer, model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """One decoder layer; a device that is faster than the host launches waits for the host."""
    rates = Rates(device_type, shape)
    forward = backward = weight = core_forward = core_backward = 0.0
    for part, operation in layer_operations(layer, model, shape):
        ahead, back = rates.forward_s(operation), rates.backward_s(operation)
        forward += ahead
        backward += back
        weight += rates.weight_s(operation)
        if part == "core":
            core_forward += ahead
            core_backward += back
    host = rates.framework.host_layer_s.value
    forward, backward = max(forward, host), max(backward, host)
    again = {"none": 0.0, "selective": core_forward, "full": forward}[shape.recompute]
    return LayerTime(forward, backward + again, rates.origin, weight, core_forward, core_backward)


def _ends(operations: Sequence[Operation], shape: Shape, device_type: DeviceType) -> LayerTime:
    rates = Rates(device_type, shape)
    return LayerTime(
        sum(rates.forward_s(each) for each in operations),
        sum(rates.backward_s(each) for each in operations),
        rates.origin,
        sum(rates.weight_s(each) for each in operations),
    )


def embedding_time(model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """The table look-up, and the sparse sum of its gradient; HBM-bound."""
    tokens = shape.micro_batch_size * shape.sequence / shape.context_parallel
    return _ends([Elementwise(2 * tokens * model.hidden_size, kernels=2)], shape, device_type)


def head_time(model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """Final norm, logits and loss."""
    return _ends(head_operations(model, shape), shape, device_type)
