from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetcli.catalog.presets import find_preset
from hetcli.errors import ModelError
from hetcli.spec.complaint import Locator
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
)
from hetcli.spec.model.huggingface import known_architectures, model_from_config

Load = Callable[..., dict[str, Any]]
Read = Callable[..., Model]


def attention(layer: Layer) -> GroupedQueryAttention:
    assert isinstance(layer.attention, GroupedQueryAttention)
    return layer.attention


def mixture(layer: Layer) -> MoeFeedForward:
    assert isinstance(layer.feed_forward, MoeFeedForward)
    return layer.feed_forward


def only(model: Model) -> Layer:
    assert len(model.layers) == 1
    return model.layers[0].layer


def routed(model: Model) -> list[bool]:
    return [isinstance(layer.feed_forward, MoeFeedForward) for layer in model.each_layer()]


def windows(model: Model) -> list[int | None]:
    return [attention(layer).sliding_window for layer in model.each_layer()]


def test_llama(model: Read) -> None:
    llama = model("llama")
    assert (llama.layer_count, llama.hidden_size, llama.vocab_size) == (22, 2048, 32000)
    assert llama.max_sequence == 2048
    assert llama.norm.kind == "rmsnorm"
    assert llama.norm.epsilon == 1e-5
    assert not llama.tied_embeddings
    assert attention(only(llama)) == GroupedQueryAttention(heads=32, kv_heads=4, head_dim=64)
    assert only(llama).feed_forward == DenseFeedForward(size=5632)


def test_llama_3_1_stretches_its_rotary_embedding() -> None:
    rotary = find_preset("llama-3.1-8b").positions.rotary
    assert rotary is not None
    assert rotary.base == 500000.0
    assert rotary.scaling is not None
    assert rotary.scaling.kind == "llama3"
    assert rotary.scaling.factor == 8.0
    assert rotary.scaling.original_max_sequence == 8192
    assert rotary.scaling.high_frequency_factor == 4.0


def test_rope_parameters_of_transformers_5(config: Load) -> None:
    written = config("llama", rope_theta=None)
    written["rope_parameters"] = {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}
    rotary = model_from_config(written, name="llama").positions.rotary
    assert rotary is not None
    assert rotary.base == 5e5
    assert rotary.scaling is not None
    assert rotary.scaling.factor == 2.0


def test_qwen2_has_biases_of_query_key_and_value_only(model: Read) -> None:
    qwen = model("qwen2")
    assert attention(only(qwen)).qkv_bias
    assert not attention(only(qwen)).output_bias
    assert qwen.tied_embeddings
    assert attention(only(qwen)).sliding_window is None


def test_qwen2_windows_begin_at_max_window_layers(model: Read) -> None:
    qwen = model("qwen2", use_sliding_window=True, sliding_window=512, max_window_layers=20)
    assert windows(qwen) == [None] * 20 + [512] * 4


def test_qwen2_moe_has_a_gated_shared_expert(model: Read) -> None:
    block = mixture(only(model("qwen2_moe")))
    assert (block.experts, block.top_k, block.expert_size) == (60, 4, 1408)
    assert (block.shared_size, block.shared_gate) == (5632, True)
    assert (block.score_function, block.normalize_top_k) == ("softmax", False)


def test_qwen2_moe_dense_layers(model: Read) -> None:
    qwen = model("qwen2_moe", decoder_sparse_step=2, mlp_only_layers=[3])
    assert routed(qwen)[:6] == [False, True, False, False, False, True]


def test_qwen3_has_query_and_key_norms(model: Read) -> None:
    layer = only(model("qwen3"))
    assert attention(layer).query_key_norm == "head"
    assert attention(layer).head_dim == 128


def test_qwen3_moe_weights_are_normalised() -> None:
    block = mixture(only(find_preset("qwen3-30b-a3b")))
    assert block == MoeFeedForward(experts=128, top_k=8, expert_size=768)


def test_mistral_takes_its_head_dim_and_window(model: Read) -> None:
    assert attention(only(model("mistral"))).head_dim == 128
    assert attention(only(model("mistral"))).sliding_window is None
    assert attention(only(find_preset("mistral-7b"))).sliding_window == 4096


def test_mixtral_routes_every_layer() -> None:
    mixtral = find_preset("mixtral-8x7b")
    assert mixture(only(mixtral)) == MoeFeedForward(experts=8, top_k=2, expert_size=14336)


