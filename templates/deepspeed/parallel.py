"""Weights and norms that tensor parallelism splits over the ranks of a group.

`copied` and `reduced` are the two collectives of arXiv 1909.08053, section 3. Every weight is drawn
from its own seed, so that a model starts from the same numbers however it is split.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn

STD = 0.02


@dataclass
class Setup:
    """The model of plan.json, how each layer recomputes, and this process's tensor group."""

    model: dict[str, Any]
    recompute: list[str] = field(default_factory=list)
    attention: str = "auto"
    size: int = 1
    rank: int = 0
    group: Any = None

    @property
    def adapter_rank(self) -> int:
        """The rank of the adapters that are trained instead of the model; 0 without any."""
        adapters = self.model["adapters"]
        return 0 if adapters is None else int(adapters["rank"])

    def share(self, whole: int) -> int:
        """This rank's part of a dimension."""
        return whole // self.size


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor, group: Any) -> Tensor:
        context.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, tensor: Tensor, group: Any) -> Tensor:
        tensor = tensor.contiguous().clone()
        dist.all_reduce(tensor, group=group)
        return tensor

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def copied(setup: Setup, tensor: Tensor) -> Tensor:
    """The tensor itself; its gradient is summed over the tensor group."""
    return tensor if setup.size == 1 else _Copied.apply(tensor, setup.group)


def reduced(setup: Setup, tensor: Tensor) -> Tensor:
    """The sum over the tensor group; every rank gets the whole gradient."""
    return tensor if setup.size == 1 else _Reduced.apply(tensor, setup.group)


def weight(setup: Setup, name: str, shape: tuple[int, ...], split: int | None) -> nn.Parameter:
    """This rank's part, along dimension `split`, of a weight that is drawn whole."""
    generator = torch.Generator(device="cpu").manual_seed(zlib.crc32(name.encode()))
    whole = torch.empty(shape, device="cpu", dtype=torch.float32)
    whole.normal_(std=STD, generator=generator)
    if split is None or setup.size == 1:
        return nn.Parameter(whole)
    share = setup.share(shape[split])
    part = nn.Parameter(whole.narrow(split, setup.rank * share, share).clone())
    part.model_parallel = True  # DeepSpeed counts other parameters once in the gradient norm.
    return part


class Adapter(nn.Module):
    """The trained product of two low-rank matrices beside a frozen one (arXiv 2106.09685).

    It is split as the frozen one is; the side that stays whole gets the sum of its ranks'
    gradients. It starts as nothing: the second matrix is zero.
    """

    def __init__(
        self, setup: Setup, name: str, inputs: int, outputs: int, split: int | None
    ) -> None:
        super().__init__()
        self.setup, self.split = setup, split
        rank = setup.adapter_rank
        self.down = weight(setup, f"{name}.down", (rank, inputs), 1 if split == 1 else None)
        rows = setup.share(outputs) if split == 0 else outputs
        self.up = nn.Parameter(torch.zeros(rows, rank))
        self.up.model_parallel = split == 0 and setup.size > 1

    def forward(self, hidden: Tensor) -> Tensor:
        down, up = self.down, self.up
        if self.split == 0:
            down = copied(self.setup, down)
        elif self.split == 1:
            up = copied(self.setup, up)
        return functional.linear(functional.linear(hidden, down), up)


def train_adapters_alone(model: nn.Module) -> None:
    """Freeze everything but the adapters."""
    model.requires_grad_(False)
    for part in model.modules():
        if isinstance(part, Adapter):
            part.requires_grad_(True)


class Linear(nn.Module):
    """A matrix, whole or split along its outputs (dimension 0) or inputs (dimension 1).

    Split along the inputs it returns the sum over the tensor group. It has an adapter where the
    model has adapters, unless it is not `adapted`.
    """

    def __init__(
        self,
        setup: Setup,
        name: str,
        inputs: int,
        outputs: int,
        *,
        bias: bool = False,
        split: int | None = None,
        adapted: bool = True,
    ) -> None:
        super().__init__()
        self.setup, self.split = setup, split
        self.adapter = None
        if adapted and setup.adapter_rank:
            self.adapter = Adapter(setup, name, inputs, outputs, split)
        self.weight = weight(setup, f"{name}.weight", (outputs, inputs), split)
        self.bias = None
        if bias:
            rows = setup.share(outputs) if split == 0 else outputs
            self.bias = nn.Parameter(torch.zeros(rows))
            self.bias.model_parallel = split == 0 and setup.size > 1

    def forward(self, hidden: Tensor) -> Tensor:
        total = functional.linear(hidden, self.weight, None if self.split == 1 else self.bias)
        if self.adapter is not None:
            total = total + self.adapter(hidden)
        if self.split != 1:
            return total
        total = reduced(self.setup, total)
        return total if self.bias is None else total + self.bias


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension, as the model says.

    `shared` weights serve heads of several ranks: their gradients are summed over the group.
    """

    def __init__(self, setup: Setup, size: int, *, shared: bool = False) -> None:
        super().__init__()
        norm = setup.model["norm"]
        self.setup, self.shared = setup, shared
        self.rms, self.epsilon = norm["kind"] == "rmsnorm", norm["epsilon"]
        self.offset = 1.0 if norm["zero_centered"] else 0.0
        self.weight = None
        if norm["elementwise"]:
            self.weight = nn.Parameter(torch.full((size,), 1.0 - self.offset))
        self.bias = nn.Parameter(torch.zeros(size)) if norm["bias"] else None
        self.none = norm["kind"] == "none"

    def forward(self, hidden: Tensor) -> Tensor:
        if self.none:
            return hidden
        gain, bias = self.weight, self.bias
        if self.shared:
            gain = None if gain is None else copied(self.setup, gain)
            bias = None if bias is None else copied(self.setup, bias)
        gain = gain + self.offset if gain is not None and self.offset else gain
        size = hidden.shape[-1:]
        if not self.rms:
            return functional.layer_norm(hidden, size, gain, bias, self.epsilon)
        normed = functional.rms_norm(hidden, size, gain, self.epsilon)
        return normed if bias is None else normed + bias
