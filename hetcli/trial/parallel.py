"""Tensor, sequence and context parallel collectives as autograd functions, and linear layers.

The pairs f/g of Megatron-LM (arXiv 1909.08053, section 3) and, with sequence parallelism, g/g-bar
(arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Function

from hetcli.trial.groups import Group

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Deferred", "Ranks", "enter", "gather_tokens", "leave", "linear"]

# Activations are [sequences, tokens, hidden].
_TOKENS = 1


@dataclass
class Deferred:
    """Weight gradients that are computed later, as zero-bubble schedules do.

    While `collecting` is a list, backward passes put their weight gradients' computations there.
    """

    collecting: list[Callable[[], None]] | None = None


@dataclass(frozen=True)
class Ranks:
    """The groups of one device, and how its layers use them."""

    tensor: Group
    context: Group
    expert: Group
    expert_tensor: Group
    sequence_parallel: bool = False
    deferred: Deferred = field(default_factory=Deferred)


class _Reduced(Function):
    """Nothing forwards; backwards the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce(gradient.contiguous().clone()), None


class _Summed(Function):
    """The sum of the ranks' tensors forwards; nothing backwards."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:  # noqa: ARG004
        return group.all_reduce(tensor.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradient, None


class _Gathered(Function):
    """All ranks' parts forwards; backwards each rank's part of the summed gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return group.all_gather(tensor, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.reduce_scatter(gradient, ctx.dim), None, None


class _Scattered(Function):
    """Each rank's part of the sum forwards; all ranks' parts of the gradient backwards."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return group.reduce_scatter(tensor, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.all_gather(gradient, ctx.dim), None, None


def enter(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Into a block whose weights are cut over the tensor ranks: everyone has all tokens."""
    if ranks.tensor.size == 1:
        return tensor
    if ranks.sequence_parallel:
        return _call(_Gathered, tensor, ranks.tensor, _TOKENS)
    return _call(_Reduced, tensor, ranks.tensor)


def leave(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Out of such a block: the ranks' partial results are added up."""
    if ranks.tensor.size == 1:
        return tensor
    if ranks.sequence_parallel:
        return _call(_Scattered, tensor, ranks.tensor, _TOKENS)
    return _call(_Summed, tensor, ranks.tensor)


def gather_tokens(tensor: Tensor, ranks: Ranks, dim: int) -> Tensor:
    """Keys or values of all context ranks."""
    return tensor if ranks.context.size == 1 else _call(_Gathered, tensor, ranks.context, dim)


def _call(function: type[Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


class _Linear(Function):
    """x·Wᵀ, whose weight gradient may be put off."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, deferred: Deferred) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.deferred = weight, deferred
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (x,), weight, later = ctx.saved_tensors, ctx.weight, ctx.deferred.collecting

        def weight_gradient() -> Tensor:
            return gradient.flatten(0, -2).t() @ x.flatten(0, -2)

        if later is None:
            return gradient @ weight, weight_gradient(), None

        def add() -> None:
            with torch.no_grad():
                own = weight_gradient()
                weight.grad = own if weight.grad is None else weight.grad.add_(own)

        later.append(add)
        return gradient @ weight, None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, ranks: Ranks) -> Tensor:
    """x·Wᵀ + b over the last dimension."""
    y = _call(_Linear, x, weight, ranks.deferred)
    return y if bias is None else y + bias
