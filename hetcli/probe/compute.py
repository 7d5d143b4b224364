"""Matmul rate and memory bandwidth of one device, measured with torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from hetcli.probe.timing import Deadline, measure
from hetcli.spec.profile import MatmulMeasurement, MemoryBandwidthMeasurement

if TYPE_CHECKING:
    import torch

__all__ = ["matmul_sweep", "memory_bandwidth"]

MatmulDtype = Literal["fp32", "fp16", "bf16"]

# (m, k, n) of a transformer's four products at growing sizes; m is tokens, k and n multiples of the
# hidden size, so that the sweep covers what a plan will ask for.
_GPU_SHAPES = tuple(
    (tokens, hidden, factor * hidden)
    for hidden in (1024, 2048, 4096, 8192)
    for tokens in (2048, 8192)
    for factor in (1, 4)
)
_CPU_SHAPES = ((512, 512, 512), (1024, 1024, 1024), (512, 1024, 4096))


def _dtypes(device: torch.device) -> Sequence[MatmulDtype]:
    import torch

    if device.type != "cuda":
        return ("fp32", "bf16")
    capable = torch.cuda.get_device_capability(device) >= (8, 0)
    return ("fp32", "fp16", "bf16") if capable else ("fp32", "fp16")


def _torch_dtype(name: MatmulDtype) -> torch.dtype:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]


def _synchronize(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_sweep(
    index: int, device: torch.device, deadline: Deadline
) -> Iterator[MatmulMeasurement]:
    """One measurement for each shape and dtype, in order of size, until the deadline."""
    import torch

    shapes = _GPU_SHAPES if device.type == "cuda" else _CPU_SHAPES
    plan = [(dtype, shape) for shape in shapes for dtype in _dtypes(device)]
    for position, (dtype, (m, k, n)) in enumerate(plan):
        left = torch.randn(m, k, device=device).to(_torch_dtype(dtype))
        right = torch.randn(k, n, device=device).to(_torch_dtype(dtype))
        seconds = measure(
            lambda a=left, b=right: torch.mm(a, b),
            synchronize=lambda: _synchronize(device),
            deadline=deadline,
            share=1 / (len(plan) - position),
        )
        if seconds is None:
            return
        yield MatmulMeasurement(
            device=index,
            dtype=dtype,
            m=m,
            n=n,
            k=k,
            seconds=seconds,
            flop_per_s=2 * m * n * k / seconds.median,
        )


def memory_bandwidth(
    index: int, device: torch.device, deadline: Deadline
) -> MemoryBandwidthMeasurement | None:
    """A copy inside the device's memory, larger than any cache; None when time is up."""
    import torch

    elements = (1024**3 if device.type == "cuda" else 256 * 1024**2) // 4
    source = torch.ones(elements, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    seconds = measure(
        lambda: target.copy_(source),
        synchronize=lambda: _synchronize(device),
        deadline=deadline,
    )
    if seconds is None:
        return None
    moved = 2 * 4 * elements
    return MemoryBandwidthMeasurement(
        device=index,
        transferred_bytes=moved,
        seconds=seconds,
        bytes_per_s=moved / seconds.median,
    )
