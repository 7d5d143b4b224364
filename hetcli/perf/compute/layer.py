"""Forward and backward time of a layer, the embedding and the head on one device type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hetcli.errors import ConfigurationError
from hetcli.perf.compute.measured import LayerKind
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
    # Whether the seconds contain what the tensor ranks exchange (a measured layer table's do).
    includes_tensor_parallel: bool = False
    # Seconds of the optimizer on the layer's parameters, where they were measured.
    update_s: float | None = None


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
        fused_loss=configuration.fused_loss,
    )


def layer_time(layer: Layer, model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """One decoder layer, as measured if it was, else as modelled.

    Tables are those of layers that are trained: with adapters none is asked.
    """

    def modelled(shape: Shape) -> LayerTime:
        return _modelled_layer(layer, model, shape, device_type)

    if model.adapters is not None:
        return modelled(shape)
    return _measured("layer", shape, device_type, modelled)


def _measured(
    kind: LayerKind, shape: Shape, device_type: DeviceType, modelled: Callable[[Shape], LayerTime]
) -> LayerTime:
    """The table's seconds; outside of it those of its nearest point, scaled as modelled ones."""
    table = device_type.measured
    found = None
    # Tables hold times without recomputation, experts or context parallelism.
    if table is not None and shape.context_parallel == shape.expert_parallel == 1:
        found = table.find(
            kind,
            shape.tensor_parallel,
            shape.precision,
            shape.sequence,
            shape.micro_batch_size,
        )
    if table is None or found is None:
        return modelled(shape)
    forward, backward, origin = found.forward_s, found.backward_s, Origin.MEASURED
    if not found.inside:
        plain = replace(shape, recompute="none")
        wanted = modelled(plain)
        nearest = modelled(
            replace(plain, sequence=found.sequence, micro_batch_size=found.micro_batch_size)
        )
        forward *= wanted.forward_s / nearest.forward_s
        backward *= wanted.backward_s / nearest.backward_s
        origin = Origin.ASSUMED
    core = modelled(shape).core_forward_s if shape.recompute == "selective" else 0.0
    again = {"none": 0.0, "selective": core, "full": forward}[shape.recompute]
    return LayerTime(
        forward * device_type.slowdown,
        (backward + again) * device_type.slowdown,
        origin,
        # Both gradients of a product cost the same.
        weight_s=backward / 2 * device_type.slowdown,
        includes_tensor_parallel=table.includes_tensor_parallel,
        update_s=found.update_s,
    )


def _modelled_layer(layer: Layer, model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """A device that is faster than the host launches waits for the host."""
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

    def modelled(shape: Shape) -> LayerTime:
        tokens = shape.micro_batch_size * shape.sequence / shape.context_parallel
        lookup = Elementwise(2 * tokens * model.hidden_size, kernels=2)
        return _ends([lookup], shape, device_type)

    time = _measured("embedding", replace(shape, recompute="none"), device_type, modelled)
    # With adapters the table is not trained, and nothing before it.
    return time if model.adapters is None else replace(time, backward_s=0.0, weight_s=0.0)


def head_time(model: Model, shape: Shape, device_type: DeviceType) -> LayerTime:
    """Final norm, logits and loss."""

    def modelled(shape: Shape) -> LayerTime:
        return _ends(head_operations(model, shape), shape, device_type)

    return _measured("head", replace(shape, recompute="none"), device_type, modelled)