def test_deepseek_v2_lite_has_no_query_rank_and_one_dense_layer() -> None:
    lite = find_preset("deepseek-v2-lite")
    assert routed(lite) == [False] + [True] * 26
    latent = lite.layers[0].layer.attention
    assert isinstance(latent, LatentAttention)
    assert (latent.query_rank, latent.kv_rank, latent.heads) == (None, 512, 16)
    assert mixture(lite.layers[1].layer).groups is None


def test_deepseek_v2_limits_tokens_to_groups(model: Read) -> None:
    block = mixture(model("deepseek_v2").layers[1].layer)
    assert (block.groups, block.top_groups, block.routed_scaling) == (8, 3, 16.0)
    assert block.shared_size == 2 * 1536
    assert not block.expert_bias


def test_deepseek_v3() -> None:
    deepseek = find_preset("deepseek-v3")
    assert routed(deepseek) == [False] * 3 + [True] * 58
    assert deepseek.prediction_layers == 1
    block = mixture(deepseek.layers[1].layer)
    assert (block.score_function, block.expert_bias, block.normalize_top_k) == (
        "sigmoid",
        True,
        True,
    )
    assert (block.groups, block.top_groups, block.routed_scaling) == (8, 4, 2.5)
    rotary = deepseek.positions.rotary
    assert rotary is not None
    assert rotary.scaling is not None
    assert (rotary.scaling.kind, rotary.scaling.mscale_all_dim) == ("yarn", 1.0)


def test_moe_layer_frequency_and_dense_deepseek(model: Read) -> None:
    every_third = model("deepseek_v2", first_k_dense_replace=2, moe_layer_freq=3)
    assert routed(every_third)[:7] == [False, False, False, True, False, False, True]
    assert not any(routed(model("deepseek_v2", n_routed_experts=None)))


def test_class_name_is_read_where_the_model_type_is_a_new_one(model: Read) -> None:
    kimi = model("kimi_k2")
    assert kimi.architecture == "deepseek_v3"
    assert mixture(kimi.layers[1].layer).experts == 384


def test_gpt2(model: Read) -> None:
    gpt = model("gpt2")
    assert gpt.positions.kind == "learned"
    assert gpt.positions.table_size == 1024
    assert (gpt.norm.kind, gpt.norm.bias, gpt.tied_embeddings) == ("layernorm", True, True)
    assert only(gpt).feed_forward == DenseFeedForward(
        size=4096, gated=False, bias=True, activation="gelu_tanh"
    )
    assert attention(only(gpt)).qkv_bias
    assert attention(only(gpt)).output_bias


def test_gpt_neox_rotates_a_quarter_and_runs_its_sublayers_in_parallel(model: Read) -> None:
    neox = model("gpt_neox")
    assert only(neox).parallel
    assert only(neox).norms == 2
    assert neox.positions.rotary is not None
    assert neox.positions.rotary.fraction == 0.25


def test_opt_350m_is_post_norm() -> None:
    small = find_preset("opt-350m")
    assert only(small).norm_placement == "post"
    assert (small.embedding_size, small.final_norm) == (512, False)
    assert find_preset("opt-1.3b").embedding_size is None


@pytest.mark.parametrize(
    ("name", "kv_heads", "norms", "parallel", "positions"),
    [
        ("falcon-7b", 1, 1, True, "rope"),
        ("falcon-40b", 8, 2, True, "rope"),
        ("falcon", 8, 2, True, "rope"),
        ("falcon_rw", 32, 2, False, "alibi"),
    ],
)
def test_falcon_generations(
    model: Read, name: str, kv_heads: int, norms: int, parallel: bool, positions: str
) -> None:
    falcon = model(name)
    layer = only(falcon)
    assert (attention(layer).kv_heads, layer.norms, layer.parallel) == (kv_heads, norms, parallel)
    assert falcon.positions.kind == positions


def test_gemma_scales_its_embedding_and_means_tanh(model: Read) -> None:
    gemma = model("gemma")
    assert gemma.embedding_scale == pytest.approx(3072**0.5)
    assert gemma.norm.zero_centered
    block = only(gemma).feed_forward
    assert block is not None
    assert block.activation == "gelu_tanh"


def test_gemma2_caps_and_alternates(model: Read) -> None:
    gemma = model("gemma2")
    assert windows(gemma) == [4096, None] * 23
    layer = gemma.layers[0].layer
    assert (layer.norms, layer.norm_placement) == (4, "sandwich")
    assert attention(layer).logit_softcap == 50.0
    assert attention(layer).softmax_scale == pytest.approx(144**-0.5)
    assert gemma.logit_softcap == 30.0
    # query_pre_attn_scalar equal to the head dimension is the usual scale.
    assert attention(find_preset("gemma-2-9b").layers[0].layer).softmax_scale is None


