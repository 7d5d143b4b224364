"""Feed-forward blocks: dense ones, and experts with their routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd import Function

from hetcli.spec.model.architecture import Activation, DenseFeedForward, MoeFeedForward
from hetcli.trial.groups import Group
from hetcli.trial.modules.weights import Maker, Weights
from hetcli.trial.parallel import Ranks, enter, leave, linear

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DenseBlock", "Experts", "MoeBlock", "activated"]

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
}


def activated(x: Tensor, activation: Activation, *, gated: bool) -> Tensor:
    """The activation; of a gated block, whose two halves lie one after the other, the product."""
    function = _ACTIVATIONS[activation]
    if not gated:
        return function(x)
    gate, up = x.chunk(2, -1)
    return function(gate) * up


class DenseBlock(Weights):
    """Two matrices, or three with a gate; tensor ranks hold slices of the inner size."""

    def __init__(self, maker: Maker, ranks: Ranks, spec: DenseFeedForward, hidden: int) -> None:
        super().__init__(maker, ranks)
        self._spec = spec
        blocks = (spec.size,) * (2 if spec.gated else 1)
        self._up = self.matrix("up", blocks, hidden, cut=0)
        self._down = self.matrix("down", (hidden,), spec.size, cut=1)
        self._up_bias = self.vector("up_bias", 0.0, blocks, cut=True) if spec.bias else None
        self._down_bias = self.vector("down_bias", 0.0, (hidden,)) if spec.bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[sequences, tokens, hidden]."""
        inner = linear(enter(x, self.ranks), self._up, self._up_bias, self.ranks)
        inner = activated(inner, self._spec.activation, gated=self._spec.gated)
        y = leave(linear(inner, self._down, None, self.ranks), self.ranks)
        return y if self._down_bias is None else y + self._down_bias


class _Cut(Function):
    """This rank's part of the tokens, of which all ranks have all."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return tokens.chunk(group.size)[group.rank]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_gather(gradient), None


class _Joined(Function):
    """All ranks' parts of the tokens, which all of them use alike from here on."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.all_gather(tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.chunk(ctx.group.size)[ctx.group.rank], None


class _Exchanged(Function):
    """Rows to the ranks that hold their experts, or back; gradients take the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group, send: Any, receive: Any) -> Tensor:
        ctx.group, ctx.send, ctx.receive = group, send, receive
        return group.exchange(rows, send, receive)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.group.exchange(gradient, ctx.receive, ctx.send), None, None, None


class Experts(Weights):
    """The routed experts that this device holds: some of them, whole or a slice of each.

    `maker` makes for the rank among those that share an expert.
    """

    def __init__(self, maker: Maker, ranks: Ranks, spec: MoeFeedForward, hidden: int) -> None:
        super().__init__(maker, ranks)
        self._spec = spec
        self.count = spec.experts // ranks.expert.size
        blocks = (spec.expert_size,) * (2 if spec.gated else 1)
        first = ranks.expert.rank * self.count
        self._pairs = [
            (
                self.matrix(f"up_{number}", blocks, hidden, cut=0),
                self.matrix(f"down_{number}", (hidden,), spec.expert_size, cut=1),
            )
            for number in range(first, first + self.count)
        ]
        # All gradients of a part are added up over everyone who holds it, tensor ranks included.
        self.partial.clear()

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows sorted by expert, `counts` of them for each."""
        results = [
            linear(
                activated(
                    linear(part, up, None, self.ranks),
                    self._spec.activation,
                    gated=self._spec.gated,
                ),
                down,
                None,
                self.ranks,
            )
            for part, (up, down) in zip(rows.split(counts), self._pairs, strict=True)
        ]
        return torch.cat(results)


class MoeBlock(Weights):
    """Router, exchange with the ranks that hold the experts, and shared experts."""

    def __init__(
        self,
        maker: Maker,
        ranks: Ranks,
        spec: MoeFeedForward,
        hidden: int,
        experts: Experts,
    ) -> None:
        super().__init__(maker, ranks)
        self._spec = spec
        # Held by the layer's owner under a content of their own, so not a submodule of this one.
        self._experts = (experts,)
        self._router = self.matrix("router", (spec.experts,), hidden, cut=None)
        self.partial.add("router")
        self.shared = None
        if spec.shared_size:
            dense = DenseFeedForward(
                size=spec.shared_size, gated=spec.gated, activation=spec.activation
            )
            self.shared = DenseBlock(maker, ranks, dense, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[sequences, tokens, hidden]."""
        ranks = self.ranks
        if ranks.expert_tensor.size > 1:
            tokens = enter(x, ranks)
            y = leave(self._routed(tokens.flatten(0, 1)).view_as(tokens), ranks)
        elif ranks.tensor.size > 1 and not ranks.sequence_parallel:
            own: Tensor = _Cut.apply(x.flatten(0, 1), ranks.tensor)
            joined: Tensor = _Joined.apply(self._routed(own), ranks.tensor)
            y = joined.view_as(x)
        else:
            y = self._routed(x.flatten(0, 1)).view_as(x)
        return y if self.shared is None else y + self.shared(x)

    def _routed(self, tokens: Tensor) -> Tensor:
        spec, group = self._spec, self.ranks.expert
        experts = self._experts[0]
        scores = linear(tokens, self._router, None, self.ranks).float()
        scores = scores.softmax(-1) if spec.score_function == "softmax" else scores.sigmoid()
        weights, chosen = scores.topk(spec.top_k, -1)
        if spec.normalize_top_k:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = (weights * spec.routed_scaling).to(tokens.dtype)
        order = chosen.flatten().argsort(stable=True)
        rows = tokens[order // spec.top_k]
        counts = torch.bincount(chosen.flatten(), minlength=spec.experts)
        arrived = group.exchange(counts, *([experts.count] * group.size,) * 2)
        table = arrived.view(group.size, experts.count)
        send = counts.view(group.size, -1).sum(1).tolist()
        receive = table.sum(1).tolist()
        got: Tensor = _Exchanged.apply(rows, group, send, receive)
        # Rows come sender by sender; the experts want them expert by expert.
        owner = torch.arange(experts.count, device=rows.device).repeat(group.size)
        by_expert = owner.repeat_interleave(arrived).argsort(stable=True)
        done = experts(got[by_expert], table.sum(0).tolist())
        unsorted = torch.empty_like(done).index_copy(0, by_expert, done)
        back: Tensor = _Exchanged.apply(unsorted, group, receive, send)
        return torch.zeros_like(tokens).index_add(
            0, order // spec.top_k, back * weights.flatten()[order, None]
        )
