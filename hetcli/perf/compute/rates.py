"""Seconds of one kernel on a device type: a roofline with stated shares of the data sheet."""

from __future__ import annotations

from hetcli.catalog.efficiency import Efficiency, efficiency_of
from hetcli.catalog.gpu import Dtype
from hetcli.errors import ConfigurationError
from hetcli.perf.compute.operations import Attention, Elementwise, Matmul, Operation
from hetcli.perf.configuration import Kernel, TrainingPrecision
from hetcli.perf.hardware import DeviceType

__all__ = ["ELEMENT_BYTES", "backward_s", "forward_s", "matmul_dtype"]

# Bytes of one activation element; fp8 training keeps activations between kernels in bf16.
ELEMENT_BYTES: dict[TrainingPrecision, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 2}
# A fused kernel recomputes the scores in its backward pass: five products for the forward's two
# (FlashAttention-2, arXiv 2307.08691, section 4.1).
FUSED_BACKWARD = 2.5
# Share of the score matrix that a causal mask leaves to a fused kernel.
CAUSAL_SHARE = 0.5
# Passes of unfused attention over its score matrix: write scores, scale and mask, softmax (read
# and write), dropout (read and write), read for the values; NEEDS: 5 bytes a score stay stored.
UNFUSED_PASSES = 6


def efficiency(device_type: DeviceType) -> Efficiency:
    """The device type's own shares, else those that the catalogue ships for its GPU."""
    return device_type.efficiency or efficiency_of(device_type.gpu)


def matmul_dtype(device_type: DeviceType, precision: TrainingPrecision) -> Dtype:
    """The dtype of the projections. Raises ConfigurationError when the card does not have it."""
    if not device_type.gpu.supports(precision):
        have = ", ".join(device_type.gpu.peak_flops)
        raise ConfigurationError(
            f"{precision} on {device_type.gpu.name}",
            why=f"the card computes in {have} only",
            fix="choose --precision among those, or leave these devices out",
        )
    return precision


def _peak(device_type: DeviceType, dtype: Dtype) -> float:
    gpu = device_type.gpu
    return gpu.usable_flops.get(dtype, gpu.peak_flops[dtype])


def _matmul_s(operation: Matmul, device_type: DeviceType, precision: TrainingPrecision) -> float:
    shares = efficiency(device_type)
    dtype = matmul_dtype(device_type, precision)
    share = shares.grouped if operation.grouped else shares.matmul[dtype]
    compute = operation.flops / (_peak(device_type, dtype) * share)
    nbytes = operation.elements * ELEMENT_BYTES[precision]
    memory = nbytes / (device_type.gpu.memory_bytes_per_s * shares.memory)
    return max(compute, memory) + shares.launch_s


def _attention_s(
    operation: Attention,
    device_type: DeviceType,
    precision: TrainingPrecision,
    kernel: Kernel,
    backward: bool,
) -> float:
    shares = efficiency(device_type)
    bandwidth = device_type.gpu.memory_bytes_per_s * shares.memory
    # Scores are computed in 16 bit also when the projections run in fp8.
    dtype: TrainingPrecision = "bf16" if precision == "fp8" else precision
    peak = _peak(device_type, matmul_dtype(device_type, dtype))
    size = ELEMENT_BYTES[precision]
    if kernel == "flash":
        work = operation.flops * CAUSAL_SHARE * (FUSED_BACKWARD if backward else 1)
        compute = work / (peak * shares.attention)
        nbytes = operation.elements * size * (2 if backward else 1)
        return max(compute, nbytes / bandwidth) + shares.launch_s
    passes = 2 if backward else 1
    compute = passes * operation.flops / (peak * shares.attention)
    memory = passes * (UNFUSED_PASSES * operation.scores + operation.elements) * size / bandwidth
    return compute + memory + passes * 4 * shares.launch_s


def _elementwise_s(
    operation: Elementwise, device_type: DeviceType, precision: TrainingPrecision
) -> float:
    shares = efficiency(device_type)
    size = operation.element_bytes or ELEMENT_BYTES[precision]
    bandwidth = device_type.gpu.memory_bytes_per_s * shares.memory
    return operation.elements * size / bandwidth + operation.kernels * shares.launch_s


def forward_s(
    operation: Operation, device_type: DeviceType, precision: TrainingPrecision, kernel: Kernel
) -> float:
    """Seconds of the kernel in the forward pass."""
    if isinstance(operation, Matmul):
        seconds = _matmul_s(operation, device_type, precision)
    elif isinstance(operation, Attention):
        seconds = _attention_s(operation, device_type, precision, kernel, backward=False)
    else:
        seconds = _elementwise_s(operation, device_type, precision)
    return seconds * device_type.slowdown


def backward_s(
    operation: Operation, device_type: DeviceType, precision: TrainingPrecision, kernel: Kernel
) -> float:
    """Seconds of the kernel's gradients: of its input and, for a matmul, of its weight."""
    if isinstance(operation, Matmul):
        seconds = 2 * _matmul_s(operation, device_type, precision)
    elif isinstance(operation, Attention):
        seconds = _attention_s(operation, device_type, precision, kernel, backward=True)
    else:
        # The gradient is read beside the saved input, and written.
        seconds = 1.5 * _elementwise_s(operation, device_type, precision)
    return seconds * device_type.slowdown
