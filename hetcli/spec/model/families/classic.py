"""Families with layer norms and an ungated feed-forward: GPT-2, OPT, GPT-NeoX, BLOOM, Falcon.

Sources: transformers 5.24, src/transformers/models/*/{configuration,modeling}_*.py, also for the
defaults written here.
"""

from __future__ import annotations

from hetcli.spec.model.architecture import (
    MAX_LAYERS,
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    Model,
    Norm,
    Positions,
)
from hetcli.spec.model.config import ConfigReader
from hetcli.spec.model.families.blocks import checked_kv_heads, head_size, rotary, runs

__all__ = ["bloom", "falcon", "gpt2", "gpt_neox", "opt"]


def _multi_head(
    config: ConfigReader, hidden: int, *keys: str, default: int, bias: bool
) -> GroupedQueryAttention:
    """Attention with as many key-value heads as the query heads that `keys` count."""
    heads = config.dimension(*keys, default=default)
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=heads,
        head_dim=head_size(config, hidden, heads, key=config.spelling(*keys)),
        qkv_bias=bias,
        output_bias=bias,
    )


def gpt2(config: ConfigReader) -> Model:
    """GPT-2, and GPT-3 in its format: learned positions, biases everywhere, tied head."""
    if config.flag("add_cross_attention", default=False):
        config.refuse("add_cross_attention", why="hetcli plans decoder-only models", fix="false")
    hidden = config.dimension("n_embd", "hidden_size", default=768)
    sequence = config.size("n_positions", "max_position_embeddings", "n_ctx", default=1024)
    layer = Layer(
        attention=_multi_head(
            config, hidden, "n_head", "num_attention_heads", default=12, bias=True
        ),
        feed_forward=DenseFeedForward(
            size=config.optional("n_inner") or 4 * hidden,
            gated=False,
            bias=True,
            activation=config.activation("activation_function", default="gelu_new"),
        ),
    )
    count = config.dimension("n_layer", "num_hidden_layers", default=12, largest=MAX_LAYERS)
    return Model(
        name=config.name,
        architecture="gpt2",
        source=config.source,
        hidden_size=hidden,
        vocab_size=config.dimension("vocab_size", default=50257),
        max_sequence=sequence,
        layers=runs([layer] * count),
        norm=Norm(
            kind="layernorm",
            bias=True,
            epsilon=config.number("layer_norm_epsilon", default=1e-5, largest=0.5),
        ),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        positions=Positions(kind="learned", table_size=sequence),
    )


def opt(config: ConfigReader) -> Model:
    """OPT; its 350M variant embeds into a smaller size and normalises after the sum."""
    hidden = config.dimension("hidden_size", default=768)
    sequence = config.size("max_position_embeddings", default=2048)
    bias = config.flag("enable_bias", default=True)
    pre_norm = config.flag("do_layer_norm_before", default=True)
    word_size = config.optional("word_embed_proj_dim") or hidden
    layer = Layer(
        attention=_multi_head(config, hidden, "num_attention_heads", default=12, bias=bias),
        feed_forward=DenseFeedForward(
            size=config.dimension("ffn_dim", default=3072),
            gated=False,
            bias=bias,
            activation=config.activation("activation_function", default="relu"),
        ),
        norm_placement="pre" if pre_norm else "post",
    )
    count = config.dimension("num_hidden_layers", default=12, largest=MAX_LAYERS)
    return Model(
        name=config.name,
        architecture="opt",
        source=config.source,
        hidden_size=hidden,
        vocab_size=config.dimension("vocab_size", default=50272),
        max_sequence=sequence,
        layers=runs([layer] * count),
        norm=Norm(
            kind="layernorm",
            bias=True,
            elementwise=config.flag("layer_norm_elementwise_affine", default=True),
        ),
        final_norm=pre_norm and not config.flag("_remove_final_layer_norm", default=False),
        embedding_size=None if word_size == hidden else word_size,
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        # Positions are counted from 2 (OPTLearnedPositionalEmbedding.offset).
        positions=Positions(kind="learned", table_size=sequence + 2),
    )


