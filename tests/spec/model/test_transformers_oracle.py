"""Every count against the modules that transformers builds, on a device without memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import pytest

from hetcli.catalog.presets import find_preset, preset_names
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.parameters import active_parameters, total_parameters

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# Families of the test configurations that transformers can't build: ChatGLM's code lives in its
# repositories, and Qwen2.5-VL's language model has no causal class of its own.
CONFIGS = [
    "bloom", "deepseek_v2", "falcon", "falcon_rw", "gemma", "gemma2", "gemma3", "glm", "glm4",
    "glm4_moe", "gpt2", "gpt_neox", "kimi_k2", "llama", "llava", "mistral", "olmo2", "opt", "phi3",
    "qwen2", "qwen2_moe", "qwen3",
]  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("llama", {"num_key_value_heads": None, "head_dim": 96}),
    ("qwen3", {"attention_bias": True, "head_dim": 64}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1, 5, 6], "qkv_bias": False}),
    ("deepseek_v2", {"q_lora_rank": None, "attention_bias": True, "first_k_dense_replace": 4}),
    ("glm4_moe", {"use_qk_norm": False, "attention_bias": False, "n_shared_experts": 3}),
    ("glm4", {"attention_bias": True}),
    ("gpt2", {"n_inner": 1000}),
    ("gpt_neox", {"attention_bias": False, "use_parallel_residual": False}),
    ("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False}),
    ("opt", {"word_embed_proj_dim": 256, "do_layer_norm_before": False}),
    ("opt", {"_remove_final_layer_norm": True, "tie_word_embeddings": False}),
    ("falcon", {"num_ln_in_parallel_attn": 1, "bias": True, "num_hidden_layers": 4}),
    ("falcon", {"new_decoder_architecture": False, "ffn_hidden_size": 999}),
    ("falcon_rw", {"multi_query": True, "parallel_attn": True}),
    ("gemma2", {"attention_bias": True, "tie_word_embeddings": False}),
    ("olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
]


def named_sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Parameter names and sizes of the language model; weights used twice appear once."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model_type = config["model_type"]
    # Kimi K2 has DeepSeek-V3's class; scaled rotary embeddings have no parameters.
    model_type = {"kimi_k2": "deepseek_v3"}.get(model_type, model_type)
    left_out = {"_source", "model_type", "auto_map", "rope_scaling"}
    settings = {key: value for key, value in config.items() if key not in left_out}
    built = transformers.AutoConfig.for_model(model_type, **settings).get_text_config()
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(built)
    return {name: value.numel() for name, value in network.named_parameters()}


def compare(model: Model, config: Mapping[str, Any]) -> None:
    sizes = named_sizes(config)
    assert total_parameters(model) == sum(sizes.values())
    routed = sum(size for name, size in sizes.items() if ".experts." in name)
    inactive = 0
    if routed:
        keys = ("n_routed_experts", "num_experts", "num_local_experts")
        experts = next(config[key] for key in keys if key in config)
        inactive = routed * (experts - config["num_experts_per_tok"]) // experts
    assert active_parameters(model) == sum(sizes.values()) - inactive


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_counts_as_transformers_does(name: str) -> None:
    path = files("hetcli.catalog") / "models" / f"{name}.json"
    compare(find_preset(name), json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_counts_as_transformers_does(
    config: Callable[..., dict[str, Any]], model: Callable[..., Model], name: str
) -> None:
    compare(model(f"config:{name}"), config(name))


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_variants_of_families_count_as_transformers_does(
    config: Callable[..., dict[str, Any]],
    model: Callable[..., Model],
    name: str,
    changes: dict[str, Any],
) -> None:
    compare(model(f"config:{name}", **changes), config(name, **changes))
