"""FLOPs of a model's matrix multiplications; a multiply-add counts as two.

Attention counts the whole sequence x sequence score matrix, also under a causal mask, as
Megatron-LM (arXiv 2104.04473, eq. 3) and PaLM (arXiv 2204.02311, appendix B) do, so that MFU
compares with published numbers. Norms, activations and softmax are not counted.
"""

from __future__ import annotations

from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
)

__all__ = [
    "attention_core_forward_flops",
    "feed_forward_flops",
    "head_forward_flops",
    "layer_forward_flops",
    "model_flops",
    "projection_forward_flops",
]

# Backward computes the gradient of the input and of the weight: two matmuls for each forward one.
TRAINING_PASSES = 3
# Of a weight that is not trained it computes that of the input alone.
FROZEN_PASSES = 2


def projection_forward_flops(
    attention: GroupedQueryAttention | LatentAttention, hidden: int
) -> int:
    """FLOPs of one token through the attention block's projections."""
    if isinstance(attention, GroupedQueryAttention):
        width = (2 * attention.heads + 2 * attention.kv_heads) * attention.head_dim
        return 2 * hidden * width
    query_key = attention.head_dim_without_rope + attention.head_dim_rope
    query_width = attention.heads * query_key
    weights = hidden * (attention.kv_rank + attention.head_dim_rope)
    weights += (
        hidden * attention.query_rank + attention.query_rank * query_width
        if attention.query_rank
        else hidden * query_width
    )
    weights += (
        attention.kv_rank
        * attention.heads
        * (attention.head_dim_without_rope + attention.value_head_dim)
    )
    weights += attention.heads * attention.value_head_dim * hidden
    return 2 * weights


def attention_core_forward_flops(
    attention: GroupedQueryAttention | LatentAttention, sequence: int, context: int | None = None
) -> int:
    """FLOPs of scores and weighted values of one sequence over `context` keys (its own length).

    Both products multiply and add: 4 for each key and element of a head.
    A sliding window shortens the context that every query sees.
    """
    keys = sequence if context is None else context
    if isinstance(attention, GroupedQueryAttention):
        if attention.sliding_window:
            keys = min(keys, attention.sliding_window)
        return 4 * attention.heads * attention.head_dim * sequence * keys
    query_key = attention.head_dim_without_rope + attention.head_dim_rope
    return 2 * attention.heads * (query_key + attention.value_head_dim) * sequence * keys


def feed_forward_flops(feed_forward: DenseFeedForward | MoeFeedForward, hidden: int) -> int:
    """FLOPs of one token through the feed-forward block; of the experts only the active ones."""
    # A gate is one projection more beside those up and down.
    matrices = 3 if feed_forward.gated else 2
    if isinstance(feed_forward, DenseFeedForward):
        return 2 * matrices * hidden * feed_forward.size
    routed = feed_forward.top_k * feed_forward.expert_size
    return 2 * hidden * (matrices * (routed + feed_forward.shared_size) + feed_forward.experts)


def layer_forward_flops(
    layer: Layer, model: Model, sequence: int, context: int | None = None
) -> float:
    """Forward FLOPs of one sequence of `sequence` tokens through one layer."""
    per_token = 0
    core = 0
    if layer.attention is not None:
        per_token += projection_forward_flops(layer.attention, model.hidden_size)
        core = attention_core_forward_flops(layer.attention, sequence, context)
    if layer.feed_forward is not None:
        per_token += feed_forward_flops(layer.feed_forward, model.hidden_size)
    return float(sequence * per_token + core)


def head_forward_flops(model: Model, sequence: int) -> float:
    """Forward FLOPs of one sequence through the logit projection."""
    width = model.embedding_size or model.hidden_size
    return float(2 * sequence * width * model.vocab_size)


def model_flops(model: Model, sequence: int) -> float:
    """FLOPs of forward and backward of one sequence, nothing recomputed: what MFU divides by.

    Of adapters, which are some thousandths of the rest, nothing is counted.
    """
    layers = sum(
        run.count * layer_forward_flops(run.layer, model, sequence) for run in model.layers
    )
    passes = TRAINING_PASSES if model.adapters is None else FROZEN_PASSES
    return passes * (layers + head_forward_flops(model, sequence))
