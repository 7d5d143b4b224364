"""Matmul rate, memory bandwidth, host copies and optimizer step of one device, by torch.

Every probe checks its result before it reports a time: a device that computes wrong values fast is
not fast. A wrong value raises WrongResultError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from hetcli.probe.timing import measure
from hetcli.probe.torch_device import Target, torch_dtype
from hetcli.spec.profile import (
    ComputeDtype,
    HostCopyMeasurement,
    MatmulMeasurement,
    MemoryBandwidthMeasurement,
    OptimizerMeasurement,
)

if TYPE_CHECKING:
    import torch

__all__ = ["WrongResultError", "adam_step", "host_copy", "matmul", "memory_bandwidth"]

# Units in the last place of the result that a product may be off for k summands: inputs have one
# rounding each, sums are kept in fp32 or wider.
_RELATIVE: Final = {"fp32": 2**-23, "tf32": 2**-10, "fp16": 2**-10, "bf16": 2**-7, "fp8": 2**-3}
_SAMPLES: Final = 16
# Default of torch.optim.Adam.
_LEARNING_RATE: Final = 1e-3


class WrongResultError(Exception):
    """The device computed something else than it was asked for."""


def matmul(
    target: Target, *, dtype: ComputeDtype, m: int, n: int, k: int, seconds: float
) -> MatmulMeasurement:
    """The rate of an (m, k) x (k, n) product."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    generator = torch.Generator(device="cpu").manual_seed(m + n + k)
    kind = torch_dtype(dtype)
    left = torch.randn(m, k, generator=generator).to(kind).to(target.device)
    right = torch.randn(k, n, generator=generator).to(kind).to(target.device)
    result = torch.empty(m, n, dtype=kind, device=target.device)
    found = measure(
        lambda: torch.mm(left, right, out=result), timer=target.timer(), seconds=seconds
    )
    _check_product(left, right, result, dtype)
    return MatmulMeasurement(
        device=target.index,
        dtype=dtype,
        m=m,
        n=n,
        k=k,
        seconds=found,
        flop_per_s=2 * m * n * k / found.median,
    )


def _check_product(
    left: torch.Tensor, right: torch.Tensor, result: torch.Tensor, dtype: ComputeDtype
) -> None:
    """Compare a diagonal of sampled entries with sums in double precision."""
    import torch

    m, k = left.shape
    n = right.shape[1]
    rows = torch.linspace(0, m - 1, _SAMPLES).long().to(left.device)
    columns = torch.linspace(0, n - 1, _SAMPLES).long().to(left.device)
    summands = left[rows].double() * right[:, columns].T.double()
    expected = summands.sum(dim=1)
    # Rounding errors of a sum are at most proportional to the sum of the magnitudes.
    bound = 4 * _RELATIVE[dtype] * summands.abs().sum(dim=1)
    off = (result[rows, columns].double() - expected).abs()
    if not bool((off <= bound).all()):
        raise WrongResultError(
            f"a {m} x {k} x {n} product in {dtype} is off by {off.max().item():.3g}"
        )


def memory_bandwidth(target: Target, *, nbytes: int, seconds: float) -> MemoryBandwidthMeasurement:
    """A copy of `nbytes` inside the device's memory; larger than any cache to mean something."""
    import torch

    source = torch.arange(nbytes // 4, dtype=torch.int32, device=target.device)
    copy = torch.zeros_like(source)
    found = measure(lambda: copy.copy_(source), timer=target.timer(), seconds=seconds)
    if not torch.equal(copy, source):
        raise WrongResultError(f"a copy of {nbytes} bytes in memory differs from its source")
    moved = 2 * 4 * source.numel()
    return MemoryBandwidthMeasurement(
        device=target.index,
        transferred_bytes=moved,
        seconds=found,
        bytes_per_s=moved / found.median,
    )


def host_copy(
    target: Target, *, direction: Literal["to_device", "to_host"], nbytes: int, seconds: float
) -> HostCopyMeasurement:
    """A copy between pinned host memory and the device. Call it for a GPU only."""
    import torch

    there = torch.arange(nbytes // 4, dtype=torch.int32).pin_memory()
    device = torch.zeros_like(there, device=target.device)
    source, copy = (there, device) if direction == "to_device" else (device, there)
    if direction == "to_host":
        device.copy_(there)
        there.zero_()
    found = measure(
        lambda: copy.copy_(source, non_blocking=True),
        timer=target.timer(flush=False),
        seconds=seconds,
    )
    target.synchronize()
    if not torch.equal(copy.cpu(), source.cpu()):
        raise WrongResultError(f"a copy of {nbytes} bytes {direction} differs from its source")
    return HostCopyMeasurement(
        device=target.index,
        direction=direction,
        transferred_bytes=nbytes,
        seconds=found,
        bytes_per_s=nbytes / found.median,
    )


def adam_step(target: Target, *, parameters: int, seconds: float) -> OptimizerMeasurement:
    """One step of torch's fused Adam over one flat fp32 parameter."""
    import torch

    parameter = torch.nn.Parameter(torch.ones(parameters, device=target.device))
    parameter.grad = torch.linspace(-1.0, 1.0, parameters, device=target.device)
    optimizer = torch.optim.Adam([parameter], lr=_LEARNING_RATE, fused=True)
    optimizer.step()
    # The first step of Adam moves every parameter by the rate, against the gradient's sign.
    moved = (1 - parameter.detach()[[0, -1]]).tolist()
    if not all(
        abs(found - expected) < _LEARNING_RATE / 100
        for found, expected in zip(moved, (-_LEARNING_RATE, _LEARNING_RATE), strict=True)
    ):
        raise WrongResultError(f"the first Adam step moved parameters by {moved}")
    found = measure(optimizer.step, timer=target.timer(flush=False), seconds=seconds)
    return OptimizerMeasurement(
        device=target.index, optimizer="adam", parameters=parameters, seconds=found
    )
