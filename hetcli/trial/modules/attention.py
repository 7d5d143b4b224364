"""Self-attention of the two kinds that models have, cut over tensor and context ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from hetcli.spec.model.architecture import GroupedQueryAttention, LatentAttention, Positions
from hetcli.trial.modules.weights import Maker, Weights
from hetcli.trial.parallel import Ranks, enter, gather_tokens, leave, linear

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Core", "GroupedAttention", "LatentKeysAttention", "attend"]

Kernel = Literal["flash", "unfused"]

# [sequences, heads, tokens, head size]
_TOKENS = 2
_EPSILON = 1e-5
# Slopes of ALiBi form a geometric series that ends at 2^-8 (arXiv 2108.12409, section 3).
_ALIBI_BITS = 8


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    kernel: Kernel,
    positions: Tensor,
    key_positions: Tensor,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Causal attention. `positions` say where in the sequence queries and keys stand.

    The fused kernel is PyTorch's scaled_dot_product_attention; whatever it cannot express is done
    with explicit scores, as `unfused` asks for.
    """
    groups = query.shape[1] // key.shape[1]
    plain = window is None and slopes is None and len(positions) == len(key_positions)
    if kernel == "flash" and softcap is None and plain:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=groups > 1
        )
    ahead = key_positions[None, :] - positions[:, None]
    hidden = ahead > 0
    if window is not None:
        hidden = hidden | (ahead <= -window)
    mask = torch.zeros(hidden.shape, device=query.device, dtype=query.dtype)
    mask = mask.masked_fill(hidden, float("-inf"))
    if slopes is not None:
        mask = mask + slopes[:, None, None].to(query) * ahead.to(query)
    if kernel == "flash" and softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=groups > 1
        )
    if groups > 1:
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    scores = query @ key.transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.softmax((scores + mask).float(), -1).to(value.dtype) @ value


@dataclass(frozen=True)
class Core:
    """How scores and values are computed, and whether the backward pass does it again."""

    kernel: Kernel
    again: bool = False

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
        """`attend`."""
        if not self.again:
            return attend(query, key, value, kernel=self.kernel, **how)
        result: Tensor = checkpoint(
            attend, query, key, value, kernel=self.kernel, use_reentrant=False, **how
        )
        return result


