"""The model as Megatron-LM's options say it, and the refusal of what they cannot say.

Source: megatron/training/arguments.py and megatron/core/transformer/transformer_config.py of
core 0.19; `GPTModel` builds equal pre-norm blocks, so everything else is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, TypeVar

from hetcli.errors import UnsupportedByTargetError
from hetcli.export.megatron.positions import position_arguments
from hetcli.export.program import Argument
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Mixer,
    Model,
    MoeFeedForward,
)

__all__ = ["model_arguments", "refuse_model"]

# Megatron-LM's help recommends this value to start from; without it experts are left unused.
AUXILIARY_LOSS: Final = "1e-2"

T = TypeVar("T")


def refuse_model(model: Model, what: str, why: str) -> UnsupportedByTargetError:
    """The error for a part of the model that mainline Megatron-LM has no option for."""
    return UnsupportedByTargetError(
        f"megatron cannot build {what} of {model.name}",
        why=why,
        fix="a model of equal pre-norm blocks, or hetcli export --target deepspeed, whose trainer "
        "builds this model",
    )


def model_arguments(model: Model, sequence: int, *, grouped_gemm: bool) -> tuple[Argument, ...]:
    """The options that build `model` for sequences of `sequence` tokens.

    `grouped_gemm` says that every device has the kernel (compute capability 8.0).

    Raises:
        UnsupportedByTargetError: a part of the model has no option.
    """
    _refuse_whole(model)
    layers = list(model.each_layer())
    for layer in layers:
        _refuse_layer(model, layer)
    dense = _single(model, "feed-forward layers", _kinds(layers, DenseFeedForward))
    moe = _single(model, "MoE layers", _kinds(layers, MoeFeedForward))
    return (
        Argument("--num-layers", (str(model.layer_count),), "decoder layers"),
        Argument("--hidden-size", (str(model.hidden_size),)),
        *_feed_forward(model, dense, moe),
        *_attention(model, layers, sequence),
        *_biases(model, layers),
        *_norm(model),
        *position_arguments(model, layers, sequence, refuse_model),
        Argument("--seq-length", (str(sequence),), "tokens of one sequence"),
        *_embedding(model),
        *(_experts(model, moe, layers, grouped_gemm) if moe else ()),
        Argument("--attention-dropout", ("0.0",), "no dropout is planned"),
        Argument("--hidden-dropout", ("0.0",)),
    )


def _refuse_whole(model: Model) -> None:
    norm = model.norm
    for wrong, what, why in (
        (not model.final_norm, "a missing final norm", "GPTModel always ends in one"),
        (model.embedding_norm, "the norm of the embeddings", "no option adds one"),
        (
            model.embedding_size not in (None, model.hidden_size),
            "the narrow embedding",
            "the embedding has the hidden size",
        ),
        (model.embedding_scale is not None, "the scaled embedding", "no option scales it"),
        (model.head_bias, "the bias of the output layer", "the output layer has none"),
        (model.logit_softcap is not None, "the capped logits", "no option caps them"),
        (norm.kind == "none", "blocks without norms", "--normalization LayerNorm or RMSNorm"),
        (not norm.elementwise, "norms without weights", "every norm has weights"),
        (
            norm.bias != (norm.kind == "layernorm"),
            f"a {norm.kind} {'with' if norm.bias else 'without'} bias",
            "LayerNorm has a bias, RMSNorm has none",
        ),
    ):
        if wrong:
            raise refuse_model(model, what, why)


def _refuse_layer(model: Model, layer: Layer) -> None:
    attention = layer.attention
    for wrong, what, why in (
        (
            attention is None or layer.feed_forward is None,
            "layers without attention or feed-forward",
            "every block of GPTModel has both",
        ),
        (
            layer.norm_placement != "pre" or layer.norms != 2,
            f"{layer.norms} norms a layer placed {layer.norm_placement}",
            "blocks have one norm before attention and one before the feed-forward",
        ),
        (
            layer.parallel,
            "parallel attention and feed-forward",
            "no option runs them side by side",
        ),
        (
            isinstance(attention, GroupedQueryAttention)
            and attention.query_key_norm == "projection",
            "the query and key norm over the whole projection",
            "--qk-layernorm is a norm over each head",
        ),
        (
            isinstance(attention, GroupedQueryAttention) and attention.softmax_scale is not None,
            "the softmax scale",
            "the scale is one over the root of the head dimension",
        ),
        (
            isinstance(attention, GroupedQueryAttention) and attention.logit_softcap is not None,
            "the capped attention scores",
            "no option caps them",
        ),
        (
            isinstance(attention, LatentAttention) and attention.bias,
            "the biases of latent attention",
            "--add-qkv-bias does not reach the latent projections",
        ),
    ):
        if wrong:
            raise refuse_model(model, what, why)


def _kinds(layers: list[Layer], kind: type[T]) -> set[T]:
    return {layer.feed_forward for layer in layers if isinstance(layer.feed_forward, kind)}


def _single(model: Model, what: str, kinds: set[T]) -> T | None:
    """The only one of several kinds; None where there is none."""
    if len(kinds) > 1:
        raise refuse_model(
            model, f"{len(kinds)} kinds of {what}", "one option holds for all layers"
        )
    return next(iter(kinds), None)


def _feed_forward(
    model: Model, dense: DenseFeedForward | None, moe: MoeFeedForward | None
) -> Iterator[Argument]:
    size = dense.size if dense else moe.expert_size if moe else 0
    yield Argument("--ffn-hidden-size", (str(size),))
    shapes = {(ff.gated, ff.activation, ff.bias) for ff in (dense, moe) if ff is not None}
    if len(shapes) > 1:
        raise refuse_model(
            model, "experts unlike the dense layers", "one activation holds for all layers"
        )
    gated, activation, bias = shapes.pop()
    match gated, activation:
        case True, "silu":
            yield Argument("--swiglu")
        case True, "quick_gelu":
            yield Argument("--quick-geglu")
        case False, "relu_squared":
            yield Argument("--squared-relu")
            if bias:
                yield Argument("--no-bias-gelu-fusion", why="the fused kernel is GELU only")
        case False, "gelu":
            if bias:
                yield Argument("--no-bias-gelu-fusion", why="the fused kernel approximates GELU")
        case False, "gelu_tanh" if bias:
            pass  # Megatron-LM's default: the fused bias-GELU kernel is the tanh form.
        case _:
            kind = f"{'gated ' if gated else ''}{activation}"
            raise refuse_model(
                model,
                f"the {kind} activation",
                "activations are GELU, squared ReLU, SwiGLU and quick GEGLU",
            )


def _attention(model: Model, layers: list[Layer], sequence: int) -> Iterator[Argument]:
    mixers = {_without_window(layer.attention) for layer in layers}
    mixer = _single(model, "attention layers", mixers)
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


def _without_window(mixer: Mixer | None) -> Mixer | None:
    if isinstance(mixer, GroupedQueryAttention):
        return mixer.model_copy(update={"sliding_window": None})
    return mixer


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


def _biases(model: Model, layers: list[Layer]) -> Iterator[Argument]:
    found = set()
    for layer in layers:
        mixer, feed_forward = layer.attention, layer.feed_forward
        assert feed_forward is not None
        qkv = isinstance(mixer, GroupedQueryAttention) and mixer.qkv_bias
        output = isinstance(mixer, GroupedQueryAttention) and mixer.output_bias
        router = _router_bias(feed_forward)
        found.add((qkv, output, feed_forward.bias if router is None else router))
        if router is not None and router != feed_forward.bias:
            raise refuse_model(model, "a router bias", "the router has one if experts have")
    if found == {(True, True, True)}:
        return
    if found not in ({(False, False, False)}, {(True, False, False)}):
        raise refuse_model(
            model,
            "biases in some linear layers",
            "biases are in all linear layers, in query, key and value only, or nowhere",
        )
    yield Argument("--disable-bias-linear")
    if found == {(True, False, False)}:
        yield Argument("--add-qkv-bias")


def _router_bias(feed_forward: FeedForward) -> bool | None:
    return feed_forward.router_bias if isinstance(feed_forward, MoeFeedForward) else None


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


def _experts(
    model: Model, moe: MoeFeedForward, layers: list[Layer], grouped_gemm: bool
) -> Iterator[Argument]:
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
    yield from _router(model, moe)
    yield Argument("--moe-router-load-balancing-type", ("aux_loss",))
    yield Argument("--moe-aux-loss-coeff", (AUXILIARY_LOSS,))
    yield Argument("--moe-token-dispatcher-type", ("alltoall",))
    if grouped_gemm:
        yield Argument("--moe-grouped-gemm", why="every device has the kernel")


def _router(model: Model, moe: MoeFeedForward) -> Iterator[Argument]:
    yield Argument("--moe-router-score-function", (moe.score_function,))
    if moe.score_function == "softmax" and not moe.normalize_top_k:
        yield Argument("--moe-router-pre-softmax", why="scores among all experts are kept")
    if moe.score_function == "softmax" and moe.normalize_top_k and moe.top_k == 1:
        raise refuse_model(
            model, "a normalised top-1 router", "its gradient is zero; Megatron-LM refuses it"
        )
    if moe.score_function == "sigmoid" and not moe.normalize_top_k and moe.top_k > 1:
        raise refuse_model(
            model, "sigmoid scores that are not normalised", "they are whenever top_k > 1"
        )
    if moe.expert_bias:
        if moe.score_function != "sigmoid":
            raise refuse_model(
                model, "a load-balancing bias of softmax scores", "it needs sigmoid scores"
            )
        yield Argument("--moe-router-enable-expert-bias")
    if not math.isclose(moe.routed_scaling, 1.0):
        yield Argument("--moe-router-topk-scaling-factor", (repr(moe.routed_scaling),))
    if moe.groups is not None and moe.top_groups is not None:
        yield Argument("--moe-router-num-groups", (str(moe.groups),))
        yield Argument("--moe-router-group-topk", (str(moe.top_groups),))
