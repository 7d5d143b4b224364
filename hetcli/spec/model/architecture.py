"""A model as a list of layers of possibly unlike kinds: the shape that every part of hetcli reads.

The classes are also the format of an explicit model file; `huggingface.py` fills them from a
Hugging Face config.json. All of them are hashable, so that results can be cached by layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from hetcli.spec.base import Document, Name, Record

__all__ = [
    "MAX_LAYERS",
    "MAX_SIZE",
    "Activation",
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
    "NormPlacement",
    "Positions",
    "Rotary",
    "RotaryScaling",
    "divisors",
]

# No dimension of a real model comes near; what is larger is a typing error or an attack.
MAX_SIZE: Final = 2**40
MAX_LAYERS: Final = 100_000

Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Factor = Annotated[float, Field(gt=0)]
Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu_squared"]
# Where a block's norms stand: before each sublayer; after its residual sum (OPT-350M); on its
# output before the sum (OLMo 2); both before it and on its output (Gemma 2 and 3, GLM-4).
NormPlacement = Literal["pre", "post", "output", "sandwich"]


def divisors(number: int, limit: int = 4096) -> list[int]:
    """The divisors of `number` up to `limit`: what an error offers instead of one that is none."""
    return [n for n in range(1, min(number, limit) + 1) if number % n == 0]


class Norm(Record):
    """A normalisation over the hidden size: its kind decides its parameters and its cost.

    `zero_centered` norms multiply by one plus the weight (Gemma).
    """

    kind: Literal["rmsnorm", "layernorm", "none"] = "rmsnorm"
    bias: bool = False
    elementwise: bool = True
    epsilon: float = Field(default=1e-5, gt=0, lt=1)
    zero_centered: bool = False


class GroupedQueryAttention(Record):
    """Softmax attention; multi-head when `kv_heads == heads`, multi-query when it is 1.

    `softmax_scale` is what the scores are multiplied by when it is not `head_dim ** -0.5`;
    `logit_softcap` the c of c·tanh(score / c) (Gemma 2).
    """

    kind: Literal["gqa"] = "gqa"
    heads: Size
    kv_heads: Size
    head_dim: Size
    qkv_bias: bool = False
    output_bias: bool = False
    # Norms of query and key: over each head (Qwen3, Gemma 3) or over the projection (OLMo 2).
    query_key_norm: Literal["none", "head", "projection"] = "none"
    sliding_window: Size | None = None
    softmax_scale: Factor | None = None
    logit_softcap: Factor | None = None

    @model_validator(mode="after")
    def _groups_divide(self) -> GroupedQueryAttention:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} kv_heads: "
                f"{self.heads} % {self.kv_heads} != 0; legal kv_heads: {divisors(self.heads)}"
            )
        return self


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    `bias` belongs to the two projections into the latent spaces and to the output projection.
    """

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
    activation: Activation = "silu"


