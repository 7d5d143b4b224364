"""Seconds of one kernel on a device type, from the shares of the data sheet that it reaches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from hetcli.catalog.efficiency import (
    Efficiency,
    FrameworkCost,
    framework_cost,
    shipped_efficiency,
)
from hetcli.catalog.gpu import Dtype
from hetcli.errors import ConfigurationError
from hetcli.perf.compute.operations import Attention, Elementwise, Matmul, Operation
from hetcli.perf.configuration import Framework, Shape, TrainingPrecision
from hetcli.perf.hardware import DeviceType
from hetcli.spec.base import Origin

__all__ = ["ELEMENT_BYTES", "Rates", "framework_of", "matmul_dtype"]

# Bytes of one activation element; fp8 training keeps activations between kernels in bf16.
ELEMENT_BYTES: dict[TrainingPrecision, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 2}
# A fused kernel recomputes the scores in its backward pass: five products for the forward's two
# (FlashAttention-2, arXiv 2307.08691, section 3.1).
FUSED_BACKWARD = 2.5
# Share of the score matrix that a causal mask leaves to a fused kernel.
CAUSAL_SHARE = 0.5
# Passes of unfused attention over its score matrix (arXiv 2205.05198, section 4.1 lists what is
# stored): the product writes it, softmax with scale and mask reads and writes, dropout reads and
# writes with its mask of half the size, the second product reads it. The backward pass reads the
# stored softmax, dropout mask and dropout output, and reads and writes the gradient three times.
# Megatron-LM's fused softmax takes 16-bit scores only (megatron/core/fusions); what
# PyTorch's own functions move of fp32 scores was fitted on 34 layers of V100, A100 and GH200 that
# Sailor measured (arXiv 2504.17096, artifact).
UNFUSED_FORWARD_PASSES = 6.5
UNFUSED_BACKWARD_PASSES = {2: 8.5, 4: 21.0}
# The gradient is read beside the saved input, and written.
ELEMENTWISE_BACKWARD = 1.5


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


@lru_cache(maxsize=64)
def _shipped(framework: Framework, release: str | None) -> FrameworkCost:
    return framework_cost(shipped_efficiency().frameworks, framework, release)


def framework_of(
    device_type: DeviceType, framework: Framework, release: str | None = None
) -> FrameworkCost:
    """What a framework's release adds on these devices: as fitted for them, else as shipped."""
    if device_type.frameworks:
        return framework_cost(device_type.frameworks, framework, release)
    return _shipped(framework, release)


