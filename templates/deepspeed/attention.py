"""Multi-head, grouped-query and latent attention, from the attention part of plan.json."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as functional
from parallel import Linear, Norm, Setup, copied
from positions import alibi_slopes, rotary_table, rotate, softmax_correction
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "unfused": SDPBackend.MATH}


class Attention(nn.Module):
    """Multi-head, grouped-query or latent attention over causal sequences."""

    def __init__(self, setup: Setup, name: str, shape: dict[str, Any], recompute: bool) -> None:
        super().__init__()
        self.setup, self.shape, self.recompute = setup, shape, recompute
        hidden, heads = setup.model["hidden_size"], shape["heads"]
        self.latent = shape["kind"] == "mla"
        if self.latent:
            self._build_latent(name, hidden, heads)
            values = shape["value_head_dim"]
            output_bias = shape["bias"]
        else:
            values, bias = shape["head_dim"], shape["qkv_bias"]
            self.query = Linear(setup, f"{name}.query", hidden, heads * values, bias=bias, split=0)
            size = shape["kv_heads"] * values
            self.key = Linear(setup, f"{name}.key", hidden, size, bias=bias, split=0)
            self.value = Linear(setup, f"{name}.value", hidden, size, bias=bias, split=0)
            self._build_query_key_norms(heads)
            output_bias = shape["output_bias"]
        self.output = Linear(
            setup, f"{name}.output", heads * values, hidden, bias=output_bias, split=1
        )

    def _build_latent(self, name: str, hidden: int, heads: int) -> None:
        setup, shape = self.setup, self.shape
        rank, bias = shape["query_rank"], shape["bias"]
        size = shape["head_dim_without_rope"] + shape["head_dim_rope"]
        if rank is not None:
            self.query_down = Linear(setup, f"{name}.query_down", hidden, rank, bias=bias)
            self.query_norm = Norm(setup, rank)
        self.query = Linear(setup, f"{name}.query", rank or hidden, heads * size, split=0)
        down = shape["kv_rank"] + shape["head_dim_rope"]
        self.kv_down = Linear(setup, f"{name}.kv_down", hidden, down, bias=bias)
        self.kv_norm = Norm(setup, shape["kv_rank"])
        up = shape["head_dim_without_rope"] + shape["value_head_dim"]
        self.kv = Linear(setup, f"{name}.kv", shape["kv_rank"], heads * up, split=0)

    def _build_query_key_norms(self, heads: int) -> None:
        shape, setup = self.shape, self.setup
        self.norms = nn.ModuleList()
        if shape["query_key_norm"] == "head":
            self.norms.extend(Norm(setup, shape["head_dim"], shared=True) for _ in range(2))
        elif shape["query_key_norm"] == "projection":
            sizes = (heads * shape["head_dim"], shape["kv_heads"] * shape["head_dim"])
            self.norms.extend(Norm(setup, size) for size in sizes)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self._latent(hidden) if self.latent else self._grouped(hidden)
        if self.recompute and torch.is_grad_enabled():
            attended = checkpoint(self._attend, query, key, value, use_reentrant=False)
        else:
            attended = self._attend(query, key, value)
        batch, _, length, _ = attended.shape
        return self.output(attended.transpose(1, 2).reshape(batch, length, -1))

    def _heads(self, tensor: Tensor, size: int) -> Tensor:
        return tensor.unflatten(-1, (-1, size)).transpose(1, 2)

    def _grouped(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size, kind = self.shape["head_dim"], self.shape["query_key_norm"]
        hidden = copied(self.setup, hidden)
        query, key = self.query(hidden), self.key(hidden)
        if kind == "projection":
            query, key = self.norms[0](query), self.norms[1](key)
        query, key = self._heads(query, size), self._heads(key, size)
        if kind == "head":
            query, key = self.norms[0](query), self.norms[1](key)
        value = self._heads(self.value(hidden), size)
        table = rotary_table(self.setup.model, size, query, self.shape["sliding_window"])
        return rotate(query, table), rotate(key, table), value

    def _latent(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        setup, shape = self.setup, self.shape
        plain, turned = shape["head_dim_without_rope"], shape["head_dim_rope"]
        query = hidden
        if shape["query_rank"] is not None:
            query = self.query_norm(self.query_down(hidden))
        query = self._heads(self.query(copied(setup, query)), plain + turned)
        latent, shared = self.kv_down(hidden).split([shape["kv_rank"], turned], dim=-1)
        expanded = self.kv(copied(setup, self.kv_norm(latent)))
        expanded = self._heads(expanded, plain + shape["value_head_dim"])
        key, value = expanded.split([plain, shape["value_head_dim"]], dim=-1)
        shared = copied(setup, shared).unsqueeze(1)
        table = rotary_table(setup.model, turned, query, None)
        turned_key = rotate(shared, table).expand(-1, key.shape[1], -1, -1)
        still, turning = query.split([plain, turned], dim=-1)
        query = torch.cat([still, rotate(turning, table)], dim=-1)
        return query, torch.cat([key, turned_key], dim=-1), value

    def _scale(self) -> float:
        if not self.latent:
            return self.shape["softmax_scale"] or self.shape["head_dim"] ** -0.5
        size = self.shape["head_dim_without_rope"] + self.shape["head_dim_rope"]
        return float(size**-0.5 * softmax_correction(self.setup.model))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scale, cap = self._scale(), self.shape.get("logit_softcap")
        mask = self._mask(query)
        if cap is None:
            kernel = KERNELS.get(self.setup.attention)
            with nullcontext() if kernel is None else sdpa_kernel(kernel):
                return functional.scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    attn_mask=mask,
                    is_causal=mask is None,
                    scale=scale,
                    enable_gqa=query.shape[1] != key.shape[1],
                )
        repeat = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        scores = cap * torch.tanh(query @ key.transpose(-1, -2) * scale / cap)
        if mask is None:
            mask = _causal(query, None)
        return torch.softmax(scores + mask, dim=-1) @ value

    def _mask(self, query: Tensor) -> Tensor | None:
        """What to add to the scores where they are not simply causal."""
        window = self.shape.get("sliding_window")
        length = query.shape[2]
        alibi = self.setup.model["positions"]["kind"] == "alibi"
        if not alibi and (window is None or window >= length):
            return None
        mask = _causal(query, window)
        if alibi:
            first = self.setup.rank * query.shape[1]
            slopes = alibi_slopes(self.shape["heads"])[first : first + query.shape[1]]
            steps = torch.arange(length, device=query.device, dtype=torch.float32)
            distance = steps[None, :] - steps[:, None]
            bias = slopes.to(query.device)[:, None, None] * distance
            mask = mask + bias.to(query.dtype)
        return mask


def _causal(query: Tensor, window: int | None) -> Tensor:
    length = query.shape[2]
    hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    if window is not None:
        hidden |= torch.ones_like(hidden).tril(-window)
    return torch.zeros_like(hidden, dtype=query.dtype).masked_fill(hidden, -torch.inf)
