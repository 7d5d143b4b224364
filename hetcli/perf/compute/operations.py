"""A layer as the list of kernels that one device runs for one micro-batch.

Sizes are those of one rank: tensor parallelism divides heads and feed-forward width (arXiv
1909.08053, section 3), sequence parallelism the norms (arXiv 2205.05198, section 4.2.2), context
parallelism the tokens, expert parallelism the experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hetcli.perf.configuration import Shape
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
)

__all__ = ["Attention", "Elementwise", "Matmul", "Operation", "head_operations", "layer_operations"]


@dataclass(frozen=True, slots=True)
class Matmul:
    """`count` products of (m x k) by (k x n); `grouped` ones run as one kernel (experts).

    Where the model has adapters, `adapters` pairs of them stand beside the product, and it is
    `frozen` itself.
    """

    m: float
    n: float
    k: float
    count: float = 1
    grouped: bool = False
    adapters: int = 1
    frozen: bool = False

    @property
    def flops(self) -> float:
        """FLOPs of the forward product."""
        return 2 * self.m * self.n * self.k * self.count

    @property
    def activations(self) -> float:
        """Elements of the left operand."""
        return self.m * self.k * self.count

    @property
    def weights(self) -> float:
        """Elements of the right operand."""
        return self.k * self.n * self.count

    @property
    def inputs(self) -> float:
        """Elements read."""
        return self.activations + self.weights

    @property
    def outputs(self) -> float:
        """Elements written."""
        return self.m * self.n * self.count


@dataclass(frozen=True, slots=True)
class Attention:
    """Scores, softmax and weighted values: `heads` of one rank, for all its sequences.

    `queries` x `keys` is the score matrix of one head; a causal mask halves what a fused kernel
    computes of it.
    """

    batch: float
    heads: float
    kv_heads: float
    queries: float
    keys: float
    key_dim: float
    value_dim: float
    causal: bool = True

    @property
    def flops(self) -> float:
        """FLOPs of the whole score matrix, forward."""
        dims = self.key_dim + self.value_dim
        return 2 * self.batch * self.heads * self.queries * self.keys * dims

    @property
    def scores(self) -> float:
        """Elements of the score matrices."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def elements(self) -> float:
        """Elements of queries, keys, values and outputs."""
        per_query = self.heads * (self.key_dim + self.value_dim)
        per_key = self.kv_heads * (self.key_dim + self.value_dim)
        return self.batch * (self.queries * per_query + self.keys * per_key)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """`kernels` kernels that together read and write `elements` numbers, bound by HBM."""

    elements: float
    kernels: int = 1
    # Bytes of one element where it is not the training precision's.
    element_bytes: float | None = None
    # Whether it serves routed experts.
    grouped: bool = False
    # Whether `elements` counts every pass, so that no framework needs more.
    exact: bool = False


Operation = Matmul | Attention | Elementwise
Part = Literal["attention", "core", "feed_forward"]


def layer_operations(
    layer: Layer, model: Model, shape: Shape
) -> tuple[tuple[Part, Operation], ...]:
    """The forward kernels of one layer, each with the part of the layer that it belongs to."""
    tokens = shape.micro_batch_size * shape.sequence / shape.context_parallel
    hidden = model.hidden_size
    norm_share = shape.tensor_parallel if shape.sequence_parallel else 1
    operations: list[tuple[Part, Operation]] = []
    if layer.attention is not None:
        operations += _attention(layer.attention, hidden, tokens, shape)
    if layer.feed_forward is not None:
        operations += [
            ("feed_forward", each) for each in _feed_forward(layer, hidden, tokens, shape)
        ]
    # A norm reads and writes its input; dropout and residual of each block read two and write one.
    blocks = (layer.attention is not None) + (layer.feed_forward is not None)
    touched = (2 * layer.norms + 3 * blocks) * tokens * hidden / norm_share
    operations.append(("feed_forward", Elementwise(touched, kernels=layer.norms + blocks)))
    if model.adapters is not None:
        return tuple(_adapted(operations, model.adapters.rank))
    return tuple(operations)


def _adapted(
    operations: Sequence[tuple[Part, Operation]], rank: int
) -> Iterator[tuple[Part, Operation]]:
    """Frozen products, each with its adapters: down to the rank, up again, and the sum."""
    for part, operation in operations:
        if not isinstance(operation, Matmul):
            yield part, operation
            continue
        yield part, replace(operation, frozen=True)
        if operation.adapters:
            m, n = operation.m, operation.n
            yield part, Matmul(m, rank * operation.adapters, operation.k)
            yield part, Matmul(m, n, rank)
            # The sum reads both and writes one.
            yield part, Elementwise(3 * m * n)


