"""One decoder layer: attention and feed-forward with the norms and residuals around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812

from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
    Norm,
)
from hetcli.trial.modules.attention import Core, GroupedAttention, LatentKeysAttention
from hetcli.trial.modules.feed_forward import DenseBlock, Experts, MoeBlock
from hetcli.trial.modules.weights import Maker, Weights
from hetcli.trial.parallel import Ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["DecoderLayer", "Normalised"]


class Normalised(Weights):
    """A norm over the last dimension, as the model's kind has it."""

    def __init__(self, maker: Maker, ranks: Ranks, spec: Norm, name: str, size: int) -> None:
        super().__init__(maker, ranks)
        self._spec = spec
        scaled = spec.kind != "none" and spec.elementwise
        self._weight = self.vector(f"{name}_weight", 1.0, (size,)) if scaled else None
        self._bias = self.vector(f"{name}_bias", 0.0, (size,)) if scaled and spec.bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        size, epsilon = (x.shape[-1],), self._spec.epsilon
        if self._spec.kind == "none":
            return x
        if self._spec.kind == "rmsnorm":
            y = F.rms_norm(x, size, self._weight, epsilon)
            return y if self._bias is None else y + self._bias
        return F.layer_norm(x, size, self._weight, self._bias, epsilon)


class DecoderLayer(Weights):
    """Attention and feed-forward blocks, each with its norms and its residual sum."""

    def __init__(
        self,
        maker: Maker,
        ranks: Ranks,
        spec: Layer,
        model: Model,
        core: Core,
        experts: Experts | None,
    ) -> None:
        super().__init__(maker, ranks)
        hidden = model.hidden_size
        self._spec = spec
        self.attention = _attention(maker, ranks, spec, model, core)
        feed_forward = spec.feed_forward
        self.feed_forward: DenseBlock | MoeBlock | None = None
        if isinstance(feed_forward, DenseFeedForward):
            self.feed_forward = DenseBlock(maker, ranks, feed_forward, hidden)
        elif isinstance(feed_forward, MoeFeedForward) and experts is not None:
            self.feed_forward = MoeBlock(maker, ranks, feed_forward, hidden, experts)
        for number in range(spec.norms):
            norm = Normalised(maker, ranks, model.norm, f"norm_{number}", hidden)
            self.add_module(f"norm_{number}", norm)

    def _norm(self, number: int, x: Tensor) -> Tensor:
        if number >= self._spec.norms:
            return x
        module: nn.Module = self.get_submodule(f"norm_{number}")
        y: Tensor = module(x)
        return y

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """[sequences, tokens, hidden]; `positions` are those of all the context rank's tokens."""
        if self._spec.parallel:
            one = self._norm(0, x)
            other = one if self._spec.norms < 2 else self._norm(1, x)
            total = x
            if self.attention is not None:
                total = total + self.attention(one, positions)
            return total if self.feed_forward is None else total + self.feed_forward(other)
        number = 0
        if self.attention is not None:
            x, number = self._around(x, number, lambda y: self.attention(y, positions))
        if self.feed_forward is not None:
            x, number = self._around(x, number, self.feed_forward)
        return x

    def _around(self, x: Tensor, number: int, block: object) -> tuple[Tensor, int]:
        assert callable(block)
        placement = self._spec.norm_placement
        if placement == "pre":
            return x + block(self._norm(number, x)), number + 1
        if placement == "post":
            return self._norm(number, x + block(x)), number + 1
        if placement == "output":
            return x + self._norm(number, block(x)), number + 1
        return x + self._norm(number + 1, block(self._norm(number, x))), number + 2


def _attention(
    maker: Maker,
    ranks: Ranks,
    spec: Layer,
    model: Model,
    core: Core,
) -> GroupedAttention | LatentKeysAttention | None:
    if isinstance(spec.attention, GroupedQueryAttention):
        return GroupedAttention(
            maker, ranks, spec.attention, model.hidden_size, model.positions, core
        )
    if isinstance(spec.attention, LatentAttention):
        return LatentKeysAttention(maker, ranks, spec.attention, model.hidden_size, core)
    return None
