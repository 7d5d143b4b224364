"""Exact parameter counts of a model, split by what shards them.

How tensor parallelism cuts a layer follows Megatron-LM (arXiv 1909.08053, section 3): the first
matrix of a sublayer is cut by columns together with its bias, the second by rows while its bias
stays whole. Norms, routers and the projections into the latent spaces of MLA are whole on every
rank (megatron/core/transformer: `multi_latent_attention.py`, `moe/router.py`); shared experts are
cut like a dense feed-forward (`moe/shared_experts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
    Norm,
)

__all__ = [
    "Matrix",
    "Parameters",
    "active_parameters",
    "adapted_matrices",
    "adapter_parameters",
    "embedding_parameters",
    "final_norm_parameters",
    "head_parameters",
    "layer_parameters",
    "prediction_parameters",
    "total_parameters",
]


@dataclass(frozen=True, slots=True)
class Parameters:
    """A number of parameters, split by what shards them; a sum of parts is one as well.

    `attention`, `feed_forward` and `vocabulary` are cut by tensor parallelism; `experts` by expert
    and expert-tensor parallelism (biases of experts included); `replicated` ones are whole on
    every tensor rank. `inactive` counts those of `experts` that one token does not visit.
    """

    attention: int = 0
    feed_forward: int = 0
    vocabulary: int = 0
    experts: int = 0
    replicated: int = 0
    inactive: int = 0

    @property
    def tensor_sharded(self) -> int:
        """Parameters that tensor parallelism divides."""
        return self.attention + self.feed_forward + self.vocabulary

    @property
    def total(self) -> int:
        """All parameters: what memory holds."""
        return self.tensor_sharded + self.experts + self.replicated

    @property
    def active(self) -> int:
        """Parameters that take part in one token's forward pass: what time depends on."""
        return self.total - self.inactive

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(
            attention=self.attention + other.attention,
            feed_forward=self.feed_forward + other.feed_forward,
            vocabulary=self.vocabulary + other.vocabulary,
            experts=self.experts + other.experts,
            replicated=self.replicated + other.replicated,
            inactive=self.inactive + other.inactive,
        )

    def __mul__(self, count: int) -> Parameters:
        return Parameters(
            attention=self.attention * count,
            feed_forward=self.feed_forward * count,
            vocabulary=self.vocabulary * count,
            experts=self.experts * count,
            replicated=self.replicated * count,
            inactive=self.inactive * count,
        )


def _norm(norm: Norm, size: int) -> int:
    if norm.kind == "none" or not norm.elementwise:
        return 0
    return size * (2 if norm.bias else 1)


def _grouped_query(attention: GroupedQueryAttention, hidden: int, norm: Norm) -> Parameters:
    query = attention.heads * attention.head_dim
    key = attention.kv_heads * attention.head_dim
    sharded = hidden * (query + 2 * key) + query * hidden
    if attention.qkv_bias:
        sharded += query + 2 * key
    replicated = hidden if attention.output_bias else 0
    if attention.query_key_norm == "head":
        replicated += 2 * _norm(norm, attention.head_dim)
    elif attention.query_key_norm == "projection":
        replicated += _norm(norm, query) + _norm(norm, key)
    return Parameters(attention=sharded, replicated=replicated)


def _latent(attention: LatentAttention, hidden: int, norm: Norm) -> Parameters:
    """DeepSeek-V2, arXiv 2405.04434, equations 9 to 19 (a norm follows each compression)."""
    head = attention.head_dim_without_rope + attention.head_dim_rope
    values = attention.heads * attention.value_head_dim
    keys_and_values = attention.heads * attention.head_dim_without_rope + values
    compression = attention.kv_rank + attention.head_dim_rope
    replicated = hidden * compression + _norm(norm, attention.kv_rank)
    sharded = attention.kv_rank * keys_and_values + values * hidden
    if attention.query_rank is None:
        sharded += hidden * attention.heads * head
    else:
        replicated += hidden * attention.query_rank + _norm(norm, attention.query_rank)
        sharded += attention.query_rank * attention.heads * head
    if attention.bias:
        replicated += (attention.query_rank or 0) + compression + hidden
    return Parameters(attention=sharded, replicated=replicated)


def _matrices(hidden: int, size: int, *, gated: bool) -> int:
    return (3 if gated else 2) * hidden * size


def _inner_bias(size: int, *, gated: bool, bias: bool) -> int:
    return (2 if gated else 1) * size if bias else 0


def _dense(block: DenseFeedForward, hidden: int) -> Parameters:
    return Parameters(
        feed_forward=_matrices(hidden, block.size, gated=block.gated)
        + _inner_bias(block.size, gated=block.gated, bias=block.bias),
        replicated=hidden if block.bias else 0,
    )


def _mixture(block: MoeFeedForward, hidden: int) -> Parameters:
    expert = _matrices(hidden, block.expert_size, gated=block.gated)
    if block.bias:
        expert += _inner_bias(block.expert_size, gated=block.gated, bias=True) + hidden
    router = hidden * block.experts + (block.experts if block.router_bias else 0)
    shared = Parameters()
    if block.shared_size:
        shared = _dense(
            DenseFeedForward(size=block.shared_size, gated=block.gated, bias=block.bias), hidden
        )
    return shared + Parameters(
        experts=block.experts * expert,
        inactive=(block.experts - block.top_k) * expert,
        replicated=router + (hidden if block.shared_gate else 0),
    )


