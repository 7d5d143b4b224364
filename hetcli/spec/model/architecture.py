"""A model as a list of layers of possibly unlike kinds: the shape that every part of hetcli reads.

The classes are also the format of an explicit model file; `huggingface.py` fills them from a
Hugging Face config.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hetcli.spec.base import Document, Name, Record

__all__ = [
    "DenseFeedForward",
    "FeedForward",
    "GroupedQueryAttention",
    "LatentAttention",
    "Layer",
    "LayerRun",
    "Mixer",
    "Model",
    "MoeFeedForward",
    "Norm",
    "Positions",
    "Rotary",
]

Size = Annotated[int, Field(gt=0, le=2**40)]
Count = Annotated[int, Field(ge=0, le=2**40)]


class Norm(Record):
    """A normalisation over the hidden size: its kind decides its parameters and its cost."""

    kind: Literal["rmsnorm", "layernorm", "none"] = "rmsnorm"
    bias: bool = False
    elementwise: bool = True
    epsilon: float = Field(default=1e-5, gt=0, lt=1)


class GroupedQueryAttention(Record):
    """Softmax attention; multi-head when `kv_heads == heads`, multi-query when it is 1."""

    kind: Literal["gqa"] = "gqa"
    heads: Size
    kv_heads: Size
    head_dim: Size
    qkv_bias: bool = False
    output_bias: bool = False
    # Norms of query and key: over each head (Qwen3, Gemma 3) or over the projection (OLMo 2).
    query_key_norm: Literal["none", "head", "projection"] = "none"
    sliding_window: Size | None = None

    @model_validator(mode="after")
    def _groups_divide(self) -> GroupedQueryAttention:
        if self.heads % self.kv_heads:
            legal = [n for n in range(1, min(self.heads, 4096) + 1) if self.heads % n == 0]
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} kv_heads: "
                f"{self.heads} % {self.kv_heads} != 0; legal kv_heads: {legal}"
            )
        return self


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    kind: Literal["mla"] = "mla"
    heads: Size
    query_rank: Size | None = None
    kv_rank: Size
    head_dim_without_rope: Size
    head_dim_rope: Size
    value_head_dim: Size
    bias: bool = False


Mixer = Annotated[GroupedQueryAttention | LatentAttention, Field(discriminator="kind")]


class DenseFeedForward(Record):
    """Two matrices, or three when `gated` (SwiGLU, GeGLU)."""

    kind: Literal["dense"] = "dense"
    size: Size
    gated: bool = True
    bias: bool = False
    activation: str = "silu"


class MoeFeedForward(Record):
    """Routed experts, `top_k` active for a token, and shared experts that always run."""

    kind: Literal["moe"] = "moe"
    experts: Size
    top_k: Size
    expert_size: Size
    shared_size: Count = 0
    shared_gate: bool = False
    router_bias: bool = False
    gated: bool = True
    bias: bool = False
    activation: str = "silu"

    @model_validator(mode="after")
    def _top_k_exists(self) -> MoeFeedForward:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts")
        return self


FeedForward = Annotated[DenseFeedForward | MoeFeedForward, Field(discriminator="kind")]


class Layer(Record):
    """One residual block. `norms` counts norms of the hidden size (2 usually, 4 in Gemma 2/3)."""

    attention: Mixer | None
    feed_forward: FeedForward | None
    norms: int = Field(default=2, ge=0, le=8)
    # Attention and feed-forward read the same input and their outputs add up (GPT-J, NeoX, Falcon).
    parallel: bool = False


class LayerRun(Record):
    """`count` equal layers one after the other."""

    count: Size
    layer: Layer


class Rotary(Record):
    """Rotary position embedding."""

    base: float = Field(default=10000.0, gt=0)
    fraction: float = Field(default=1.0, gt=0, le=1)
    scaling: dict[str, float | int | str | bool | None | list[float]] | None = None


class Positions(Record):
    """How positions enter; only a learned table has parameters (`table_size` rows)."""

    kind: Literal["rope", "learned", "alibi", "none"] = "rope"
    table_size: Count = 0
    rotary: Rotary | None = None


class Model(Document):
    """A decoder-only language model."""

    name: Name
    architecture: Name
    source: str = ""
    hidden_size: Size
    vocab_size: Size
    max_sequence: Size
    layers: Annotated[tuple[LayerRun, ...], Field(min_length=1, max_length=10_000)]
    norm: Norm = Norm()
    final_norm: bool = True
    # A norm of the word embeddings (BLOOM) adds parameters to the first stage.
    embedding_norm: bool = False
    # OPT-350M embeds into a smaller size and projects in and out.
    embedding_size: Size | None = None
    tied_embeddings: bool = False
    head_bias: bool = False
    positions: Positions = Positions()
    # Multi-token-prediction layers behind the last decoder layer (DeepSeek-V3, GLM-4.5).
    prediction_layers: Count = 0

    @model_validator(mode="after")
    def _layer_count_is_sane(self) -> Model:
        if self.layer_count > 100_000:
            raise ValueError(f"{self.layer_count} layers; at most 100000 are read")
        return self

    @cached_property
    def layer_count(self) -> int:
        """Number of decoder layers."""
        return sum(run.count for run in self.layers)

    def each_layer(self) -> Iterator[Layer]:
        """The layers in order."""
        for run in self.layers:
            for _ in range(run.count):
                yield run.layer
