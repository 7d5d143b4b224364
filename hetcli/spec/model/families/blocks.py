"""The parts that model families are made of, read from the keys that most of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, Literal

from hetcli.spec.model.architecture import (
    MAX_LAYERS,
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    Norm,
    Positions,
    Rotary,
    RotaryScaling,
    divisors,
)
from hetcli.spec.model.config import ConfigReader
from hetcli.spec.model.families.defaults import Defaults

__all__ = [
    "checked_kv_heads",
    "decoder",
    "dense",
    "grouped_query",
    "head_size",
    "layer_count",
    "rotary",
    "runs",
    "sliding",
    "with_windows",
]

_SCALINGS: Final[dict[str, Literal["linear", "dynamic", "yarn", "longrope", "llama3"] | None]] = {
    "default": None,
    # Sections for image positions; text is rotated as by default.
    "mrope": None,
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "longrope": "longrope",
    # The name in Phi-3's first configurations.
    "su": "longrope",
    "llama3": "llama3",
}


def layer_count(config: ConfigReader, defaults: Defaults) -> int:
    """The number of decoder layers."""
    return config.dimension("num_hidden_layers", default=defaults.layers, largest=MAX_LAYERS)


def head_size(config: ConfigReader, hidden: int, heads: int, *, key: str) -> int:
    """Hidden size / heads; refused where it is not whole. `key` holds the number of heads."""
    if hidden % heads:
        config.refuse(
            key,
            why=f"the hidden size {hidden} is shared by the heads: {hidden} % {heads} != 0",
            fix=f"legal values: {divisors(hidden)}",
        )
    return hidden // heads


def checked_kv_heads(config: ConfigReader, heads: int, kv_heads: int, *, key: str) -> int:
    """`kv_heads`, refused where query heads can't share them evenly. `key` holds the number."""
    if heads % kv_heads:
        config.refuse(
            key,
            why=f"every key-value head serves as many of the {heads} query heads: "
            f"{heads} % {kv_heads} != 0",
            fix=f"legal values: {divisors(heads)}",
        )
    return kv_heads


def grouped_query(
    config: ConfigReader,
    defaults: Defaults,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    query_key_norm: Literal["none", "head", "projection"] = "none",
    window: int | None = None,
    softmax_scale: float | None = None,
    logit_softcap: float | None = None,
) -> GroupedQueryAttention:
    """The attention of the configuration's `num_attention_heads` and `num_key_value_heads`."""
    hidden = config.dimension("hidden_size", default=defaults.hidden_size)
    heads = config.dimension("num_attention_heads", default=defaults.heads)
    head_dim = config.optional("head_dim", defaults.head_dim)
    if head_dim is None:
        head_dim = head_size(config, hidden, heads, key="num_attention_heads")
    kv_heads = config.optional("num_key_value_heads", defaults.kv_heads) or heads
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=checked_kv_heads(config, heads, kv_heads, key="num_key_value_heads"),
        head_dim=head_dim,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        query_key_norm=query_key_norm,
        sliding_window=window,
        softmax_scale=softmax_scale,
        logit_softcap=logit_softcap,
    )


def dense(config: ConfigReader, defaults: Defaults, *, bias: bool = False) -> DenseFeedForward:
    """The gated feed-forward of the configuration's `intermediate_size`."""
    return DenseFeedForward(
        size=config.dimension("intermediate_size", default=defaults.intermediate_size),
        bias=bias,
        activation=config.activation(
            "hidden_activation", "hidden_act", default=defaults.activation
        ),
    )


def sliding(config: ConfigReader, count: int, rule: Callable[[int], bool]) -> list[bool]:
    """Which layers have a sliding window: as `layer_types` says, else by the class's `rule`."""
    types = config.items("layer_types")
    if types is None:
        return [rule(index) for index in range(count)]
    legal = ("full_attention", "sliding_attention")
    if len(types) != count or not all(kind in legal for kind in types):
        config.refuse(
            "layer_types",
            why="it says the kind of every layer's attention",
            fix=f"{count} entries (num_hidden_layers), each one of {', '.join(legal)}",
        )
    return [kind == "sliding_attention" for kind in types]


def with_windows(
    layers: Sequence[Layer], window: int | None, slides: Iterable[bool]
) -> list[Layer]:
    """The layers, with a sliding window where `slides` says so."""
    if window is None:
        return list(layers)
    windowed: dict[int, Layer] = {}
    for layer in layers:
        if id(layer) not in windowed and layer.attention is not None:
            attention = layer.attention.model_copy(update={"sliding_window": window})
            windowed[id(layer)] = layer.model_copy(update={"attention": attention})
    return [
        windowed.get(id(layer), layer) if slide else layer
        for layer, slide in zip(layers, slides, strict=True)
    ]