def _rotated(x: Tensor, positions: Tensor, base: float, fraction: float = 1.0) -> Tensor:
    """Rotary embedding (arXiv 2104.09864) of the first `fraction` of every head."""
    size = int(x.shape[-1] * fraction) // 2 * 2
    steps = torch.arange(0, size, 2, device=x.device, dtype=torch.float32)
    angles = positions.float()[:, None] * base ** (-steps / max(size, 1))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, other, rest = x.split([size // 2, size // 2, x.shape[-1] - size], -1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos, rest], -1)


class GroupedAttention(Weights):
    """Multi-head, grouped-query or multi-query attention; tensor ranks hold whole heads."""

    def __init__(
        self,
        maker: Maker,
        ranks: Ranks,
        spec: GroupedQueryAttention,
        hidden: int,
        positions: Positions,
        core: Core,
    ) -> None:
        super().__init__(maker, ranks)
        self._spec, self._places, self._core = spec, positions, core
        query, other = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        blocks = (query, other, other)
        self._sizes = [block // maker.size for block in blocks]
        self._qkv = self.matrix("qkv", blocks, hidden, cut=0)
        self._qkv_bias = self.vector("qkv_bias", 0.0, blocks, cut=True) if spec.qkv_bias else None
        self._out = self.matrix("out", (hidden,), query, cut=1)
        self._out_bias = self.vector("out_bias", 0.0, (hidden,)) if spec.output_bias else None
        self._norms = (
            [self.vector(name, 1.0, (spec.head_dim,)) for name in ("query_norm", "key_norm")]
            if spec.query_key_norm == "head"
            else []
        )
        if maker.size > 1:
            # Each rank normalises heads of its own.
            self.partial |= {name for name in ("query_norm", "key_norm") if name in self.shards}

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """[sequences, tokens, hidden]; `positions` are those of all the context rank's tokens."""
        spec = self._spec
        x = enter(x, self.ranks)
        mixed = linear(x, self._qkv, self._qkv_bias, self.ranks).split(self._sizes, -1)
        query, key, value = (
            each.unflatten(-1, (-1, spec.head_dim)).transpose(1, 2) for each in mixed
        )
        if self._norms:
            query, key = (
                F.rms_norm(each, (spec.head_dim,), weight, _EPSILON)
                for each, weight in zip((query, key), self._norms, strict=True)
            )
        rotary = self._places.rotary
        if self._places.kind == "rope":
            base, part = (rotary.base, rotary.fraction) if rotary else (10000.0, 1.0)
            query, key = (_rotated(each, positions, base, part) for each in (query, key))
        every = self.ranks.context.all_gather(positions)
        attended = self._core(
            query,
            gather_tokens(key, self.ranks, _TOKENS),
            gather_tokens(value, self.ranks, _TOKENS),
            positions=positions,
            key_positions=every,
            window=spec.sliding_window if (spec.sliding_window or 0) < len(every) else None,
            scale=spec.softmax_scale,
            softcap=spec.logit_softcap,
            slopes=self._slopes(x.device) if self._places.kind == "alibi" else None,
        )
        y = attended.transpose(1, 2).flatten(2)
        y = leave(linear(y, self._out, None, self.ranks), self.ranks)
        return y if self._out_bias is None else y + self._out_bias

    def _slopes(self, device: torch.device) -> Tensor:
        heads = self._spec.heads
        numbers = torch.arange(1, heads + 1, device=device, dtype=torch.float32)
        own = heads // self.maker.size
        slopes = 2.0 ** (-_ALIBI_BITS * numbers / heads)
        return slopes.narrow(0, self.maker.rank * own, own)


class LatentKeysAttention(Weights):
    """Multi-head latent attention; the latents are computed on every tensor rank."""

    def __init__(
        self,
        maker: Maker,
        ranks: Ranks,
        spec: LatentAttention,
        hidden: int,
        core: Core,
    ) -> None:
        super().__init__(maker, ranks)
        self._spec, self._core = spec, core
        heads, plain, turned = spec.heads, spec.head_dim_without_rope, spec.head_dim_rope
        rank = spec.query_rank
        self._query_down = None
        if rank is not None:
            self._query_down = self.matrix("query_down", (rank,), hidden, cut=None)
            self._query_norm = self.vector("query_norm", 1.0, (rank,))
        self._query = self.matrix("query", (heads * (plain + turned),), rank or hidden, cut=0)
        self._down = self.matrix("down", (spec.kv_rank + turned,), hidden, cut=None)
        self._down_norm = self.vector("down_norm", 1.0, (spec.kv_rank,))
        self._up = self.matrix("up", (heads * (plain + spec.value_head_dim),), spec.kv_rank, cut=0)
        self._out = self.matrix("out", (hidden,), heads * spec.value_head_dim, cut=1)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """[sequences, tokens, hidden]."""
        spec, ranks = self._spec, self.ranks
        plain, turned = spec.head_dim_without_rope, spec.head_dim_rope
        latent = x
        if self._query_down is not None:
            latent = linear(x, self._query_down, None, ranks)
            latent = F.rms_norm(latent, (latent.shape[-1],), self._query_norm, _EPSILON)
        query = linear(enter(latent, ranks), self._query, None, ranks)
        query = query.unflatten(-1, (-1, plain + turned)).transpose(1, 2)
        compressed, rope = linear(x, self._down, None, ranks).split([spec.kv_rank, turned], -1)
        compressed = F.rms_norm(compressed, (spec.kv_rank,), self._down_norm, _EPSILON)
        # Both parts are sent on as one: every rank uses them for its own heads.
        compressed, rope = enter(torch.cat([compressed, rope], -1), ranks).split(
            [spec.kv_rank, turned], -1
        )
        both = linear(compressed, self._up, None, ranks)
        key, value = (
            both.unflatten(-1, (-1, plain + spec.value_head_dim))
            .transpose(1, 2)
            .split([plain, spec.value_head_dim], -1)
        )
        base = 10000.0
        shared = _rotated(rope[:, None], positions, base).expand(-1, key.shape[1], -1, -1)
        key = torch.cat([key, shared], -1)
        query = torch.cat([query[..., :plain], _rotated(query[..., plain:], positions, base)], -1)
        attended = self._core(
            query,
            gather_tokens(key, ranks, _TOKENS),
            gather_tokens(value, ranks, _TOKENS),
            positions=positions,
            key_positions=ranks.context.all_gather(positions),
        )
        y = attended.transpose(1, 2).flatten(2)
        return leave(linear(y, self._out, None, ranks), ranks)
