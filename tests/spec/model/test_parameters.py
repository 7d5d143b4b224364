from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.catalog.presets import find_preset, preset_names
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
    Norm,
    Positions,
)
from hetcli.spec.model.parameters import (
    active_parameters,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    prediction_parameters,
    total_parameters,
)

PUBLISHED = Path(__file__).parents[2] / "published" / "models"


def table(name: str, column: str) -> list[tuple[str, int]]:
    with (PUBLISHED / name).open(newline="") as file:
        return [(row["model"], int(row[column])) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("name", "published"), table("parameters.csv", "parameters"))
def test_total_is_the_published_one(model: Callable[..., Model], name: str, published: int) -> None:
    # `config:gpt2` (GPT-2 medium) and the preset `gpt2` are different models.
    read = model(name) if name.startswith("config:") else find_preset(name)
    assert total_parameters(read) == published


@pytest.mark.parametrize(("name", "published"), table("checkpoints.csv", "elements"))
def test_prediction_layers_complete_the_published_checkpoint(
    model: Callable[..., Model], name: str, published: int
) -> None:
    """A checkpoint also has balancing biases (buffers), and copies of word table and head."""
    read = model(name)
    layers = [*read.each_layer(), read.layers[-1].layer]
    buffers = sum(
        layer.feed_forward.experts
        for layer in layers
        if isinstance(layer.feed_forward, MoeFeedForward) and layer.feed_forward.expert_bias
    )
    copies = 2 * read.vocab_size * read.hidden_size
    elements = total_parameters(read) + prediction_parameters(read).total + buffers + copies
    assert elements == published


def test_deepseek_v3_main_model_with_its_balancing_biases() -> None:
    # 671,026,419,200 are the main model's elements in the checkpoint's headers; 58 routed layers
    # have a balancing bias for each of 256 experts there.
    assert total_parameters(find_preset("deepseek-v3")) + 58 * 256 == 671_026_419_200


def test_active_parameters_of_mixtral() -> None:
    mixtral = find_preset("mixtral-8x7b")
    expert = 3 * 4096 * 14336
    assert active_parameters(mixtral) == total_parameters(mixtral) - 32 * 6 * expert
    assert active_parameters(mixtral) == pytest.approx(12.88e9, rel=1e-3)


def test_active_parameters_of_deepseek_v3_without_its_word_table() -> None:
    # 36.6B activated, the head counted and the embedding not (README_WEIGHTS.md of DeepSeek-V3).
    deepseek = find_preset("deepseek-v3")
    active = active_parameters(deepseek) - embedding_parameters(deepseek).total
    assert round(active / 1e9, 1) == 36.6


@pytest.mark.parametrize("name", preset_names())
def test_parts_sum_to_the_total(name: str) -> None:
    preset = find_preset(name)
    parts = embedding_parameters(preset) + final_norm_parameters(preset) + head_parameters(preset)
    for layer in preset.each_layer():
        parts += layer_parameters(layer, preset)
    assert parts.total == total_parameters(preset)
    assert parts.active == active_parameters(preset)
    assert parts.tensor_sharded + parts.experts + parts.replicated == parts.total
    assert parts.inactive <= parts.experts


@pytest.mark.parametrize("name", preset_names())
def test_sharded_parts_divide_by_a_tensor_parallel_size_that_divides_the_heads(name: str) -> None:
    preset = find_preset(name)
    for run in preset.layers:
        attention = run.layer.attention
        assert attention is not None
        shared = attention.kv_heads if isinstance(attention, GroupedQueryAttention) else 2
        sizes = [n for n in (1, 2, 4, 8) if shared % n == 0 and attention.heads % n == 0]
        for tensor_parallel in sizes:
            parts = layer_parameters(run.layer, preset)
            assert parts.attention % tensor_parallel == 0
            assert parts.feed_forward % tensor_parallel == 0


def test_word_table_and_tied_head() -> None:
    tied, untied = find_preset("llama-3.2-1b"), find_preset("llama-3-8b")
    assert head_parameters(tied).total == 0
    assert embedding_parameters(tied).vocabulary == 128256 * 2048
    assert head_parameters(untied).vocabulary == 128256 * 4096


def test_opt_350m_projects_in_and_out_and_has_no_final_norm() -> None:
    opt = find_preset("opt-350m")
    assert embedding_parameters(opt).vocabulary == 50272 * 512
    assert embedding_parameters(opt).replicated == 2050 * 1024 + 512 * 1024
    assert head_parameters(opt).total == 512 * 1024
    assert final_norm_parameters(opt).total == 0


HIDDEN, VOCAB = 64, 100


def tiny(layer: Layer, **options: object) -> Model:
    settings = {
        "name": "tiny",
        "architecture": "test",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "max_sequence": 32,
        "layers": (LayerRun(count=3, layer=layer),),
        **options,
    }
    return Model(**settings)  # type: ignore[arg-type]


PLAIN = GroupedQueryAttention(heads=8, kv_heads=2, head_dim=8)
BLOCK = DenseFeedForward(size=96)


