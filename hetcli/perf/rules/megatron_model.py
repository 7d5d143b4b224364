"""Parts of a model that mainline Megatron-LM has no option for.

Source: megatron/training/arguments.py and megatron/core/transformer/transformer_config.py of core
0.19; `GPTModel` builds equal pre-norm blocks. Positions: `RotaryEmbedding` and
`YarnRotaryEmbedding`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Mixer,
    Model,
    MoeFeedForward,
    Rotary,
    RotaryScaling,
)

__all__ = ["LATENT_YARN", "Gap", "megatron_gaps", "without_window"]

# What cannot be built, and why.
Gap = tuple[str, str]

# Constants of Megatron-LM's Llama 3 scaling, which has an option for the factor only
# (RotaryEmbedding._apply_scaling): low and high frequency factor, original sequence.
LLAMA3: Final = (1.0, 4.0, 8192)
# Defaults of MLATransformerConfig that have no option: original sequence, beta_fast, beta_slow.
LATENT_YARN: Final = (4096, 32.0, 1.0)
# Gated or not, activation, with biases: what an option, or the default, builds.
_ACTIVATIONS: Final = frozenset(
    {
        *((True, "silu", bias) for bias in (False, True)),
        *((True, "quick_gelu", bias) for bias in (False, True)),
        *((False, "relu_squared", bias) for bias in (False, True)),
        *((False, "gelu", bias) for bias in (False, True)),
        # The default's fused bias-GELU kernel is the tanh form; without biases it is not used.
        (False, "gelu_tanh", True),
    }
)


def megatron_gaps(model: Model, sequence: int) -> Iterator[Gap]:
    """Everything of `model`, for sequences of `sequence` tokens, that no option builds."""
    layers = [run.layer for run in model.layers]
    if model.adapters is not None:
        yield "the adapters", "pretrain_gpt.py trains whole models"
    yield from _whole(model)
    for layer in layers:
        yield from _layer(layer)
    if any(layer.attention is None or layer.feed_forward is None for layer in layers):
        return
    yield from _kinds(layers)
    yield from _biases(layers)
    for feed_forward in {layer.feed_forward for layer in layers}:
        if isinstance(feed_forward, MoeFeedForward):
            yield from _router(feed_forward)
    yield from _positions(model, layers, sequence)


def without_window(mixer: Mixer | None) -> Mixer | None:
    """The attention apart from its window, which may differ between layers."""
    if isinstance(mixer, GroupedQueryAttention):
        return mixer.model_copy(update={"sliding_window": None})
    return mixer


def _broken(rules: Iterable[tuple[bool, str, str]]) -> Iterator[Gap]:
    return ((what, why) for wrong, what, why in rules if wrong)


def _whole(model: Model) -> Iterator[Gap]:
    norm = model.norm
    return _broken(
        (
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
            (model.adapters is not None, "the adapters", "it trains every weight of a model"),
            (norm.kind == "none", "blocks without norms", "--normalization LayerNorm or RMSNorm"),
            (not norm.elementwise, "norms without weights", "every norm has weights"),
            (
                norm.bias != (norm.kind == "layernorm"),
                f"a {norm.kind} {'with' if norm.bias else 'without'} bias",
                "LayerNorm has a bias, RMSNorm has none",
            ),
        )
    )


def _layer(layer: Layer) -> Iterator[Gap]:
    attention = layer.attention
    grouped = attention if isinstance(attention, GroupedQueryAttention) else None
    return _broken(
        (
            (
                attention is None or layer.feed_forward is None,
                "layers without attention or feed-forward",
                "every block of GPTModel has both",
            ),
            (
                layer.parallel,
                "parallel attention and feed-forward",
                "no option runs them side by side",
            ),
            (
                layer.norm_placement != "pre" or layer.norms != 2,
                f"{layer.norms} norms a layer placed {layer.norm_placement}",
                "blocks have one norm before attention and one before the feed-forward",
            ),
            (
                grouped is not None and grouped.query_key_norm == "projection",
                "the query and key norm over the whole projection",
                "--qk-layernorm is a norm over each head",
            ),
            (
                grouped is not None and grouped.softmax_scale is not None,
                "the softmax scale",
                "the scale is one over the root of the head dimension",
            ),
            (
                grouped is not None and grouped.logit_softcap is not None,
                "the capped attention scores",
                "no option caps them",
            ),
            (
                isinstance(attention, LatentAttention) and attention.bias,
                "the biases of latent attention",
                "--add-qkv-bias does not reach the latent projections",
            ),
        )
    )


def _kinds(layers: list[Layer]) -> Iterator[Gap]:
    """Layers that differ in what one option says for all of them."""
    feed_forwards = {ff for layer in layers if (ff := layer.feed_forward) is not None}
    for what, kinds in (
        ("attention layers", {without_window(layer.attention) for layer in layers}),
        ("feed-forward layers", {ff for ff in feed_forwards if isinstance(ff, DenseFeedForward)}),
        ("MoE layers", {ff for ff in feed_forwards if isinstance(ff, MoeFeedForward)}),
    ):
        if len(kinds) > 1:
            yield f"{len(kinds)} kinds of {what}", "one option holds for all layers"
    shapes = {(ff.gated, ff.activation, ff.bias) for ff in feed_forwards}
    if len(shapes) > 1:
        yield "experts unlike the dense layers", "one activation holds for all layers"
    for gated, activation, _ in sorted(shapes - _ACTIVATIONS):
        yield (
            f"the {'gated ' if gated else ''}{activation} activation",
            "activations are GELU, squared ReLU, SwiGLU and quick GEGLU",
        )


def _biases(layers: list[Layer]) -> Iterator[Gap]:
    found = set()
    for layer in layers:
        mixer, feed_forward = layer.attention, layer.feed_forward
        assert feed_forward is not None
        qkv = isinstance(mixer, GroupedQueryAttention) and mixer.qkv_bias
        output = isinstance(mixer, GroupedQueryAttention) and mixer.output_bias
        found.add((qkv, output, feed_forward.bias))
        if isinstance(feed_forward, MoeFeedForward) and (
            feed_forward.router_bias != feed_forward.bias
        ):
            yield "a router bias", "the router has one if experts have"
    if len(found) > 1 or not found <= {
        (True, True, True),
        (False, False, False),
        (True, False, False),
    }:
        yield (
            "biases in some linear layers",
            "biases are in all linear layers, in query, key and value only, or nowhere",
        )


def _router(moe: MoeFeedForward) -> Iterator[Gap]:
    softmax = moe.score_function == "softmax"
    return _broken(
        (
            (
                softmax and moe.normalize_top_k and moe.top_k == 1,
                "a normalised top-1 router",
                "its gradient is zero; Megatron-LM refuses it",
            ),
            (
                not softmax and not moe.normalize_top_k and moe.top_k > 1,
                "sigmoid scores that are not normalised",
                "they are whenever top_k > 1",
            ),
            (
                softmax and moe.expert_bias,
                "a load-balancing bias of softmax scores",
                "it needs sigmoid scores",
            ),
        )
    )


def _positions(model: Model, layers: list[Layer], sequence: int) -> Iterator[Gap]:
    positions = model.positions
    latent = any(isinstance(layer.attention, LatentAttention) for layer in layers)
    match positions.kind:
        case "rope":
            yield from _rotary(positions.rotary or Rotary(), latent, sequence)
        case "alibi":
            yield "alibi positions", "they are learned, rotary, YaRN or none"
    if model.prediction_layers and positions.kind != "rope":
        yield "prediction layers", "--mtp-num-layers needs rotary positions"


def _rotary(rotary: Rotary, latent: bool, sequence: int) -> Iterator[Gap]:
    if not float(rotary.base).is_integer():
        yield f"the rotary base {rotary.base}", "--rotary-base is an integer"
    if rotary.local_base is not None:
        yield "a second rotary base", "--rotary-base holds for all layers"
    scaling = rotary.scaling
    if scaling is None:
        return
    original, factor = scaling.original_max_sequence, scaling.factor or 1.0
    match scaling.kind:
        case "llama3" if not latent:
            found = (scaling.low_frequency_factor, scaling.high_frequency_factor, original)
            if found != LLAMA3:
                yield (
                    f"a Llama 3 rotary scaling with {found}",
                    f"only the factor is an option; the others are {LLAMA3}",
                )
        case "linear" if not latent and factor.is_integer():
            return
        case "yarn":
            yield from _yarn(scaling, factor, latent)
        case "dynamic" if original is None or sequence <= original:
            return  # Changes nothing up to the sequence that it was trained on.
        case kind:
            yield f"the {kind} rotary scaling", "scalings are Llama 3, linear by an integer, YaRN"


def _yarn(scaling: RotaryScaling, factor: float, latent: bool) -> Iterator[Gap]:
    original = scaling.original_max_sequence or LATENT_YARN[0]
    betas = (scaling.beta_fast or LATENT_YARN[1], scaling.beta_slow or LATENT_YARN[2])
    if latent and (original, *betas) != LATENT_YARN:
        yield (
            f"a YaRN scaling of latent attention with {(original, *betas)}",
            f"original sequence, beta_fast and beta_slow have no option; they are {LATENT_YARN}",
        )
    mscale = 1.0 if scaling.mscale is None else scaling.mscale
    usual = _concentration(factor, mscale) / _concentration(factor, scaling.mscale_all_dim or 0.0)
    wanted = scaling.attention_factor
    if wanted is not None and not math.isclose(wanted, usual, rel_tol=1e-6):
        yield f"the YaRN attention factor {wanted}", f"it follows from the scaling: {usual:.6g}"


def _concentration(factor: float, mscale: float) -> float:
    """YaRN's softmax temperature (arXiv 2309.00071, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
