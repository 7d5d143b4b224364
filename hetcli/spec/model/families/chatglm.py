"""ChatGLM2, ChatGLM3 and the first GLM-4 repositories, which have keys of their own.

Source: `configuration_chatglm.py` and `modeling_chatglm.py` of huggingface.co/THUDM/glm-4-9b.
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
    Rotary,
)
from hetcli.spec.model.config import ConfigReader
from hetcli.spec.model.families.blocks import checked_kv_heads, head_size, runs

__all__ = ["chatglm"]


def chatglm(config: ConfigReader) -> Model:
    """A ChatGLM of the second generation or later; the first one lacks `ffn_hidden_size`."""
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    linear_bias = config.flag("add_bias_linear", default=False)
    kv_heads = heads
    if config.flag("multi_query_attention", default=False):
        kv_heads = config.size("multi_query_group_num", default=1)
        checked_kv_heads(config, heads, kv_heads, key="multi_query_group_num")
    layer = Layer(
        attention=GroupedQueryAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=config.optional("kv_channels")
            or head_size(config, hidden, heads, key="num_attention_heads"),
            qkv_bias=linear_bias or config.flag("add_qkv_bias", default=False),
            output_bias=linear_bias,
        ),
        feed_forward=DenseFeedForward(size=config.size("ffn_hidden_size"), bias=linear_bias),
    )
    rms = config.flag("rmsnorm", default=True)
    return Model(
        name=config.name,
        architecture="chatglm",
        source=config.source,
        hidden_size=hidden,
        vocab_size=config.size("padded_vocab_size"),
        max_sequence=config.size("seq_length", default=2048),
        layers=runs([layer] * config.size("num_layers", largest=MAX_LAYERS)),
        norm=Norm(
            kind="rmsnorm" if rms else "layernorm",
            bias=not rms,
            epsilon=config.number("layernorm_epsilon", default=1e-5, largest=0.5),
        ),
        final_norm=config.flag("post_layer_norm", default=True),
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
        positions=Positions(
            # Half of every head is rotated; `rope_ratio` stretches the base of 10,000.
            rotary=Rotary(
                base=10000.0 * config.number("rope_ratio", default=1.0),
                fraction=0.5,
                interleaved=True,
            )
        ),
    )
