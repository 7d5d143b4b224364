"""The model as Megatron-LM's options say it.

Source: megatron/training/arguments.py and megatron/core/transformer/transformer_config.py of
core 0.19. What no option says is refused by `hetcli.perf.rules.check_model`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, TypeVar

from hetcli.export.megatron.positions import position_arguments
from hetcli.export.program import Argument
from hetcli.perf import rules
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
)

__all__ = ["model_arguments"]

# Megatron-LM's help recommends this value to start from; without it experts are left unused.
AUXILIARY_LOSS: Final = "1e-2"

Kind = TypeVar("Kind", DenseFeedForward, MoeFeedForward)


def model_arguments(model: Model, sequence: int, *, grouped_gemm: bool) -> tuple[Argument, ...]:
    """The options that build `model` for sequences of `sequence` tokens.

    `grouped_gemm` says that every device has the kernel (compute capability 8.0).

    Raises:
        UnsupportedByTargetError: a part of the model has no option.
    """
    rules.check_model("megatron", model, sequence)
    layers = list(model.each_layer())
    dense, moe = _the(DenseFeedForward, layers), _the(MoeFeedForward, layers)
    return (
        Argument("--num-layers", (str(model.layer_count),), "decoder layers"),
        Argument("--hidden-size", (str(model.hidden_size),)),
        *_feed_forward(dense, moe),
        *_attention(layers, sequence),
        *_biases(layers[0]),
        *_norm(model),
        *position_arguments(model, layers, sequence),
        Argument("--seq-length", (str(sequence),), "tokens of one sequence"),
        *_embedding(model),
        *(_experts(moe, layers, grouped_gemm) if moe else ()),
        Argument("--attention-dropout", ("0.0",), "no dropout is planned"),
        Argument("--hidden-dropout", ("0.0",)),
    )


def _the(kind: type[Kind], layers: list[Layer]) -> Kind | None:
    """The feed-forward part of that kind, which is the same in all layers; None without one."""
    found = (layer.feed_forward for layer in layers)
    return next((part for part in found if isinstance(part, kind)), None)


def _feed_forward(dense: DenseFeedForward | None, moe: MoeFeedForward | None) -> Iterator[Argument]:
    size = dense.size if dense else moe.expert_size if moe else 0
    yield Argument("--ffn-hidden-size", (str(size),))
    part = dense or moe
    assert part is not None
    match part.gated, part.activation:
        case True, "silu":
            yield Argument("--swiglu")
        case True, "quick_gelu":
            yield Argument("--quick-geglu")
        case False, "relu_squared":
            yield Argument("--squared-relu")
            if part.bias:
                yield Argument("--no-bias-gelu-fusion", why="the fused kernel is GELU only")
        case False, "gelu" if part.bias:
            yield Argument("--no-bias-gelu-fusion", why="the fused kernel approximates GELU")


def _attention(layers: list[Layer], sequence: int) -> Iterator[Argument]:
    mixer = layers[0].attention
    assert mixer is not None
    yield Argument("--num-attention-heads", (str(mixer.heads),))
    if isinstance(mixer, LatentAttention):
        yield from _latent(mixer)
        return
    yield Argument("--kv-channels", (str(mixer.head_dim),), "dimension of a head")
    if mixer.kv_heads != mixer.heads:
        yield Argument("--group-query-attention")
        yield Argument("--num-query-groups", (str(mixer.kv_heads),))
    if mixer.query_key_norm == "head":
        yield Argument("--qk-layernorm")
    yield from _window(layers, sequence)


def _latent(mixer: LatentAttention) -> Iterator[Argument]:
    yield Argument("--multi-latent-attention")
    if mixer.query_rank is not None:
        yield Argument("--q-lora-rank", (str(mixer.query_rank),))
    yield Argument("--kv-lora-rank", (str(mixer.kv_rank),))
    yield Argument("--qk-head-dim", (str(mixer.head_dim_without_rope),))
    yield Argument("--qk-pos-emb-head-dim", (str(mixer.head_dim_rope),))
    yield Argument("--v-head-dim", (str(mixer.value_head_dim),))
    yield Argument("--kv-channels", (str(mixer.value_head_dim),))
    yield Argument("--qk-layernorm", why="the norms of the latent spaces")


def _window(layers: list[Layer], sequence: int) -> Iterator[Argument]:
    """A window as (tokens to the left, to the right): a token sees itself and window - 1 others."""
    windows = [
        layer.attention.sliding_window
        if isinstance(layer.attention, GroupedQueryAttention)
        else None
        for layer in layers
    ]
    narrow = {window for window in windows if window is not None and window < sequence}
    if not narrow:
        return
    yield Argument("--window-size", (f"({max(narrow) - 1},0)",), "sliding-window attention")
    if any(window not in narrow for window in windows):
        pattern = ",".join("1" if window in narrow else "0" for window in windows)
        yield Argument("--window-attn-skip-freq", (f"[{pattern}]",), "1: window, 0: full")


def _biases(layer: Layer) -> Iterator[Argument]:
    mixer, feed_forward = layer.attention, layer.feed_forward
    if feed_forward is not None and feed_forward.bias:
        return
    yield Argument("--disable-bias-linear")
    if isinstance(mixer, GroupedQueryAttention) and mixer.qkv_bias:
        yield Argument("--add-qkv-bias")


def _norm(model: Model) -> Iterator[Argument]:
    name = "RMSNorm" if model.norm.kind == "rmsnorm" else "LayerNorm"
    yield Argument("--normalization", (name,))
    yield Argument("--norm-epsilon", (repr(model.norm.epsilon),))
    if model.norm.zero_centered:
        yield Argument("--apply-layernorm-1p", why="norms multiply by one plus the weight")


def _embedding(model: Model) -> Iterator[Argument]:
    yield Argument("--vocab-size", (str(model.vocab_size),), "padded to a multiple of 128 x tp")
    yield Argument("--make-vocab-size-divisible-by", ("128",))
    if not model.tied_embeddings:
        yield Argument("--untie-embeddings-and-output-weights")
    if model.prediction_layers:
        yield Argument("--mtp-num-layers", (str(model.prediction_layers),))


def _experts(moe: MoeFeedForward, layers: list[Layer], grouped_gemm: bool) -> Iterator[Argument]:
    yield Argument("--num-experts", (str(moe.experts),))
    pattern = [int(isinstance(layer.feed_forward, MoeFeedForward)) for layer in layers]
    if not all(pattern):
        text = ",".join(map(str, pattern))
        yield Argument("--moe-layer-freq", (f"[{text}]",), "1: experts, 0: dense")
    yield Argument("--moe-ffn-hidden-size", (str(moe.expert_size),))
    if moe.shared_size:
        yield Argument("--moe-shared-expert-intermediate-size", (str(moe.shared_size),))
        if moe.shared_gate:
            yield Argument("--moe-shared-expert-gate")
    yield Argument("--moe-router-topk", (str(moe.top_k),))
    yield from _router(moe)
    yield Argument("--moe-router-load-balancing-type", ("aux_loss",))
    yield Argument("--moe-aux-loss-coeff", (AUXILIARY_LOSS,))
    yield Argument("--moe-token-dispatcher-type", ("alltoall",))
    if grouped_gemm:
        yield Argument("--moe-grouped-gemm", why="every device has the kernel")


def _router(moe: MoeFeedForward) -> Iterator[Argument]:
    yield Argument("--moe-router-score-function", (moe.score_function,))
    if moe.score_function == "softmax" and not moe.normalize_top_k:
        yield Argument("--moe-router-pre-softmax", why="scores among all experts are kept")
    if moe.expert_bias:
        yield Argument("--moe-router-enable-expert-bias")
    if not math.isclose(moe.routed_scaling, 1.0):
        yield Argument("--moe-router-topk-scaling-factor", (repr(moe.routed_scaling),))
    if moe.groups is not None and moe.top_groups is not None:
        yield Argument("--moe-router-num-groups", (str(moe.groups),))
        yield Argument("--moe-router-group-topk", (str(moe.top_groups),))
