"""Activations of a layer against Korthikanti et al. and against tensors counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.perf.configuration import Shape
from hetcli.perf.memory import (
    embedding_activation_bytes,
    head_activation_bytes,
    in_flight,
    layer_activation_bytes,
    padded_vocabulary,
)
from hetcli.perf.memory.activations import layer_activations, trains_with_dropout
from hetcli.perf.memory.constants import constant
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
)

GIB, MIB = 2**30, 2**20


def of_layers(model, shape, count=None):
    return (count or model.layer_count) * layer_activation_bytes(
        model.layers[0].layer, model, shape
    )


@pytest.fixture
def gpt_22b(build):
    return build.gpt(48, 6144, 64), Shape(2048, 4, "fp16", "unfused", tensor_parallel=8)


@pytest.fixture
def gpt_175b(build):
    return build.gpt(96, 12288, 96), Shape(2048, 1, "fp16", "unfused", tensor_parallel=8)


# arXiv 2205.05198, table 3 with figures 1 and 7: 22B on one pipeline stage, 175B on the first of
# eight with three interleaved chunks (case korthikanti-activations).
def test_korthikanti_22b_without_recomputation(gpt_22b):
    model, shape = gpt_22b
    assert of_layers(model, shape) / GIB == 59.25


def test_korthikanti_22b_selective_with_sequence_parallelism(gpt_22b):
    model, shape = gpt_22b
    shape = replace(shape, sequence_parallel=True, recompute="selective")
    assert of_layers(model, shape) / GIB == 9.5625


def test_korthikanti_175b_without_recomputation(gpt_175b):
    model, shape = gpt_175b
    held = in_flight("interleaved", 8, 0, 64, 3)
    assert of_layers(model, shape, 12) * held / GIB == pytest.approx(66.84375, rel=1e-12)


def test_korthikanti_175b_selective_with_sequence_parallelism(gpt_175b):
    model, shape = gpt_175b
    shape = replace(shape, sequence_parallel=True, recompute="selective")
    held = in_flight("interleaved", 8, 0, 64, 3)
    assert of_layers(model, shape, 12) * held / GIB == pytest.approx(12.3515625, rel=1e-12)


@given(
    heads=st.sampled_from([8, 16, 32]),
    width=st.sampled_from([32, 64, 128]),
    sequence=st.sampled_from([512, 2048]),
    micro_batch=st.integers(1, 8),
    ways=st.sampled_from([1, 2, 4, 8]),
    sequence_parallel=st.booleans(),
)
def test_gpt_layers_follow_the_closed_form(
    build, heads, width, sequence, micro_batch, ways, sequence_parallel
):
    hidden = heads * width
    model = build.gpt(1, hidden, heads, sequence=sequence)
    shape = Shape(
        sequence,
        micro_batch,
        "bf16",
        "unfused",
        tensor_parallel=ways,
        sequence_parallel=sequence_parallel,
    )
    whole = 10 / ways if sequence_parallel else 10
    per_token = hidden * (whole + 24 / ways + 5 * heads * sequence / (hidden * ways))
    assert of_layers(model, shape) == sequence * micro_batch * per_token


def test_fused_attention_keeps_one_fp32_number_a_row_instead_of_scores(gpt_22b):
    model, shape = gpt_22b
    layer = model.layers[0].layer
    scores = 5 * 64 * 2048**2 * 4 // 8
    fused = layer_activation_bytes(layer, model, replace(shape, kernel="flash"))
    sums = 4 * 64 * 2048 * 4 // 8
    assert layer_activation_bytes(layer, model, shape) - fused == scores - sums


def test_phi3_scores_of_unfused_attention(build):
    # https://github.com/NVIDIA/Megatron-LM/issues/965 (case unfused-attention-phi3): with
    # Megatron-LM's default dropout 1024 + 1024 + 512 MiB a layer, 80 GiB in all.
    model = build.llama(32, 3072, 32, 8192, vocab=32064)
    layer = model.layers[0].layer
    shape = Shape(4096, 1, "bf16", "unfused")

    def kept(**changes):
        dropout = changes.pop("dropout")
        return layer_activation_bytes(layer, model, replace(shape, **changes), dropout=dropout)

    with_dropout = kept(dropout=True) - kept(dropout=True, recompute="selective")
    assert with_dropout == 2560 * MIB
    assert 32 * with_dropout == 80 * GIB
    without = kept(dropout=False) - kept(dropout=False, recompute="selective")
    assert without == 1024 * MIB
    fused = kept(dropout=True, kernel="flash") - kept(dropout=True, recompute="selective")
    assert fused == 4 * 32 * 4096


def test_llama_layer_counted_by_hand(build):
    model = build.llama(1, 4096, 32, 14336, vocab=128256, kv_heads=8)
    shape = Shape(8192, 2, "bf16", "flash", tensor_parallel=4, sequence_parallel=True)
    tokens = 8192 * 2
    norms = 4 * 4096 / 4  # two norms, each its input and its output, cut by the sequence
    attention = (4096 + 2 * 1024 + 4096) / 4
    feed_forward = 3 * 14336 / 4
    log_sums = 4 * 32 / 4
    expected = tokens * (2 * (norms + attention + feed_forward) + log_sums)
    assert of_layers(model, shape) == expected


def latent_model(**feed_forward) -> Model:
    layer = Layer(
        attention=LatentAttention(
            heads=16,
            query_rank=1536,
            kv_rank=512,
            head_dim_without_rope=128,
            head_dim_rope=64,
            value_head_dim=128,
        ),
        feed_forward=MoeFeedForward(**feed_forward),
    )
    return Model(
        name="m",
        architecture="deepseek",
        hidden_size=2048,
        vocab_size=1024,
        max_sequence=4096,
        layers=(LayerRun(count=2, layer=layer),),
    )


def test_latent_attention_and_experts_counted_by_hand():
    model = latent_model(experts=64, top_k=6, expert_size=1408, shared_size=2816)
    shape = Shape(4096, 1, "bf16", "flash")
    norms = 4 * 2048
    latents = 2 * (1536 + 512) + 64
    heads = 16 * (2 * (128 + 64) + (128 + 128) + 128)
    routed = 6 * (2048 + 3 * 1408)
    shared = 3 * 2816
    router = 4 * 2 * 64
    log_sums = 4 * 16
    expected = 4096 * (2 * (norms + latents + heads + routed + shared) + router + log_sums)
    assert of_layers(model, shape, 1) == expected


def test_routed_tokens_spread_over_expert_ranks_with_the_published_imbalance():
    model = latent_model(experts=64, top_k=6, expert_size=1408)
    layer = model.layers[0].layer
    alone = layer_activation_bytes(layer, model, Shape(4096, 1, "bf16", "flash"))
    spread = layer_activation_bytes(
        layer, model, Shape(4096, 1, "bf16", "flash", expert_parallel=8)
    )
    # Every rank still sees as many tokens as it sends, but for the imbalance.
    routed = 4096 * 6 * (2048 + 3 * 1408) * 2
    assert spread - alone == pytest.approx(routed * (constant("expert_imbalance") - 1), abs=1)


def test_context_parallelism_divides_everything_that_follows_the_sequence(build):
    model = build.llama(1, 4096, 32, 14336, vocab=128256, kv_heads=8)
    shape = Shape(8192, 1, "bf16", "flash", tensor_parallel=2)
    divided = replace(shape, context_parallel=4)
    assert of_layers(model, divided) * 4 == of_layers(model, shape)


def test_a_rank_keeps_at_least_one_group_of_keys(build):
    model = build.llama(1, 1024, 16, 2816, vocab=1024, kv_heads=2)
    layer = model.layers[0].layer
    kept = {
        ways: layer_activation_bytes(
            layer, model, Shape(128, 1, "bf16", "flash", tensor_parallel=ways)
        )
        for ways in (2, 4)
    }
    sharded = 2 * 128 * (2 * 1024 + 3 * 2816) + 4 * 16 * 128
    keys = 2 * 128 * 2 * 64
    assert kept[2] - kept[4] == sharded // 2 - sharded // 4
    assert kept[4] == 2 * 128 * 4 * 1024 + sharded // 4 + keys


def test_full_recomputation_keeps_the_input_and_works_on_the_rest(build):
    model = build.gpt(1, 1024, 16)
    layer = model.layers[0].layer
    shape = Shape(2048, 4, "bf16", "unfused", tensor_parallel=4)
    plain = layer_activations(layer, model, shape)
    full = layer_activations(layer, model, replace(shape, recompute="full"))
    assert full.kept == 2 * 2048 * 4 * 1024
    assert full.kept + full.working == plain.kept + plain.working
    cut = replace(shape, recompute="full", sequence_parallel=True)
    assert layer_activations(layer, model, cut).kept == full.kept // 4


@pytest.mark.parametrize(("precision", "factor"), [("bf16", 1), ("fp16", 1), ("fp32", 2)])
def test_activations_have_the_width_of_the_compute_type(build, precision, factor):
    model = build.llama(1, 1024, 16, 2816, vocab=1024)
    shape = Shape(512, 1, precision, "unfused")
    assert of_layers(model, shape) == factor * of_layers(model, replace(shape, precision="bf16"))


def test_fp8_halves_what_only_matrix_products_read(build):
    model = build.llama(1, 1024, 16, 2816, vocab=1024)
    shape = Shape(512, 1, "fp8", "flash")
    saved = 512 * (2 * 1024 + 2816) - 512 * 1024  # the attended values are kept in both types
    assert of_layers(model, replace(shape, precision="bf16")) - of_layers(model, shape) == saved


def test_a_parallel_block_keeps_its_shared_input_once():
    def model(**layer):
        block = Layer(
            attention=GroupedQueryAttention(heads=8, kv_heads=8, head_dim=64),
            feed_forward=DenseFeedForward(size=2048, gated=False, activation="gelu"),
            **layer,
        )
        return Model(
            name="m",
            architecture="falcon",
            hidden_size=512,
            vocab_size=1024,
            max_sequence=512,
            layers=(LayerRun(count=1, layer=block),),
        )

    shape = Shape(512, 1, "bf16", "flash")
    one_after_the_other = of_layers(model(), shape)
    assert one_after_the_other - of_layers(model(parallel=True, norms=1), shape) == 2 * 2 * 512**2


def test_dropout_goes_with_layernorm(build):
    assert trains_with_dropout(build.gpt())
    assert not trains_with_dropout(build.llama(2, 256, 4, 512, vocab=1000))


def test_megatron_pads_the_vocabulary_to_128_for_each_tensor_rank(build):
    model = build.gpt(vocab=50257)
    assert padded_vocabulary(model, 1, "megatron") == 50304
    assert padded_vocabulary(model, 4, "megatron") == 50688
    assert padded_vocabulary(model, 1, "fsdp") == 50257


def test_the_loss_needs_fp32_logits_of_the_local_vocabulary(build):
    model = build.gpt(vocab=50257, hidden=512)
    shape = Shape(1024, 4, "bf16", "flash", tensor_parallel=2)
    logits = 1024 * 4 * 50432 // 2
    head = head_activation_bytes(model, shape, "megatron")
    assert (head.loss, head.logits) == (4 * logits, 2 * logits)
    assert head.hidden == 2 * 2 * 1024 * 4 * 512
    beside = head_activation_bytes(model, shape, "fsdp")
    assert beside.loss + beside.logits == 10 * logits
    exact = head_activation_bytes(model, replace(shape, precision="fp32"), "megatron")
    assert (exact.loss, exact.logits) == (4 * logits, 0)
    # flash-attention's loss keeps the bf16 logits and writes their gradient.
    fused = head_activation_bytes(model, replace(shape, fused_loss=True), "fsdp")
    assert (fused.loss, fused.logits) == (2 * logits, 2 * logits)


def test_prediction_layers_have_losses_of_their_own(build):
    model = build.gpt()
    shape = Shape(1024, 1, "bf16", "flash")
    two_more = model.model_copy(update={"prediction_layers": 2})
    one = head_activation_bytes(model, shape, "megatron")
    three = head_activation_bytes(two_more, shape, "megatron")
    assert three.loss == 3 * one.loss


def test_the_embedding_keeps_a_mask_only_with_dropout(build):
    shape = Shape(1024, 2, "bf16", "flash", tensor_parallel=4, sequence_parallel=True)
    assert embedding_activation_bytes(build.gpt(hidden=512), shape) == 1024 * 2 * 512 // 4
    assert embedding_activation_bytes(build.llama(2, 512, 4, 512, vocab=1000), shape) == 0