def _attention(
    attention: GroupedQueryAttention | LatentAttention, hidden: int, tokens: float, shape: Shape
) -> list[tuple[Part, Operation]]:
    tp = shape.tensor_parallel
    heads = attention.heads / tp
    queries = shape.sequence / shape.context_parallel
    if isinstance(attention, GroupedQueryAttention):
        kv_heads = max(attention.kv_heads / tp, 1)
        window = attention.sliding_window or shape.sequence
        keys = min(shape.sequence, window)
        dim = attention.head_dim
        # A window that slides along is a band, of which the mask takes next to nothing.
        causal = 2 * window > shape.sequence
        core = Attention(shape.micro_batch_size, heads, kv_heads, queries, keys, dim, dim, causal)
        width = (heads + 2 * kv_heads) * dim
        # Rotary embedding (and head norms) read and write queries and keys.
        rotated = 2 * tokens * (heads + kv_heads) * dim
        return [
            ("attention", Matmul(tokens, width, hidden, adapters=3)),
            ("attention", Elementwise(rotated)),
            ("core", core),
            ("attention", Matmul(tokens, hidden, heads * dim)),
        ]
    key_dim = attention.head_dim_without_rope + attention.head_dim_rope
    down = attention.kv_rank + attention.head_dim_rope
    up = heads * (attention.head_dim_without_rope + attention.value_head_dim)
    core = Attention(
        shape.micro_batch_size,
        heads,
        heads,
        queries,
        shape.sequence,
        key_dim,
        attention.value_head_dim,
    )
    query: list[Operation] = [Matmul(tokens, heads * key_dim, attention.query_rank or hidden)]
    if attention.query_rank:
        query.insert(0, Matmul(tokens, attention.query_rank, hidden))
    # Norms of both latents, rotary, and the copies that put keys together from their two parts.
    copied = 2 * tokens * (down + (attention.query_rank or 0) + 2 * heads * key_dim)
    return [
        *(("attention", each) for each in query),
        ("attention", Matmul(tokens, down, hidden)),
        ("attention", Matmul(tokens, up, attention.kv_rank)),
        ("attention", Elementwise(copied, kernels=4)),
        ("core", core),
        ("attention", Matmul(tokens, hidden, heads * attention.value_head_dim)),
    ]


def _feed_forward(layer: Layer, hidden: int, tokens: float, shape: Shape) -> list[Operation]:
    block = layer.feed_forward
    if isinstance(block, DenseFeedForward):
        return _dense(block.size / shape.tensor_parallel, block.gated, hidden, tokens)
    assert isinstance(block, MoeFeedForward)
    # Tokens are split over the tensor ranks before they are sent to their experts.
    own = tokens / shape.tensor_parallel
    experts = block.experts / shape.expert_parallel
    routed = own * block.top_k * shape.expert_tensor_parallel
    width = block.expert_size / shape.expert_tensor_parallel
    columns = 2 if block.gated else 1
    operations: list[Operation] = [
        Matmul(own, block.experts, hidden, adapters=0),
        # Softmax and top-k, then gathering tokens by expert and back (weighted sum).
        Elementwise(3 * own * block.experts, kernels=3, element_bytes=4, grouped=True),
        Elementwise(4 * routed * hidden, kernels=2, grouped=True),
        Matmul(routed / experts, width * columns, hidden, experts, grouped=True, adapters=0),
        Elementwise((columns + 1) * routed * width, grouped=True),
        Matmul(routed / experts, hidden, width, experts, grouped=True, adapters=0),
    ]
    if block.shared_size:
        operations += _dense(block.shared_size / shape.tensor_parallel, block.gated, hidden, tokens)
    return operations


def _dense(width: float, gated: bool, hidden: int, tokens: float) -> list[Operation]:
    columns = 2 if gated else 1
    return [
        Matmul(tokens, width * columns, hidden, adapters=columns),
        Elementwise((columns + 1) * tokens * width),
        Matmul(tokens, hidden, width),
    ]


def head_operations(model: Model, shape: Shape) -> tuple[Operation, ...]:
    """Final norm, logits and cross-entropy in fp32 (4 bytes).

    Its 4 kernels (the copy in fp32, the maximum, exponentials with their sum, the loss) read or
    write the logits 6 times.
    """
    tokens = shape.micro_batch_size * shape.sequence / shape.context_parallel
    vocabulary = model.vocab_size / shape.tensor_parallel
    width = model.embedding_size or model.hidden_size
    return (
        Elementwise(2 * tokens * model.hidden_size),
        Matmul(tokens, vocabulary, width, frozen=model.adapters is not None),
        Elementwise(6 * tokens * vocabulary, kernels=4, element_bytes=4, exact=True),
    )
