"""Random models of every family that exporters write options for."""

from __future__ import annotations

from hypothesis import strategies as st
from plans import deepseek, llama

from hetcli.spec.model.architecture import (
    Adapters,
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
    Norm,
    Positions,
    Rotary,
)

# Every size below can be cut by these.
TENSOR = (1, 2, 4, 8)
FAMILIES = ("grouped", "gpt", "experts", "latent")


@st.composite
def models(draw: st.DrawFn, layers: int, *, adapters: bool = False) -> Model:
    """A model of `layers` layers that every degree of `TENSOR` can cut; some with adapters."""
    family = draw(st.sampled_from(FAMILIES if layers > 1 else FAMILIES[:3]))
    made = {"grouped": grouped, "gpt": gpt, "experts": experts, "latent": latent}[family]
    model = draw(made(layers))
    if adapters and draw(st.booleans()):
        model = model.model_copy(update={"adapters": Adapters(rank=draw(st.sampled_from((8, 64))))})
    return model


@st.composite
def _attention(draw: st.DrawFn, **more: bool) -> GroupedQueryAttention:
    kv_heads = draw(st.sampled_from((8, 16)))
    return GroupedQueryAttention(
        heads=kv_heads * draw(st.sampled_from((1, 2, 5))),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from((64, 128))),
        **more,
    )


@st.composite
def grouped(draw: st.DrawFn, layers: int) -> Model:
    """Llama, Qwen2 (query, key and value have biases), Qwen3 (normed heads), tied or not."""
    plain = draw(_attention())
    attention = plain.model_copy(
        update=draw(st.sampled_from(({}, {"qkv_bias": True}, {"query_key_norm": "head"})))
    )
    return llama(
        layers,
        Layer(
            attention=attention,
            feed_forward=DenseFeedForward(size=draw(st.sampled_from((5632, 14336)))),
        ),
        hidden_size=draw(st.sampled_from((2048, 5120))),
        vocab_size=draw(st.sampled_from((32000, 50257, 151936))),
        tied_embeddings=draw(st.booleans()),
        positions=Positions(
            kind="rope", rotary=Rotary(base=draw(st.sampled_from((10000.0, 1000000.0))))
        ),
    )


@st.composite
def gpt(draw: st.DrawFn, layers: int) -> Model:
    """Learned positions, biases everywhere, LayerNorm, tied embeddings."""
    heads = draw(st.sampled_from((16, 32)))
    return llama(
        layers,
        Layer(
            attention=GroupedQueryAttention(
                heads=heads, kv_heads=heads, head_dim=64, qkv_bias=True, output_bias=True
            ),
            feed_forward=DenseFeedForward(
                size=256 * heads,
                gated=False,
                bias=True,
                activation=draw(st.sampled_from(("gelu", "gelu_tanh", "relu_squared"))),
            ),
        ),
        hidden_size=64 * heads,
        vocab_size=50304,
        max_sequence=4096,
        norm=Norm(kind="layernorm", bias=True),
        tied_embeddings=True,
        positions=Positions(kind="learned", table_size=4096),
    )


@st.composite
def experts(draw: st.DrawFn, layers: int) -> Model:
    """Mixtral; with shared experts, sigmoid scores or a few dense layers before the others."""
    number = draw(st.sampled_from((8, 16)))
    sigmoid = draw(st.booleans())
    moe = MoeFeedForward(
        experts=number,
        top_k=draw(st.sampled_from((2, 4))),
        expert_size=1536,
        shared_size=draw(st.sampled_from((0, 3072))),
        score_function="sigmoid" if sigmoid else "softmax",
        expert_bias=sigmoid and draw(st.booleans()),
    )
    attention = draw(_attention())
    dense = draw(st.integers(0, layers - 1))
    runs = [LayerRun(count=layers - dense, layer=Layer(attention=attention, feed_forward=moe))]
    if dense:
        first = Layer(attention=attention, feed_forward=DenseFeedForward(size=14336))
        runs.insert(0, LayerRun(count=dense, layer=first))
    return llama(runs=tuple(runs), vocab_size=32000)


@st.composite
def latent(draw: st.DrawFn, layers: int) -> Model:
    """DeepSeek-V3's shape: latent attention, dense layers, experts in groups."""
    dense = draw(st.integers(1, layers - 1))
    return deepseek(dense=dense, sparse=layers - dense, prediction_layers=0)