def test_gemma3_nested_in_a_multi_modal_configuration(model: Read) -> None:
    gemma = model("gemma3")
    assert gemma.architecture == "gemma3_text"
    assert gemma.vocab_size == 262208
    assert windows(gemma)[:7] == [1024] * 5 + [None, 1024]
    rotary = gemma.positions.rotary
    assert rotary is not None
    assert (rotary.base, rotary.local_base) == (1e6, 1e4)
    assert rotary.scaling is not None
    assert rotary.scaling.factor == 8.0
    assert gemma.tied_embeddings
    assert gemma.notes == ("only the language model of 'gemma3' is counted",)
    assert gemma.layers == find_preset("gemma-3-27b").layers


def test_gemma3_as_transformers_5_writes_it(config: Load) -> None:
    text = {
        **config("gemma3")["text_config"],
        "layer_types": ["sliding_attention", "full_attention"] * 31,
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    }
    gemma = model_from_config(config("gemma3", text_config=text), name="gemma")
    assert windows(gemma) == [1024, None] * 31
    rotary = gemma.positions.rotary
    assert rotary is not None
    assert (rotary.base, rotary.local_base) == (2e6, 2e4)


def test_llava_leaves_the_defaults_of_llama_out(model: Read) -> None:
    llava = model("llava")
    assert llava.architecture == "llama"
    assert (llava.hidden_size, llava.layer_count, llava.vocab_size) == (4096, 32, 32064)
    assert not llava.tied_embeddings


def test_flat_vision_language_configuration(model: Read) -> None:
    qwen = model("qwen2_5_vl")
    assert qwen.architecture == "qwen2"
    assert qwen.notes
    assert qwen.positions.rotary is not None
    assert qwen.positions.rotary.scaling is None


def test_phi3_longrope(model: Read) -> None:
    phi = model("phi3")
    assert attention(only(phi)).kv_heads == 10
    assert phi.positions.rotary is not None
    scaling = phi.positions.rotary.scaling
    assert scaling is not None
    assert (scaling.kind, scaling.original_max_sequence) == ("longrope", 4096)
    assert scaling.long_factors == (1.25,) * 64


def test_glm_generations(model: Read) -> None:
    glm, glm4, glm45 = model("glm"), model("glm4"), model("glm4_moe")
    for read in (glm, glm4, glm45):
        assert read.positions.rotary is not None
        assert read.positions.rotary.fraction == 0.5
    assert attention(only(glm)).qkv_bias
    assert not attention(only(glm)).output_bias
    assert (only(glm4).norms, only(glm4).norm_placement) == (4, "sandwich")
    assert routed(glm45) == [False] * 3 + [True] * 89
    assert attention(glm45.layers[0].layer).query_key_norm == "head"
    assert mixture(glm45.layers[1].layer).expert_bias


def test_chatglm_reads_its_own_keys(model: Read) -> None:
    chatglm = model("chatglm")
    assert attention(only(chatglm)).kv_heads == 2
    assert (chatglm.layer_count, chatglm.vocab_size, chatglm.max_sequence) == (28, 65024, 8192)


def test_bloom_and_olmo2(model: Read) -> None:
    bloom, olmo = model("bloom"), model("olmo2")
    assert (bloom.positions.kind, bloom.embedding_norm) == ("alibi", True)
    assert only(olmo).norm_placement == "output"
    assert attention(only(olmo)).query_key_norm == "projection"


def test_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(ModelError) as caught:
        model_from_config(
            {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}, name="m"
        )
    assert "'mamba2'" in caught.value.what
    for name in ("llama", "deepseek_v3", "gpt_neox"):
        assert name in caught.value.fix
        assert name in known_architectures()