def runs(layers: Iterable[Layer]) -> tuple[LayerRun, ...]:
    """Equal neighbours as one run."""
    return tuple(
        LayerRun(count=sum(1 for _ in group), layer=layer) for layer, group in groupby(layers)
    )


def rotary(
    config: ConfigReader,
    *,
    base: float,
    fraction: float = 1.0,
    interleaved: bool = False,
    local_base: float | None = None,
) -> Rotary:
    """The rotary embedding, from `rope_theta` and `rope_scaling` or, since 5.0, `rope_parameters`.

    `base`, `fraction` and `local_base` are the defaults of the family.
    """
    section = config.section("rope_scaling") or config.section("rope_parameters")
    local_base = config.optional_number("rope_local_base_freq", local_base)
    if section is not None and section.has("full_attention"):
        # Layers of two kinds have parameters of their own (Gemma 3).
        sliding_section = section.section("sliding_attention")
        if sliding_section is not None:
            local_base = sliding_section.optional_number("rope_theta", local_base)
        section = section.section("full_attention")
    base = config.number("rope_theta", "rotary_emb_base", default=base)
    fraction = config.number("partial_rotary_factor", "rotary_pct", default=fraction, largest=1)
    scaling = None
    if section is not None:
        base = section.number("rope_theta", default=base)
        fraction = section.number("partial_rotary_factor", default=fraction, largest=1)
        scaling = _rotary_scaling(section, config)
    return Rotary(
        base=base,
        local_base=local_base,
        fraction=fraction,
        interleaved=interleaved,
        scaling=scaling,
    )


def _rotary_scaling(section: ConfigReader, config: ConfigReader) -> RotaryScaling | None:
    kind = _SCALINGS[section.choice("rope_type", "type", default="default", legal=tuple(_SCALINGS))]
    if kind is None:
        return None
    factor = section.optional_number("factor")
    if factor is None and kind != "longrope":
        section.refuse("factor", why=f"{kind} scaling stretches by it", fix="add factor")
    trained = "original_max_position_embeddings"
    return RotaryScaling(
        kind=kind,
        factor=factor,
        original_max_sequence=section.optional(trained) or config.optional(trained),
        low_frequency_factor=section.optional_number("low_freq_factor"),
        high_frequency_factor=section.optional_number("high_freq_factor"),
        beta_fast=section.optional_number("beta_fast"),
        beta_slow=section.optional_number("beta_slow"),
        mscale=section.optional_number("mscale"),
        mscale_all_dim=section.optional_number("mscale_all_dim", zero=True),
        attention_factor=section.optional_number("attention_factor"),
        short_factors=_factors(section, "short_factor"),
        long_factors=_factors(section, "long_factor"),
    )


def _factors(section: ConfigReader, key: str) -> tuple[float, ...]:
    values = []
    for value in section.items(key) or ():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e15:
            section.refuse(key, why="one factor a frequency", fix="a list of numbers above 0")
        values.append(float(value))
    return tuple(values)


def decoder(
    config: ConfigReader,
    defaults: Defaults,
    layers: Layer | Sequence[Layer],
    *,
    architecture: str,
    zero_centered_norm: bool = False,
    embedding_scale: float | None = None,
    logit_softcap: float | None = None,
    interleaved: bool = False,
    local_rope_base: float | None = None,
    prediction_layers: int = 0,
) -> Model:
    """A model with RMS norms and rotary positions around `layers` (a single one is repeated)."""
    if isinstance(layers, Layer):
        layers = [layers] * layer_count(config, defaults)
    return Model(
        name=config.name,
        architecture=architecture,
        source=config.source,
        hidden_size=config.dimension("hidden_size", default=defaults.hidden_size),
        vocab_size=config.dimension("vocab_size", default=defaults.vocab_size),
        max_sequence=config.size("max_position_embeddings", default=defaults.max_sequence),
        layers=runs(layers),
        norm=Norm(
            epsilon=config.number("rms_norm_eps", default=defaults.epsilon, largest=0.5),
            zero_centered=zero_centered_norm,
        ),
        tied_embeddings=config.flag("tie_word_embeddings", default=defaults.tied),
        positions=Positions(
            rotary=rotary(
                config,
                base=defaults.rope_base,
                fraction=defaults.rotary_fraction,
                interleaved=interleaved,
                local_base=local_rope_base,
            )
        ),
        embedding_scale=embedding_scale,
        logit_softcap=logit_softcap,
        prediction_layers=prediction_layers,
    )