@lru_cache(maxsize=4096)
def _layer(layer: Layer, hidden: int, norm: Norm) -> Parameters:
    parts = Parameters(replicated=layer.norms * _norm(norm, hidden))
    match layer.attention:
        case GroupedQueryAttention() as attention:
            parts += _grouped_query(attention, hidden, norm)
        case LatentAttention() as attention:
            parts += _latent(attention, hidden, norm)
        case None:
            pass
    match layer.feed_forward:
        case DenseFeedForward() as block:
            parts += _dense(block, hidden)
        case MoeFeedForward() as block:
            parts += _mixture(block, hidden)
        case None:
            pass
    return parts


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer that can have an adapter, and the side that tensor parallelism cuts."""

    inputs: int
    outputs: int
    cut: Literal["inputs", "outputs", "none"]


@lru_cache(maxsize=4096)
def adapted_matrices(layer: Layer, hidden: int) -> tuple[Matrix, ...]:
    """The linear layers of attention and of dense or shared feed-forward blocks."""
    found: list[Matrix] = []
    match layer.attention:
        case GroupedQueryAttention() as attention:
            query = attention.heads * attention.head_dim
            key = attention.kv_heads * attention.head_dim
            found += [Matrix(hidden, size, "outputs") for size in (query, key, key)]
            found.append(Matrix(query, hidden, "inputs"))
        case LatentAttention() as attention:
            query = attention.heads * (attention.head_dim_without_rope + attention.head_dim_rope)
            values = attention.heads * attention.value_head_dim
            if attention.query_rank is not None:
                found.append(Matrix(hidden, attention.query_rank, "none"))
            found += [
                Matrix(attention.query_rank or hidden, query, "outputs"),
                Matrix(hidden, attention.kv_rank + attention.head_dim_rope, "none"),
                Matrix(
                    attention.kv_rank,
                    attention.heads * attention.head_dim_without_rope + values,
                    "outputs",
                ),
                Matrix(values, hidden, "inputs"),
            ]
        case None:
            pass
    match layer.feed_forward:
        case DenseFeedForward() as block:
            size, gated = block.size, block.gated
        case MoeFeedForward() as block:
            size, gated = block.shared_size, block.gated
        case None:
            size, gated = 0, False
    if size:
        found += [Matrix(hidden, size, "outputs")] * (2 if gated else 1)
        found.append(Matrix(size, hidden, "inputs"))
    return tuple(found)


def adapter_parameters(layer: Layer, model: Model) -> Parameters:
    """The parameters of one layer's adapters; none where the model itself is trained.

    A pair beside a matrix has rank x (inputs + outputs). Tensor parallelism cuts the side that it
    cuts of the matrix, the other one is whole on every rank.
    """
    if model.adapters is None:
        return Parameters()
    sharded = replicated = 0
    for matrix in adapted_matrices(layer, model.hidden_size):
        sides = {"inputs": matrix.inputs, "outputs": matrix.outputs}
        cut = sides.get(matrix.cut, 0)
        sharded += cut
        replicated += sum(sides.values()) - cut
    return Parameters(attention=sharded, replicated=replicated) * model.adapters.rank


def layer_parameters(layer: Layer, model: Model) -> Parameters:
    """The parameters of one layer of `model`, its norms included."""
    return _layer(layer, model.hidden_size, model.norm)


def embedding_parameters(model: Model) -> Parameters:
    """What stands before the first layer: word table, position table, norm, projection in."""
    width = model.embedding_size or model.hidden_size
    replicated = model.positions.table_size * model.hidden_size
    if model.embedding_norm:
        replicated += _norm(model.norm, model.hidden_size)
    if width != model.hidden_size:
        replicated += width * model.hidden_size
    return Parameters(vocabulary=model.vocab_size * width, replicated=replicated)


def final_norm_parameters(model: Model) -> Parameters:
    """The norm between the last layer and the head."""
    return Parameters(replicated=_norm(model.norm, model.hidden_size) if model.final_norm else 0)


def head_parameters(model: Model) -> Parameters:
    """What the vocabulary head adds: no matrix when it is tied to the word table."""
    width = model.embedding_size or model.hidden_size
    matrix = 0 if model.tied_embeddings else model.vocab_size * width
    return Parameters(
        vocabulary=matrix + (model.vocab_size if model.head_bias else 0),
        replicated=width * model.hidden_size if width != model.hidden_size else 0,
    )


def prediction_parameters(model: Model) -> Parameters:
    """What all multi-token-prediction layers add; `total_parameters` does not count them.

    Each is a copy of the last layer with a projection of two hidden states to one and three norms;
    it shares the word table and the head (DeepSeek-V3, arXiv 2412.19437, section 2.2). Megatron-LM
    cuts the projection by columns (megatron/core/transformer/multi_token_prediction.py).
    """
    hidden = model.hidden_size
    extra = Parameters(feed_forward=2 * hidden * hidden, replicated=3 * _norm(model.norm, hidden))
    one = layer_parameters(model.layers[-1].layer, model) + extra
    return one * model.prediction_layers


def _all(model: Model) -> Parameters:
    parts = embedding_parameters(model) + final_norm_parameters(model) + head_parameters(model)
    for run in model.layers:
        parts += layer_parameters(run.layer, model) * run.count
    return parts


def total_parameters(model: Model) -> int:
    """All parameters of the model without its multi-token-prediction layers."""
    return _all(model).total


def active_parameters(model: Model) -> int:
    """Parameters that one token uses, embedding and head included (12.9B for Mixtral-8x7B)."""
    return _all(model).active