@pytest.mark.parametrize(
    ("family", "changes", "what", "fix"),
    [
        # The user's case: 32 heads in 5 groups (NVIDIA/Megatron-LM issue 5755).
        (
            "llama",
            {"num_attention_heads": 32, "num_key_value_heads": 5},
            "num_key_value_heads is 5",
            "[1, 2, 4, 8, 16, 32]",
        ),
        ("llama", {"num_key_value_heads": 0}, "num_key_value_heads is 0", "from 1"),
        ("llama", {"num_attention_heads": 24}, "num_attention_heads is 24", "32"),
        ("llama", {"hidden_size": None}, "hidden_size is None", "add hidden_size"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0", "from 1 to 100000"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000", "to 100000"),
        ("llama", {"vocab_size": -1}, "vocab_size is -1", "from 1"),
        ("llama", {"vocab_size": True}, "vocab_size is True", "whole number"),
        ("llama", {"vocab_size": "32000"}, "vocab_size is '32000'", "whole number"),
        ("llama", {"vocab_size": 32000.0}, "vocab_size is 32000.0", "whole number"),
        ("llama", {"vocab_size": 10**400}, "vocab_size is an integer of 1329 bits", "from 1"),
        ("llama", {"rms_norm_eps": 0}, "rms_norm_eps is 0", "above 0"),
        ("llama", {"rms_norm_eps": 3}, "rms_norm_eps is 3", "at most 0.5"),
        ("llama", {"rope_theta": float("nan")}, "rope_theta is nan", "above 0"),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings is 1", "true or false"),
        ("llama", {"hidden_act": "xielu"}, "hidden_act is 'xielu'", "silu"),
        ("llama", {"rope_scaling": [1]}, "rope_scaling is [1]", "mapping"),
        ("llama", {"rope_scaling": {"type": "warp"}}, "rope_scaling.type is 'warp'", "yarn"),
        ("llama", {"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor is missing", "add"),
        ("phi3", {"rope_scaling": {"type": "su", "long_factor": [0]}}, "long_factor is [0]", "0"),
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types is", "46 entries"),
        ("gemma2", {"layer_types": ["mamba"] * 46}, "layer_types is", "sliding_attention"),
        ("qwen2_moe", {"num_experts_per_tok": 61}, "num_experts_per_tok is 61", "1 to 60"),
        ("qwen2_moe", {"mlp_only_layers": [24]}, "mlp_only_layers is [24]", "0 to 23"),
        ("qwen2_moe", {"num_experts": 0}, "num_experts is 0", "from 1"),
        ("deepseek_v2", {"n_group": 7}, "n_group is 7", "[1, 2, 4, 5, 8"),
        ("deepseek_v2", {"topk_group": 9}, "topk_group is 9", "from 1 to 8"),
        ("deepseek_v2", {"n_group": 40, "topk_group": 1}, "topk_group is 1", "from 2 to 40"),
        ("deepseek_v2", {"topk_method": "best"}, "topk_method is 'best'", "greedy"),
        ("deepseek_v2", {"kv_lora_rank": 0}, "kv_lora_rank is 0", "from 1"),
        ("gpt2", {"n_head": 15}, "n_head is 15", "16"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True", "false"),
        ("falcon", {"num_kv_heads": 7}, "num_kv_heads is 7", "[1, 2, 4, 8, 29"),
        ("chatglm", {"multi_query_group_num": 3}, "multi_query_group_num is 3", "[1, 2, 4"),
        ("gemma3", {"text_config": {"num_hidden_layers": 0}}, "text_config.num_hidden_lay", "1"),
        ("opt", {"max_position_embeddings": []}, "max_position_embeddings is []", "whole"),
    ],
)
def test_impossible_values_are_refused_with_the_legal_ones(
    config: Load, family: str, changes: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(ModelError) as caught:
        model_from_config(config(family, **changes), name="bad", source="config.json")
    assert caught.value.what.startswith("config.json: ")
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.why


@pytest.mark.parametrize(
    ("family", "key"),
    [
        (family, key)
        for family, keys in {
            "llama": "hidden_size intermediate_size num_attention_heads num_hidden_layers",
            "gpt2": "n_embd n_layer n_head vocab_size",
            "opt": "ffn_dim hidden_size",
            "qwen2_moe": "num_experts moe_intermediate_size num_experts_per_tok",
            "deepseek_v2": "num_experts_per_tok intermediate_size",
            "chatglm": "num_layers padded_vocab_size ffn_hidden_size",
        }.items()
        for key in keys.split()
    ],
)
def test_missing_dimensions_are_named(config: Load, family: str, key: str) -> None:
    written = config(family)
    del written[key]
    with pytest.raises(ModelError, match=f"{key} is missing"):
        model_from_config(written, name="bad")


def test_an_error_names_the_line() -> None:
    text = '{\n  "model_type": "llama",\n  "hidden_size": -5\n}'
    data = {"model_type": "llama", "hidden_size": -5}
    with pytest.raises(ModelError, match=r"^config\.json:3: hidden_size is -5"):
        model_from_config(data, name="bad", locator=Locator("config.json", text))


def test_keys_of_no_concern_may_hold_anything(config: Load) -> None:
    strange = config("llama", _name_or_path={"a": [None]}, quantization_config=3, auto_map="\x00")
    assert model_from_config(strange, name="llama").layer_count == 22
