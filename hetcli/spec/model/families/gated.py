"""Dense families with RMS norms, rotary positions and a gated feed-forward: Llama and its kin.

Sources: transformers 5.24, src/transformers/models/*/modeling_*.py, for what each family adds.
"""

from __future__ import annotations

import math

from hetcli.spec.model.architecture import Layer, Model
from hetcli.spec.model.config import ConfigReader
from hetcli.spec.model.families import defaults
from hetcli.spec.model.families.blocks import (
    decoder,
    dense,
    grouped_query,
    layer_count,
    sliding,
    with_windows,
)

__all__ = [
    "gemma",
    "gemma2",
    "gemma3",
    "glm",
    "glm4",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
]


def llama(config: ConfigReader) -> Model:
    """Llama 1, 2, 3 and 3.x, and the many models that reuse its class."""
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        attention=grouped_query(config, defaults.LLAMA, qkv_bias=bias, output_bias=bias),
        feed_forward=dense(config, defaults.LLAMA, bias=config.flag("mlp_bias", default=False)),
    )
    return decoder(config, defaults.LLAMA, layer, architecture="llama")


def mistral(config: ConfigReader) -> Model:
    """Mistral: a Llama whose every layer may have a sliding window."""
    window = config.optional("sliding_window", 4096)
    layer = Layer(
        attention=grouped_query(config, defaults.MISTRAL, window=window),
        feed_forward=dense(config, defaults.MISTRAL),
    )
    return decoder(config, defaults.MISTRAL, layer, architecture="mistral")


def phi3(config: ConfigReader) -> Model:
    """Phi-3, 3.5 and 4 (dense)."""
    window = config.optional("sliding_window")
    layer = Layer(
        attention=grouped_query(config, defaults.PHI3, window=window),
        feed_forward=dense(config, defaults.PHI3),
    )
    return decoder(config, defaults.PHI3, layer, architecture="phi3")


def _qwen_layers(config: ConfigReader, known: defaults.Defaults, layer: Layer) -> list[Layer]:
    """Windows are off unless `use_sliding_window`, and then begin at `max_window_layers`."""
    count = layer_count(config, known)
    if not config.flag("use_sliding_window", default=False):
        return [layer] * count
    first = config.count("max_window_layers", default=28)
    slides = sliding(config, count, lambda index: index >= first)
    return with_windows([layer] * count, config.optional("sliding_window", 4096), slides)


def qwen2(config: ConfigReader) -> Model:
    """Qwen 1.5, 2 and 2.5: biases of query, key and value only."""
    layer = Layer(
        attention=grouped_query(config, defaults.QWEN2, qkv_bias=True),
        feed_forward=dense(config, defaults.QWEN2),
    )
    layers = _qwen_layers(config, defaults.QWEN2, layer)
    return decoder(config, defaults.QWEN2, layers, architecture="qwen2")


def qwen3(config: ConfigReader) -> Model:
    """Qwen3: norms of query and key, and no biases by default."""
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        attention=grouped_query(
            config, defaults.QWEN3, qkv_bias=bias, output_bias=bias, query_key_norm="head"
        ),
        feed_forward=dense(config, defaults.QWEN3),
    )
    layers = _qwen_layers(config, defaults.QWEN3, layer)
    return decoder(config, defaults.QWEN3, layers, architecture="qwen3")


def olmo2(config: ConfigReader) -> Model:
    """OLMo 2: norms on the outputs of the sublayers, and of whole projections."""
    bias = config.flag("attention_bias", default=False)
    layer = Layer(
        attention=grouped_query(
            config, defaults.OLMO2, qkv_bias=bias, output_bias=bias, query_key_norm="projection"
        ),
        feed_forward=dense(config, defaults.OLMO2),
        norm_placement="output",
    )
    return decoder(config, defaults.OLMO2, layer, architecture="olmo2")


def _embedding_scale(config: ConfigReader, known: defaults.Defaults) -> float:
    return math.sqrt(config.dimension("hidden_size", default=known.hidden_size))


