"""Families with a mixture of experts: Mixtral, Qwen-MoE, DeepSeek and GLM-4.5.

Sources: transformers 5.24, src/transformers/models/*/modeling_*.py; for DeepSeek also the
`modeling_deepseek.py` that its model repositories carry (`moe_layer_freq`, `topk_method`).
"""

from __future__ import annotations

from typing import Literal

from hetcli.spec.model.architecture import (
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
    divisors,
)
from hetcli.spec.model.config import ConfigReader
from hetcli.spec.model.families import defaults
from hetcli.spec.model.families.blocks import (
    checked_kv_heads,
    decoder,
    dense,
    grouped_query,
    layer_count,
    sliding,
    with_windows,
)

__all__ = ["deepseek_v2", "deepseek_v3", "glm4_moe", "mixtral", "qwen2_moe", "qwen3_moe"]


def _top_k(config: ConfigReader, known: defaults.Defaults, experts: int) -> int:
    key = "num_experts_per_tok"
    top_k = config.dimension(key, default=known.top_k) if known.top_k else config.size(key)
    if top_k > experts:
        config.refuse(
            key,
            why=f"a token can't visit more experts than the {experts} there are",
            fix=f"a whole number from 1 to {experts}",
        )
    return top_k


def _groups(config: ConfigReader, experts: int, top_k: int) -> tuple[int | None, int | None]:
    """Group-limited routing (DeepSeek-V2, arXiv 2405.04434, section 2.2.2); one group is none."""
    groups = config.optional("n_group") or 1
    if groups == 1:
        return None, None
    if experts % groups:
        config.refuse(
            "n_group",
            why=f"groups are equal: {experts} experts % {groups} != 0",
            fix=f"legal values: {divisors(experts)}",
        )
    chosen = config.size("topk_group", largest=groups)
    reachable = chosen * (experts // groups)
    if top_k > reachable:
        config.refuse(
            "topk_group",
            why=f"{chosen} groups hold {reachable} experts, and a token visits {top_k}",
            fix=f"a whole number from {-(-top_k * groups // experts)} to {groups}",
        )
    return groups, chosen


def mixtral(config: ConfigReader) -> Model:
    """Mixtral: every layer routes; the weights of the chosen experts sum to one."""
    known = defaults.MIXTRAL
    experts = config.dimension(*known.expert_keys, default=known.experts)
    layer = Layer(
        attention=grouped_query(config, known, window=config.optional("sliding_window")),
        feed_forward=MoeFeedForward(
            experts=experts,
            top_k=_top_k(config, known, experts),
            expert_size=config.dimension("intermediate_size", default=known.intermediate_size),
            activation=config.activation("hidden_act", default=known.activation),
        ),
    )
    return decoder(config, known, layer, architecture="mixtral")


def _routed(
    config: ConfigReader,
    known: defaults.Defaults,
    *,
    shared_experts: int = 0,
    grouped: bool = False,
    score_function: Literal["softmax", "sigmoid"] = "softmax",
    expert_bias: bool = False,
    routed_scaling: float = 1.0,
) -> MoeFeedForward:
    """Experts of `moe_intermediate_size`, shared ones of the same size beside them."""
    experts = config.dimension(*known.expert_keys, default=known.experts)
    top_k = _top_k(config, known, experts)
    groups, top_groups = _groups(config, experts, top_k) if grouped else (None, None)
    expert_size = config.dimension("moe_intermediate_size", default=known.expert_size)
    return MoeFeedForward(
        experts=experts,
        top_k=top_k,
        expert_size=expert_size,
        shared_size=shared_experts * expert_size,
        expert_bias=expert_bias,
        score_function=score_function,
        normalize_top_k=config.flag("norm_topk_prob", default=known.normalize_top_k),
        routed_scaling=routed_scaling,
        groups=groups,
        top_groups=top_groups,
        activation=config.activation("hidden_act", default=known.activation),
    )


def _qwen_layers(config: ConfigReader, known: defaults.Defaults, routed: Layer) -> list[Layer]:
    """Routed layers at every `decoder_sparse_step`, without those that `mlp_only_layers` names."""
    count = layer_count(config, known)
    step = config.size("decoder_sparse_step", default=1)
    named = config.items("mlp_only_layers") or []
    only = {index for index in named if isinstance(index, int) and 0 <= index < count}
    if len(only) != len(named):
        config.refuse(
            "mlp_only_layers",
            why="it names layers by their index, each once",
            fix=f"a list of whole numbers from 0 to {count - 1}",
        )
    plain = routed.model_copy(update={"feed_forward": dense(config, known)})
    return [
        routed if index not in only and (index + 1) % step == 0 else plain for index in range(count)
    ]


def qwen2_moe(config: ConfigReader) -> Model:
    """Qwen 1.5 and 2 MoE: one gated shared expert of its own size beside the routed ones."""
    known = defaults.QWEN2_MOE
    shared_size = config.dimension("shared_expert_intermediate_size", default=5632)
    routed = Layer(
        attention=grouped_query(config, known, qkv_bias=config.flag("qkv_bias", default=True)),
        feed_forward=_routed(config, known).model_copy(
            update={"shared_size": shared_size, "shared_gate": True}
        ),
    )
    layers = _qwen_layers(config, known, routed)
    if config.flag("use_sliding_window", default=False):
        last = config.count("max_window_layers", default=28)
        slides = sliding(config, len(layers), lambda index: index % 2 == 0 and index < last)
        layers = with_windows(layers, config.optional("sliding_window", 4096), slides)
    return decoder(config, known, layers, architecture="qwen2_moe")


def qwen3_moe(config: ConfigReader) -> Model:
    """Qwen3 MoE: query and key norms, no shared expert."""
    known = defaults.QWEN3_MOE
    bias = config.flag("attention_bias", default=False)
    windowed = config.flag("use_sliding_window", default=False)
    routed = Layer(
        attention=grouped_query(
            config,
            known,
            qkv_bias=bias,
            output_bias=bias,
            query_key_norm="head",
            window=config.optional("sliding_window", 4096) if windowed else None,
        ),
        feed_forward=_routed(config, known),
    )
    layers = _qwen_layers(config, known, routed)
    return decoder(config, known, layers, architecture="qwen3_moe")


def _latent_attention(config: ConfigReader, known: defaults.Defaults) -> LatentAttention:
    heads = config.dimension("num_attention_heads", default=known.heads)
    # The key has no meaning for latent attention, but frameworks divide by it.
    kv_heads = config.optional("num_key_value_heads") or heads
    checked_kv_heads(config, heads, kv_heads, key="num_key_value_heads")
    return LatentAttention(
        heads=heads,
        query_rank=config.optional("q_lora_rank", 1536),
        kv_rank=config.size("kv_lora_rank", default=512),
        head_dim_without_rope=config.size("qk_nope_head_dim", default=128),
        head_dim_rope=config.size("qk_rope_head_dim", default=64),
        value_head_dim=config.size("v_head_dim", default=128),
        bias=config.flag("attention_bias", default=False),
    )


def _dense_first(config: ConfigReader, known: defaults.Defaults, routed: Layer) -> list[Layer]:
    """`first_k_dense_replace` dense layers, then every `moe_layer_freq`-th one routed."""
    first = config.count("first_k_dense_replace", default=known.first_dense)
    step = config.size("moe_layer_freq", default=1)
    plain = routed.model_copy(update={"feed_forward": dense(config, known)})
    return [
        routed if index >= first and index % step == 0 else plain
        for index in range(layer_count(config, known))
    ]


def _prediction_layers(config: ConfigReader) -> int:
    """Only what the configuration names: a model saved without the key has none."""
    return config.count("num_nextn_predict_layers", "num_mtp_layers", default=0, largest=1000)


def _shared_experts(config: ConfigReader, known: defaults.Defaults) -> int:
    return config.optional("n_shared_experts", known.shared_experts) or 0


def _deepseek(
    config: ConfigReader,
    known: defaults.Defaults,
    *,
    architecture: str,
    score_function: str,
    selection: str,
    routed_scaling: float,
) -> Model:
    """The keywords are the defaults of `scoring_func`, `topk_method`, `routed_scaling_factor`."""
    attention = _latent_attention(config, known)
    if config.null("n_routed_experts"):
        layer = Layer(attention=attention, feed_forward=dense(config, known))
        return decoder(config, known, layer, architecture=architecture, interleaved=True)
    method = config.choice(
        "topk_method", default=selection, legal=("greedy", "group_limited_greedy", "noaux_tc")
    )
    scores = config.choice("scoring_func", default=score_function, legal=("softmax", "sigmoid"))
    routed = Layer(
        attention=attention,
        feed_forward=_routed(
            config,
            known,
            shared_experts=_shared_experts(config, known),
            grouped=method != "greedy",
            score_function="sigmoid" if scores == "sigmoid" else "softmax",
            expert_bias=method == "noaux_tc",
            routed_scaling=config.number("routed_scaling_factor", default=routed_scaling),
        ),
    )
    return decoder(
        config,
        known,
        _dense_first(config, known, routed),
        architecture=architecture,
        interleaved=True,
        prediction_layers=_prediction_layers(config),
    )


def deepseek_v2(config: ConfigReader) -> Model:
    """DeepSeek-V2 and V2-Lite: latent attention, shared experts, softmax router."""
    return _deepseek(
        config,
        defaults.DEEPSEEK_V2,
        architecture="deepseek_v2",
        score_function="softmax",
        selection="greedy",
        routed_scaling=1.0,
    )


def deepseek_v3(config: ConfigReader) -> Model:
    """DeepSeek-V3, R1 and Kimi K2: sigmoid router with a balancing bias, token prediction."""
    return _deepseek(
        config,
        defaults.DEEPSEEK_V3,
        architecture="deepseek_v3",
        score_function="sigmoid",
        selection="noaux_tc",
        routed_scaling=2.5,
    )


def glm4_moe(config: ConfigReader) -> Model:
    """GLM-4.5 and 4.6: DeepSeek-V3's router over grouped-query attention."""
    known = defaults.GLM4_MOE
    routed = Layer(
        attention=grouped_query(
            config,
            known,
            qkv_bias=config.flag("attention_bias", default=False),
            query_key_norm="head" if config.flag("use_qk_norm", default=False) else "none",
        ),
        feed_forward=_routed(
            config,
            known,
            shared_experts=_shared_experts(config, known),
            grouped=True,
            score_function="sigmoid",
            expert_bias=True,
            routed_scaling=config.number("routed_scaling_factor", default=1.0),
        ),
    )
    return decoder(
        config,
        known,
        _dense_first(config, known, routed),
        architecture="glm4_moe",
        prediction_layers=_prediction_layers(config),
    )