class MoeFeedForward(Record):
    """Routed experts, `top_k` active for a token, and shared experts that always run.

    `expert_size` is the inner size of one routed expert, `shared_size` that of all shared experts
    together. `router_bias` is a trained bias; `expert_bias` the load-balancing correction that is
    a buffer, not a parameter (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). With `groups`, a
    token's experts come from its `top_groups` best groups. Without `normalize_top_k` the weights
    of the chosen experts keep the scores they had among all.
    """

    kind: Literal["moe"] = "moe"
    experts: Size
    top_k: Size
    expert_size: Size
    shared_size: Count = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    score_function: Literal["softmax", "sigmoid"] = "softmax"
    normalize_top_k: bool = True
    routed_scaling: Factor = 1.0
    groups: Size | None = None
    top_groups: Size | None = None
    gated: bool = True
    bias: bool = False
    activation: Activation = "silu"

    @model_validator(mode="after")
    def _router_can_choose(self) -> MoeFeedForward:
        if self.top_k > self.experts:
            raise ValueError(
                f"top_k {self.top_k} is more than the {self.experts} experts; "
                f"legal top_k: 1 to {self.experts}"
            )
        if (self.groups is None) != (self.top_groups is None):
            raise ValueError("groups and top_groups belong together; set both or none")
        if self.groups is None or self.top_groups is None:
            return self
        if self.experts % self.groups:
            raise ValueError(
                f"{self.experts} experts do not split into {self.groups} groups; "
                f"legal groups: {divisors(self.experts)}"
            )
        if self.top_groups > self.groups:
            raise ValueError(
                f"top_groups {self.top_groups} is more than the {self.groups} groups; "
                f"legal top_groups: 1 to {self.groups}"
            )
        reachable = self.top_groups * (self.experts // self.groups)
        if self.top_k > reachable:
            raise ValueError(
                f"top_k {self.top_k} is more than the {reachable} experts of "
                f"{self.top_groups} groups; legal top_k: 1 to {reachable}"
            )
        return self


FeedForward = Annotated[DenseFeedForward | MoeFeedForward, Field(discriminator="kind")]


class Layer(Record):
    """One residual block. `norms` counts norms of the hidden size (2 usually, 4 in Gemma 2/3)."""

    attention: Mixer | None
    feed_forward: FeedForward | None
    norms: int = Field(default=2, ge=0, le=8)
    norm_placement: NormPlacement = "pre"
    # Attention and feed-forward read the same input and their outputs add up (GPT-J, NeoX, Falcon).
    parallel: bool = False

    @model_validator(mode="after")
    def _does_something(self) -> Layer:
        if self.attention is None and self.feed_forward is None:
            raise ValueError(
                "a layer without both does nothing; write an attention, a feed_forward or both"
            )
        return self


class LayerRun(Record):
    """`count` equal layers one after the other."""

    count: Size
    layer: Layer


class RotaryScaling(Record):
    """How a rotary embedding is stretched beyond the sequence it was trained on.

    The names are those of Hugging Face's `rope_scaling`, whose documentation defines them.
    """

    kind: Literal["linear", "dynamic", "yarn", "longrope", "llama3"]
    factor: Factor | None = None
    original_max_sequence: Size | None = None
    low_frequency_factor: Factor | None = None
    high_frequency_factor: Factor | None = None
    beta_fast: Factor | None = None
    beta_slow: Factor | None = None
    mscale: Factor | None = None
    mscale_all_dim: float | None = Field(default=None, ge=0)
    attention_factor: Factor | None = None
    short_factors: tuple[Factor, ...] = Field(default=(), max_length=4096)
    long_factors: tuple[Factor, ...] = Field(default=(), max_length=4096)


class Rotary(Record):
    """Rotary position embedding of a `fraction` of every head.

    `local_base` is the base of layers with a sliding window when it is another one (Gemma 3);
    `interleaved` rotates neighbouring elements instead of the two halves of a head (GLM-4).
    """

    base: float = Field(default=10000.0, gt=0)
    local_base: Factor | None = None
    fraction: float = Field(default=1.0, gt=0, le=1)
    interleaved: bool = False
    scaling: RotaryScaling | None = None


class Positions(Record):
    """How positions enter; only a learned table has parameters (`table_size` rows)."""

    kind: Literal["rope", "learned", "alibi", "none"] = "rope"
    table_size: Count = 0
    rotary: Rotary | None = None

    @model_validator(mode="after")
    def _table_belongs_to_learned(self) -> Positions:
        if (self.kind == "learned") != (self.table_size > 0):
            raise ValueError(
                f"positions of kind {self.kind} with a table_size of {self.table_size}; "
                "learned positions have a table, the other kinds have none"
            )
        return self


class Adapters(Record):
    """Low-rank matrices beside the projections, trained while the model itself is frozen (LoRA).

    Every linear layer of attention and of dense or shared feed-forward blocks gets a pair (arXiv
    2106.09685, equation 3); routers, routed experts, embedding and head have none.
    """

    rank: Size


class Model(Document):
    """A decoder-only language model.

    `embedding_scale` multiplies the word embeddings (Gemma: the square root of the hidden size),
    `logit_softcap` caps the logits as `GroupedQueryAttention.logit_softcap` caps scores. `notes`
    say what of the source is not part of the model, such as a vision tower.
    """

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
    embedding_scale: Factor | None = None
    tied_embeddings: bool = False
    head_bias: bool = False
    logit_softcap: Factor | None = None
    positions: Positions = Positions()
    # Multi-token-prediction layers behind the last decoder layer (DeepSeek-V3, GLM-4.5).
    prediction_layers: Count = 0
    # With adapters only they are trained; without, everything is.
    adapters: Adapters | None = None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _layer_count_is_sane(self) -> Model:
        if self.layer_count > MAX_LAYERS:
            raise ValueError(f"{self.layer_count} layers; at most {MAX_LAYERS} are read")
        return self

    @model_validator(mode="after")
    def _table_covers_the_sequence(self) -> Model:
        if 0 < self.positions.table_size < self.max_sequence:
            raise ValueError(
                f"max_sequence {self.max_sequence} is longer than the position table "
                f"({self.positions.table_size} rows); lower max_sequence or raise table_size"
            )
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