def _scale(config: ConfigReader, head_dim: int) -> float | None:
    scalar = config.number("query_pre_attn_scalar", default=256)
    return None if scalar == head_dim else scalar**-0.5


def gemma(config: ConfigReader) -> Model:
    """Gemma 1."""
    bias = config.flag("attention_bias", default=False)
    block = dense(config, defaults.GEMMA)
    if block.activation == "gelu":
        # The first configurations say gelu and mean its tanh form (transformers, GemmaConfig).
        block = block.model_copy(update={"activation": "gelu_tanh"})
    layer = Layer(
        attention=grouped_query(config, defaults.GEMMA, qkv_bias=bias, output_bias=bias),
        feed_forward=block,
    )
    return decoder(
        config,
        defaults.GEMMA,
        layer,
        architecture="gemma",
        zero_centered_norm=True,
        embedding_scale=_embedding_scale(config, defaults.GEMMA),
    )


def gemma2(config: ConfigReader) -> Model:
    """Gemma 2: four norms a layer, every other layer with a window, capped scores and logits."""
    bias = config.flag("attention_bias", default=False)
    attention = grouped_query(
        config,
        defaults.GEMMA2,
        qkv_bias=bias,
        output_bias=bias,
        logit_softcap=config.optional_number("attn_logit_softcapping", 50.0),
    )
    scale = _scale(config, attention.head_dim)
    layer = Layer(
        attention=attention.model_copy(update={"softmax_scale": scale}),
        feed_forward=dense(config, defaults.GEMMA2),
        norms=4,
        norm_placement="sandwich",
    )
    count = layer_count(config, defaults.GEMMA2)
    slides = sliding(config, count, lambda index: index % 2 == 0)
    return decoder(
        config,
        defaults.GEMMA2,
        with_windows([layer] * count, config.optional("sliding_window", 4096), slides),
        architecture="gemma2",
        zero_centered_norm=True,
        embedding_scale=_embedding_scale(config, defaults.GEMMA2),
        logit_softcap=config.optional_number("final_logit_softcapping", 30.0),
    )


def gemma3(config: ConfigReader) -> Model:
    """Gemma 3: one layer in `sliding_window_pattern` sees everything; query and key norms."""
    bias = config.flag("attention_bias", default=False)
    attention = grouped_query(
        config,
        defaults.GEMMA3,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm="head",
        logit_softcap=config.optional_number("attn_logit_softcapping"),
    )
    scale = _scale(config, attention.head_dim)
    layer = Layer(
        attention=attention.model_copy(update={"softmax_scale": scale}),
        feed_forward=dense(config, defaults.GEMMA3),
        norms=4,
        norm_placement="sandwich",
    )
    count = layer_count(config, defaults.GEMMA3)
    pattern = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    slides = sliding(config, count, lambda index: (index + 1) % pattern != 0)
    return decoder(
        config,
        defaults.GEMMA3,
        with_windows([layer] * count, config.optional("sliding_window", 4096), slides),
        architecture="gemma3_text",
        zero_centered_norm=True,
        embedding_scale=_embedding_scale(config, defaults.GEMMA3),
        logit_softcap=config.optional_number("final_logit_softcapping"),
        local_rope_base=10000.0,
    )


def _glm_layer(config: ConfigReader, *, sandwich: bool) -> Layer:
    bias = config.flag("attention_bias", default=True)
    return Layer(
        attention=grouped_query(config, defaults.GLM, qkv_bias=bias),
        feed_forward=dense(config, defaults.GLM),
        norms=4 if sandwich else 2,
        norm_placement="sandwich" if sandwich else "pre",
    )


def glm(config: ConfigReader) -> Model:
    """GLM-4 (model type `glm`)."""
    layer = _glm_layer(config, sandwich=False)
    return decoder(config, defaults.GLM, layer, architecture="glm", interleaved=True)


def glm4(config: ConfigReader) -> Model:
    """GLM-4-0414: GLM-4 with norms on the outputs of the sublayers as well."""
    layer = _glm_layer(config, sandwich=True)
    return decoder(config, defaults.GLM, layer, architecture="glm4", interleaved=True)
