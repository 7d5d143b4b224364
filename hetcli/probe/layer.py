"""One rank's share of a transformer layer, forward and backward, by torch.

Tensor parallelism divides heads and feed-forward columns (arXiv 1909.08053, section 3); what the
ranks exchange is measured apart, as links.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from hetcli.probe.compute import WrongResultError
from hetcli.probe.timing import measure
from hetcli.probe.torch_device import Target, torch_dtype
from hetcli.probe.wire import LayerJob
from hetcli.spec.profile import LayerMeasurement

if TYPE_CHECKING:
    import torch

__all__ = ["layer"]

AttentionKernel = Literal["flash", "efficient", "cudnn", "math", "unknown"]

_EPSILON: Final = 1e-5
# Positions whose output is computed a second time, in fp32, to check the first.
_CHECKED: Final = 32
# Relative error (of norms) of a layer against fp32: 16-bit storage rounds every intermediate.
_TOLERANCE: Final = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 6e-2}


@dataclass(frozen=True)
class _Weights:
    """Pre-norm layer: norms, attention projections, feed-forward (first matrix twice if gated)."""

    norm1: torch.Tensor
    query_key_value: torch.Tensor
    output: torch.Tensor
    norm2: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (
            self.norm1,
            self.query_key_value,
            self.output,
            self.norm2,
            self.up,
            self.down,
        )

    def to_fp32(self) -> _Weights:
        return _Weights(*(each.detach().float() for each in self.tensors()))


def _weights(job: LayerJob, device: torch.device) -> _Weights:
    import torch

    heads, groups = _local_heads(job)
    width = job.ffn_size // job.tensor_parallel
    columns = 2 * width if job.gated else width
    generator = torch.Generator().manual_seed(0)

    def matrix(inputs: int, outputs: int) -> torch.Tensor:
        # Variance 1/inputs keeps activations of order one.
        values = torch.randn(inputs, outputs, generator=generator) / inputs**0.5
        return values.to(torch_dtype(job.dtype)).to(device).requires_grad_()

    def vector(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch_dtype(job.dtype), device=device).requires_grad_()

    return _Weights(
        norm1=vector(job.hidden_size),
        query_key_value=matrix(job.hidden_size, (heads + 2 * groups) * job.head_dim),
        output=matrix(heads * job.head_dim, job.hidden_size),
        norm2=vector(job.hidden_size),
        up=matrix(job.hidden_size, columns),
        down=matrix(width, job.hidden_size),
    )


def _local_heads(job: LayerJob) -> tuple[int, int]:
    """Query heads and key-value heads of one rank."""
    return job.heads // job.tensor_parallel, max(1, job.kv_heads // job.tensor_parallel)


def _forward(job: LayerJob, weights: _Weights, inputs: torch.Tensor) -> torch.Tensor:
    import torch
    from torch.nn import functional

    batch, sequence, hidden = inputs.shape
    heads, groups = _local_heads(job)
    normed = functional.rms_norm(inputs, (hidden,), weights.norm1, _EPSILON)
    projected = normed @ weights.query_key_value
    query, key, value = projected.split(
        [heads * job.head_dim, groups * job.head_dim, groups * job.head_dim], dim=-1
    )
    attended = functional.scaled_dot_product_attention(
        query.view(batch, sequence, heads, job.head_dim).transpose(1, 2),
        key.view(batch, sequence, groups, job.head_dim).transpose(1, 2),
        value.view(batch, sequence, groups, job.head_dim).transpose(1, 2),
        is_causal=True,
        enable_gqa=groups != heads,
    )
    merged = attended.transpose(1, 2).reshape(batch, sequence, heads * job.head_dim)
    middle = inputs + merged @ weights.output
    normed = functional.rms_norm(middle, (hidden,), weights.norm2, _EPSILON)
    inner = normed @ weights.up
    if job.gated:
        gate, inner = inner.chunk(2, dim=-1)
        inner = functional.silu(gate) * inner
    else:
        inner = functional.gelu(inner)
    return torch.add(middle, inner @ weights.down)


@contextlib.contextmanager
def _kernel(kernel: AttentionKernel) -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    with sdpa_kernel([backends[kernel]]):
        yield


def _best_kernel(run: Callable[[], Any]) -> AttentionKernel:
    """The first attention kernel that runs these shapes forward and backward on this device."""
    import torch

    kernels: tuple[AttentionKernel, ...] = ("flash", "cudnn", "efficient", "math")
    for kernel in kernels:
        with _kernel(kernel), warnings.catch_warnings():
            # torch warns once for every reason why a kernel cannot run.
            warnings.simplefilter("ignore")
            try:
                run()
            except torch.OutOfMemoryError:
                # Another kernel would hide that the shape is too large.
                raise
            except RuntimeError:
                continue
            return kernel
    raise WrongResultError("no attention kernel of torch runs these shapes")


def layer(target: Target, job: LayerJob) -> LayerMeasurement:
    """Times and peak memory of the layer."""
    import torch

    weights = _weights(job, target.device)
    generator = torch.Generator().manual_seed(1)
    shape = (job.micro_batch_size, job.sequence, job.hidden_size)
    values = torch.randn(shape, generator=generator).to(torch_dtype(job.dtype))
    inputs = values.to(target.device).requires_grad_()
    gradient = torch.ones_like(inputs)
    leaves = (*weights.tensors(), inputs)

    def forward() -> torch.Tensor:
        for leaf in leaves:
            leaf.grad = None
        return _forward(job, weights, inputs)

    def both() -> None:
        forward().backward(gradient)

    kernel = _best_kernel(both)
    timer = target.timer()

    def backward_timer(_: Callable[[], object]) -> float:
        outputs = forward()
        target.synchronize()
        return timer(lambda: outputs.backward(gradient))

    with _kernel(kernel):
        peak = target.peak_memory(both)
        forward_s = measure(forward, timer=timer, seconds=job.seconds * 0.4)
        backward_s = measure(both, timer=backward_timer, seconds=job.seconds * 0.6)
        _check(job, weights, inputs, forward(), leaves)
    return LayerMeasurement(
        device=target.index,
        model=job.model,
        dtype=job.dtype,
        hidden_size=job.hidden_size,
        heads=job.heads,
        kv_heads=job.kv_heads,
        head_dim=job.head_dim,
        ffn_size=job.ffn_size,
        gated=job.gated,
        tensor_parallel=job.tensor_parallel,
        micro_batch_size=job.micro_batch_size,
        sequence=job.sequence,
        attention=kernel,
        forward_s=forward_s,
        backward_s=backward_s,
        peak_memory_bytes=peak,
    )


def _check(
    job: LayerJob,
    weights: _Weights,
    inputs: torch.Tensor,
    outputs: torch.Tensor,
    leaves: tuple[torch.Tensor, ...],
) -> None:
    """Causality lets the first positions stand alone: compute them in fp32 and compare."""
    import torch

    with torch.no_grad(), _kernel("math"):
        first = inputs.detach()[:1, :_CHECKED].float()
        expected = _forward(job, weights.to_fp32(), first)
    found = outputs.detach()[:1, :_CHECKED].float()
    off = float((found - expected).norm() / expected.norm())
    if not off <= _TOLERANCE[job.dtype]:
        raise WrongResultError(f"the layer in {job.dtype} is off by {off:.2%} from fp32")
    outputs.backward(torch.ones_like(outputs))
    if not all(leaf.grad is not None and bool(leaf.grad.isfinite().all()) for leaf in leaves):
        raise WrongResultError(f"the layer in {job.dtype} has gradients that are not finite")