@pytest.mark.parametrize(
    ("changed", "sharded", "replicated"),
    [
        ({"qkv_bias": True}, 64 + 2 * 16, 0),
        ({"output_bias": True}, 0, 64),
        ({"query_key_norm": "head"}, 0, 2 * 8),
        ({"query_key_norm": "projection"}, 0, 64 + 16),
        ({"sliding_window": 16, "softmax_scale": 0.1, "logit_softcap": 50.0}, 0, 0),
        ({"kv_heads": 8}, 2 * 64 * (64 - 16), 0),
    ],
)
def test_what_an_attention_option_adds(
    changed: dict[str, object], sharded: int, replicated: int
) -> None:
    other = GroupedQueryAttention.model_validate({**PLAIN.model_dump(), **changed})
    before = layer_parameters(
        layer := Layer(attention=PLAIN, feed_forward=BLOCK), model := tiny(layer)
    )
    after = layer_parameters(Layer(attention=other, feed_forward=BLOCK), model)
    assert after.attention - before.attention == sharded
    assert after.replicated - before.replicated == replicated
    assert after.feed_forward == before.feed_forward


@pytest.mark.parametrize(
    ("block", "sharded", "replicated"),
    [
        (DenseFeedForward(size=96), 3 * 64 * 96, 0),
        (DenseFeedForward(size=96, gated=False), 2 * 64 * 96, 0),
        (DenseFeedForward(size=96, bias=True), 3 * 64 * 96 + 2 * 96, 64),
        (DenseFeedForward(size=96, gated=False, bias=True), 2 * 64 * 96 + 96, 64),
        (None, 0, 0),
    ],
)
def test_dense_feed_forward(block: DenseFeedForward | None, sharded: int, replicated: int) -> None:
    layer = Layer(attention=PLAIN, feed_forward=block, norms=0)
    parts = layer_parameters(layer, tiny(layer))
    assert (parts.feed_forward, parts.replicated) == (sharded, replicated)


def test_mixture_with_shared_expert_gate_and_biases() -> None:
    block = MoeFeedForward(
        experts=6,
        top_k=2,
        expert_size=16,
        shared_size=32,
        shared_gate=True,
        router_bias=True,
        expert_bias=True,
        bias=True,
    )
    layer = Layer(attention=None, feed_forward=block, norms=1)
    parts = layer_parameters(layer, tiny(layer))
    expert = 3 * 64 * 16 + 2 * 16 + 64
    assert parts.experts == 6 * expert
    assert parts.inactive == 4 * expert
    assert parts.feed_forward == 3 * 64 * 32 + 2 * 32
    router, gate, shared_bias, norm = 64 * 6 + 6, 64, 64, 64
    assert parts.replicated == router + gate + shared_bias + norm


def test_latent_attention_with_and_without_a_query_rank() -> None:
    sizes = {
        "heads": 4,
        "kv_rank": 12,
        "head_dim_without_rope": 8,
        "head_dim_rope": 4,
        "value_head_dim": 6,
    }
    plain = Layer(attention=LatentAttention(**sizes), feed_forward=None, norms=0)
    ranked = Layer(
        attention=LatentAttention(**sizes, query_rank=20, bias=True), feed_forward=None, norms=0
    )
    model = tiny(plain)
    up = 12 * 4 * (8 + 6) + 4 * 6 * 64
    down = 64 * (12 + 4) + 12
    assert layer_parameters(plain, model).attention == 64 * 4 * 12 + up
    assert layer_parameters(plain, model).replicated == down
    assert layer_parameters(ranked, model).attention == 20 * 4 * 12 + up
    biases = 20 + 16 + 64
    assert layer_parameters(ranked, model).replicated == down + 64 * 20 + 20 + biases


@pytest.mark.parametrize(
    ("norm", "size"),
    [
        (Norm(), 64),
        (Norm(kind="layernorm", bias=True), 128),
        (Norm(kind="layernorm", bias=True, elementwise=False), 0),
        (Norm(kind="none"), 0),
    ],
)
def test_norms(norm: Norm, size: int) -> None:
    layer = Layer(attention=PLAIN, feed_forward=BLOCK, norms=4, norm_placement="sandwich")
    model = tiny(layer, norm=norm, embedding_norm=True, head_bias=True)
    assert layer_parameters(layer, model).replicated == 4 * size
    assert final_norm_parameters(model).total == size
    assert embedding_parameters(model).replicated == size
    assert head_parameters(model).vocabulary == VOCAB * HIDDEN + VOCAB


def test_learned_positions_have_a_table() -> None:
    layer = Layer(attention=PLAIN, feed_forward=BLOCK)
    learned = tiny(layer, positions=Positions(kind="learned", table_size=40))
    assert embedding_parameters(learned).replicated == 40 * HIDDEN
    assert embedding_parameters(tiny(layer)).replicated == 0


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 64))
def test_top_k_equal_to_the_experts_leaves_nothing_inactive(
    experts: int, count: int, size: int
) -> None:
    block = MoeFeedForward(experts=experts, top_k=experts, expert_size=size)
    layer = Layer(attention=PLAIN, feed_forward=block)
    model = tiny(layer, layers=(LayerRun(count=count, layer=layer),))
    assert active_parameters(model) == total_parameters(model)
