"""What a device holds beside the model: workspaces, communication, contexts and fragments."""

from __future__ import annotations

import math

from hetcli.perf.configuration import Framework, Shape
from hetcli.perf.hardware import DeviceType
from hetcli.perf.memory.activations import boundary_bytes, sequence_ways
from hetcli.perf.memory.constants import constant
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import Model, MoeFeedForward

__all__ = ["communicators_bytes", "context_bytes", "message_bytes", "workspace_bytes"]


def workspace_bytes(model: Model, device_type: DeviceType, framework: Framework) -> int:
    """Workspaces of the matrix libraries; the framework's allocator counts them as tensors."""
    architecture = device_type.gpu.architecture
    if architecture == "cpu":
        return 0
    total = constant("cublas_streams") * constant("cublas_workspace", architecture)
    if framework == "megatron":
        experts = any(isinstance(run.layer.feed_forward, MoeFeedForward) for run in model.layers)
        streams = 1 + (constant("te_grouped_streams") if experts else 0)
        total += streams * constant("te_workspace", architecture)
    return math.ceil(total)


def message_bytes(model: Model, shape: Shape, *, pipelined: bool) -> int:
    """Tensors that are only there to be sent: a boundary's gradient on its way, and the gathered
    input of a layer whose sequence is cut over the tensor ranks."""
    boundary = boundary_bytes(model, shape)
    gathered = boundary * sequence_ways(shape) if sequence_ways(shape) > 1 else 0
    return gathered + (boundary if pipelined else 0)


def communicators_bytes(
    device_type: DeviceType, shape: Shape, *, data_parallel: int, pipelined: bool
) -> int:
    """Buffers of the collective library, which the framework's allocator does not see."""
    groups = (
        shape.tensor_parallel > 1,
        shape.context_parallel > 1,
        shape.expert_parallel > 1,
        data_parallel * shape.context_parallel > 1,
        pipelined,
    )
    return math.ceil(sum(groups) * constant("communicator", device_type.gpu.architecture))


def context_bytes(device_type: DeviceType, framework: Framework) -> int:
    """The driver's context and kernels, what it keeps of a card whose free memory nobody probed,
    and the fixed part of the framework."""
    total = constant("cuda_context", device_type.gpu.architecture)
    if device_type.memory_origin is not Origin.MEASURED and device_type.gpu.vendor != "cpu":
        total += constant("driver_reserve_share") * device_type.memory_bytes
    if framework == "deepspeed":
        total += constant("deepspeed_floor")
    return math.ceil(total)