@dataclass(frozen=True)
class Rates:
    """A device type running layers of one shape: asks for seconds of kernels."""

    device_type: DeviceType
    shape: Shape

    @cached_property
    def shares(self) -> Efficiency:
        """Shares of the data sheet."""
        return self.device_type.shares

    @cached_property
    def framework(self) -> FrameworkCost:
        """What the framework adds."""
        return framework_of(self.device_type, self.shape.framework, self.shape.framework_release)

    @cached_property
    def dtype(self) -> Dtype:
        """Dtype of the projections."""
        return self._dtype(self.shape.precision)

    def _dtype(self, precision: TrainingPrecision) -> Dtype:
        tf32 = precision == "fp32" and self.shape.allow_tf32
        if tf32 and self.device_type.gpu.supports("tf32"):
            return "tf32"
        return matmul_dtype(self.device_type, precision)

    @cached_property
    def origin(self) -> Origin:
        """Of the weakest number that the projections' time depends on."""
        curve, sustained = self.shares.matmul[self.dtype], self.shares.sustained[self.dtype]
        return curve.origin.weakest(sustained.origin)

    @cached_property
    def _hbm(self) -> float:
        return self.device_type.gpu.memory_bytes_per_s

    @cached_property
    def _streaming(self) -> float:
        return self._hbm * self.shares.streaming.value

    @cached_property
    def _element(self) -> int:
        return ELEMENT_BYTES[self.shape.precision]

    def _peak(self, dtype: Dtype) -> float:
        gpu = self.device_type.gpu
        return gpu.usable_flops.get(dtype, gpu.peak_flops[dtype])

    def product_s(self, operation: Matmul) -> float:
        """A projection."""
        return self._product_s(operation, operation.m, operation.n, operation.k)

    def input_gradient_s(self, operation: Matmul) -> float:
        """The gradient of a projection's input: the output's gradient times the weight."""
        return self._product_s(operation, operation.m, operation.k, operation.n)

    def weight_gradient_s(self, operation: Matmul) -> float:
        """The gradient of a projection's weight, added to what the step has so far."""
        # In fp8 both operands were cast, and transposed, for the other two products.
        seconds = self._product_s(
            operation, operation.k, operation.n, operation.m, cast=self.dtype != "fp8"
        )
        return seconds + operation.weights * self.framework.weight_bytes.value / self._streaming

    def _product_s(
        self, operation: Matmul, m: float, n: float, k: float, *, cast: bool = True
    ) -> float:
        curve = self.shares.matmul[self.dtype]
        rate = self._peak(self.dtype) * curve.compute * self.shares.sustained[self.dtype].value
        if operation.grouped:
            rate *= self.shares.grouped.value
        traffic = curve.right * k * n + curve.output * m * n + (curve.left * m * k if cast else 0)
        count = operation.count
        launches = 1 if operation.grouped else count
        return (
            2 * m * n * k * count / rate + traffic * count / self._hbm + curve.launch_s * launches
        )

    def attention_s(self, operation: Attention, *, backward: bool = False) -> float:
        """Scores, softmax and values."""
        # Scores are computed in 16 bit also when the projections run in fp8.
        precision = "bf16" if self.shape.precision == "fp8" else self.shape.precision
        dtype = self._dtype(precision)
        curve = self.shares.matmul[dtype]
        if self.shape.kernel == "flash":
            share = (self.shares.attention_backward if backward else self.shares.attention).value
            if self.device_type.gpu.supports("fp8"):
                share *= self.framework.attention_after_ampere.value
            work = operation.flops * (CAUSAL_SHARE if operation.causal else 1)
            work *= FUSED_BACKWARD if backward else 1
            rate = self._peak(dtype) * share * self.shares.sustained[dtype].value
            nbytes = operation.elements * self._element * (2 if backward else 1)
            return max(work / rate, nbytes / self._streaming) + curve.launch_s
        passes = UNFUSED_FORWARD_PASSES
        if backward:
            passes = UNFUSED_BACKWARD_PASSES[self._element]
        products = 2 if backward else 1
        rate = self._peak(dtype) * curve.compute * self.shares.sustained[dtype].value
        moved = passes * operation.scores + products * operation.elements
        return (
            products * (operation.flops / rate + 4 * curve.launch_s)
            + moved * self._element / self._streaming
        )

    def elementwise_s(self, operation: Elementwise, *, backward: bool = False) -> float:
        """Kernels that the HBM bounds."""
        size = operation.element_bytes or self._element
        factor = 1.0 if operation.exact else self.framework.elementwise.value
        factor *= ELEMENTWISE_BACKWARD if backward else 1
        launch = self.shares.matmul[self.dtype].launch_s
        return operation.elements * size * factor / self._streaming + operation.kernels * launch

    def weight_s(self, operation: Operation) -> float:
        """The part of the backward pass that computes the gradient of the weight."""
        if not isinstance(operation, Matmul) or operation.frozen:
            return 0.0
        return self.weight_gradient_s(operation) * self._pace(operation)

    def _pace(self, operation: Operation) -> float:
        """What every kernel's seconds are multiplied by."""
        routed = isinstance(operation, Matmul | Elementwise) and operation.grouped
        return self.device_type.slowdown * (self.framework.routed.value if routed else 1)

    def forward_s(self, operation: Operation) -> float:
        """Any kernel in the forward pass, on this device type's health."""
        if isinstance(operation, Matmul):
            seconds = self.product_s(operation)
        elif isinstance(operation, Attention):
            seconds = self.attention_s(operation)
        else:
            seconds = self.elementwise_s(operation)
        return seconds * self._pace(operation)

    def backward_s(self, operation: Operation) -> float:
        """The gradients of any kernel, on this device type's health."""
        if isinstance(operation, Matmul):
            seconds = self.input_gradient_s(operation)
            if not operation.frozen:
                seconds += self.weight_gradient_s(operation)
        elif isinstance(operation, Attention):
            seconds = self.attention_s(operation, backward=True)
        else:
            seconds = self.elementwise_s(operation, backward=True)
        return seconds * self._pace(operation)
