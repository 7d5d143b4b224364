"""What a model consists of, in numbers: the data behind `hetcli models NAME`."""

from __future__ import annotations

from typing import Any

from hetcli.perf.configuration import Shape
from hetcli.perf.flops import layer_forward_flops, model_flops
from hetcli.perf.memory.activations import layer_activation_bytes
from hetcli.perf.rules.degrees import legal_tensor_parallel
from hetcli.spec.base import SCHEMA_VERSION
from hetcli.spec.model.architecture import (
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
)
from hetcli.spec.model.parameters import (
    active_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    total_parameters,
)

__all__ = ["summarize_model"]


def summarize_model(model: Model, *, sequence: int | None = None) -> dict[str, Any]:
    """Exact parameters, FLOPs of one sequence, and activation bytes per layer, as plain data.

    `sequence` (tokens) defaults to the model's maximum. Activations are those of one sequence on
    one device in bf16 with a fused attention kernel and without recompute.
    """
    tokens = sequence or model.max_sequence
    shape = Shape(sequence=tokens, micro_batch_size=1, precision="bf16", kernel="flash")
    return {
        "schema_version": SCHEMA_VERSION,
        "name": model.name,
        "architecture": model.architecture,
        "source": model.source,
        "parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        "embedding_parameters": embedding_parameters(model).total,
        "head_parameters": head_parameters(model).total,
        "tied_embeddings": model.tied_embeddings,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "max_sequence": model.max_sequence,
        "sequence": tokens,
        "model_flops": model_flops(model, tokens),
        "legal_tensor_parallel": legal_tensor_parallel(model),
        "layers": [
            {
                "count": run.count,
                "description": _describe(run.layer),
                "parameters": layer_parameters(run.layer, model).total,
                "active_parameters": layer_parameters(run.layer, model).active,
                "forward_flops": layer_forward_flops(run.layer, model, tokens),
                "activation_bytes": layer_activation_bytes(run.layer, model, shape),
            }
            for run in model.layers
        ],
    }


def _describe(layer: Layer) -> str:
    parts = []
    attention = layer.attention
    if isinstance(attention, GroupedQueryAttention):
        parts.append(f"{attention.heads} heads of {attention.head_dim}, {attention.kv_heads} KV")
    elif isinstance(attention, LatentAttention):
        parts.append(f"{attention.heads} latent-attention heads, KV rank {attention.kv_rank}")
    feed_forward = layer.feed_forward
    if isinstance(feed_forward, MoeFeedForward):
        shared = f" + shared {feed_forward.shared_size}" if feed_forward.shared_size else ""
        parts.append(
            f"{feed_forward.top_k} of {feed_forward.experts} experts of "
            f"{feed_forward.expert_size}{shared}"
        )
    elif feed_forward is not None:
        parts.append(f"feed-forward {feed_forward.size}{' gated' if feed_forward.gated else ''}")
    return "; ".join(parts)