def gpt_neox(config: ConfigReader) -> Model:
    """GPT-NeoX and Pythia: rotary positions on a part of every head, parallel sublayers."""
    hidden = config.dimension("hidden_size", default=6144)
    bias = config.flag("attention_bias", default=True)
    layer = Layer(
        attention=_multi_head(config, hidden, "num_attention_heads", default=64, bias=bias),
        feed_forward=DenseFeedForward(
            size=config.dimension("intermediate_size", default=24576),
            gated=False,
            bias=True,
            activation=config.activation("hidden_act", default="gelu"),
        ),
        parallel=config.flag("use_parallel_residual", default=True),
    )
    count = config.dimension("num_hidden_layers", default=44, largest=MAX_LAYERS)
    return Model(
        name=config.name,
        architecture="gpt_neox",
        source=config.source,
        hidden_size=hidden,
        vocab_size=config.dimension("vocab_size", default=50432),
        max_sequence=config.size("max_position_embeddings", default=2048),
        layers=runs([layer] * count),
        norm=Norm(
            kind="layernorm",
            bias=True,
            epsilon=config.number("layer_norm_eps", default=1e-5, largest=0.5),
        ),
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
        positions=Positions(rotary=rotary(config, base=10000.0, fraction=0.25)),
    )


def bloom(config: ConfigReader) -> Model:
    """BLOOM: ALiBi, and a norm of the word embeddings."""
    hidden = config.dimension("hidden_size", "n_embed", default=64)
    layer = Layer(
        attention=_multi_head(
            config, hidden, "n_head", "num_attention_heads", default=8, bias=True
        ),
        feed_forward=DenseFeedForward(
            size=4 * hidden, gated=False, bias=True, activation="gelu_tanh"
        ),
    )
    count = config.dimension("n_layer", "num_hidden_layers", default=2, largest=MAX_LAYERS)
    return Model(
        name=config.name,
        architecture="bloom",
        source=config.source,
        hidden_size=hidden,
        vocab_size=config.dimension("vocab_size", default=250880),
        # ALiBi has no limit of its own; BLOOM was trained on 2,048 tokens (arXiv 2211.05100).
        max_sequence=config.size("seq_length", default=2048),
        layers=runs([layer] * count),
        norm=Norm(
            kind="layernorm",
            bias=True,
            epsilon=config.number("layer_norm_epsilon", default=1e-5, largest=0.5),
        ),
        embedding_norm=True,
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        positions=Positions(kind="alibi"),
    )


def falcon(config: ConfigReader) -> Model:
    """Falcon: multi-query (7B) or grouped (40B, 180B), attention and feed-forward in parallel."""
    hidden = config.dimension("hidden_size", "n_embed", default=4544)
    heads = config.dimension("num_attention_heads", default=71)
    bias = config.flag("bias", default=False)
    grouped = config.flag("new_decoder_architecture", default=False)
    parallel = config.flag("parallel_attn", default=True)
    if grouped:
        kv_heads = config.optional("num_kv_heads") or heads
        checked_kv_heads(config, heads, kv_heads, key="num_kv_heads")
    else:
        kv_heads = 1 if config.flag("multi_query", default=True) else heads
    # Parallel sublayers share one norm, unless the class asks for one each.
    parallel_norms = config.size("num_ln_in_parallel_attn", default=2 if grouped else 1)
    layer = Layer(
        attention=GroupedQueryAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_size(config, hidden, heads, key="num_attention_heads"),
            qkv_bias=bias,
            output_bias=bias,
        ),
        feed_forward=DenseFeedForward(
            size=config.optional("ffn_hidden_size") or 4 * hidden,
            gated=False,
            bias=bias,
            activation=config.activation("activation", default="gelu"),
        ),
        norms=2 if not parallel or parallel_norms == 2 else 1,
        parallel=parallel or grouped,
    )
    count = config.dimension("num_hidden_layers", default=32, largest=MAX_LAYERS)
    alibi = config.flag("alibi", default=False)
    return Model(
        name=config.name,
        architecture="falcon",
        source=config.source,
        hidden_size=hidden,
        vocab_size=config.dimension("vocab_size", default=65024),
        max_sequence=config.size("max_position_embeddings", default=2048),
        layers=runs([layer] * count),
        norm=Norm(
            kind="layernorm",
            bias=True,
            epsilon=config.number("layer_norm_epsilon", default=1e-5, largest=0.5),
        ),
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        positions=Positions(kind="alibi")
        if alibi
        else Positions(rotary=rotary(config, base=10000.0)),
    )
