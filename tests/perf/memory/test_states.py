"""Bytes of weights, gradients and optimizer states against what frameworks and users published."""

from __future__ import annotations

import pytest

from hetcli.perf.configuration import Shape
from hetcli.perf.memory import layer_state_bytes
from hetcli.perf.memory.estimators import megatron_states, zero2_states, zero3_states
from hetcli.perf.memory.states import Shards, recipe, state_bytes
from hetcli.spec.model.architecture import (
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
)
from hetcli.spec.model.parameters import Parameters, layer_parameters

GIB = 2**30


def bytes_each(framework, precision, zero_stage, ranks, offload="none", pipelined=False):
    costs = recipe(framework, precision, zero_stage, offload, pipelined=pipelined)
    return sum(
        cost.whole + cost.sharded / ranks
        for cost in (costs.weights, costs.gradients, costs.optimizer)
    )


@pytest.mark.parametrize(
    ("precision", "plain", "sharded_over_8"),
    [("bf16", 18, 6 + 12 / 8), ("fp16", 20, 4 + 16 / 8), ("fp32", 16, 8 + 8 / 8)],
)
def test_megatron_costs_what_its_distributed_optimizer_documents(precision, plain, sharded_over_8):
    assert bytes_each("megatron", precision, 0, 8) == plain
    assert bytes_each("megatron", precision, 1, 8) == sharded_over_8


def test_zero_stages_shard_one_kind_of_state_after_the_other():
    # ZeRO, arXiv 1910.02054, figure 1: 2 + 2 + K bytes, K = 12, and the fp32 gradients besides.
    assert bytes_each("deepspeed", "fp16", 0, 64) == 2 + 2 + 4 + 12
    assert bytes_each("deepspeed", "fp16", 1, 64) == 2 + 2 + 16 / 64
    assert bytes_each("deepspeed", "fp16", 2, 64) == 2 + 18 / 64
    assert bytes_each("deepspeed", "fp16", 3, 64) == 20 / 64


def test_a_bf16_pipeline_of_deepspeed_keeps_all_gradients_in_fp32():
    assert bytes_each("deepspeed", "bf16", 1, 8, pipelined=True) == 2 + 2 + 4 + 12 / 8
    assert bytes_each("deepspeed", "bf16", 1, 8) == 2 + 2 + 16 / 8


def test_offload_leaves_what_the_device_computes_with():
    assert bytes_each("deepspeed", "bf16", 2, 4, "optimizer") == 2
    assert bytes_each("deepspeed", "bf16", 3, 4, "optimizer") == 2 / 4
    assert bytes_each("deepspeed", "bf16", 3, 4, "optimizer+parameters") == 0
    assert bytes_each("megatron", "bf16", 1, 4, "optimizer") == 2 + 4


def test_fsdp_shards_fp32_parameters():
    assert bytes_each("fsdp", "bf16", 3, 8) == 16 / 8
    assert bytes_each("fsdp", "bf16", 2, 8) == 2 + 16 / 8


def test_deepspeed_zero3_estimator_prints_the_issues_table():
    # https://github.com/deepspeedai/DeepSpeed/issues/4527 (case ds-zero3-estimator)
    parameters, largest, ranks = 6_805_000_000, 131_000_000, 4
    for offload, expected in (("none", 29.01), ("optimizer", 3.66), ("optimizer+parameters", 0.49)):
        estimate = zero3_states(parameters, largest, ranks, offload)
        assert estimate.device_bytes / GIB == pytest.approx(expected, abs=0.005)
        assert estimate.scope == "model states only"


def test_zero2_states_of_7b_do_not_fit_two_48_gb_cards_whatever_the_batch():
    # https://github.com/OpenRLHF/OpenRLHF/issues/901 (case zero2-7b-on-2x48): 11 bytes a parameter.
    parameters = 7_615_616_512
    assert parameters * bytes_each("deepspeed", "bf16", 2, 2) == pytest.approx(83.8e9, rel=1e-3)
    # Over four GPUs ZeRO-3 keeps 18/4 bytes beside the weights in use.
    assert zero3_states(parameters, 0, 4).device_bytes == pytest.approx(34.3e9, rel=2e-3)
    assert zero2_states(parameters, 2, "optimizer").device_bytes == 2 * parameters


def test_flagscale_weights_and_optimizer_of_the_most_loaded_shard():
    # https://github.com/flagos-ai/FlagScale/pull/454: 46,983.28 MB for 4.1055 B parameters, dp 2.
    estimate = megatron_states(4_105_500_000, 2)
    assert estimate.device_bytes / 2**20 == pytest.approx(46_983.28, rel=1e-4)


def test_aicb_weights_and_adam_states_of_qwen_7b():
    # https://github.com/aliyun/aicb/pull/36: 1.918 GB and 11.51 GB a GPU with tp 8.
    here = 7_670_599_680 // 8
    costs = recipe("megatron", "bf16", 0)
    assert costs.weights.total * here / 1e9 == pytest.approx(1.918, abs=5e-4)
    assert costs.optimizer.total * here / 1e9 == pytest.approx(11.51, abs=5e-3)


def mixture() -> Model:
    layer = Layer(
        attention=GroupedQueryAttention(heads=32, kv_heads=8, head_dim=128),
        feed_forward=MoeFeedForward(experts=8, top_k=2, expert_size=14336),
    )
    return Model(
        name="m",
        architecture="mixtral",
        hidden_size=4096,
        vocab_size=32000,
        max_sequence=4096,
        layers=(LayerRun(count=32, layer=layer),),
    )


def test_experts_shard_over_expert_ranks_and_their_optimizer_over_their_own_replicas():
    model = mixture()
    layer = model.layers[0].layer
    parameters = layer_parameters(layer, model)
    # 2 tensor x 8 data ranks: 16 ranks a stage, 4 x 2 of them share the experts, twice over.
    shape = Shape(
        4096, 1, "bf16", "flash", tensor_parallel=2, expert_parallel=4, expert_tensor_parallel=2
    )
    states = layer_state_bytes(layer, model, shape, zero_stage=1, data_parallel=8)
    dense = parameters.tensor_sharded // 2 + parameters.replicated
    experts = parameters.experts // 8
    assert states.weights == 2 * (dense + experts)
    assert states.gradients == 4 * (dense + experts)
    assert states.optimizer == 12 * dense // 8 + 12 * experts // 2


def test_total_parameters_decide_memory_not_active_ones():
    model = mixture()
    layer = model.layers[0].layer
    shape = Shape(4096, 1, "bf16", "flash")
    states = layer_state_bytes(layer, model, shape, zero_stage=0, data_parallel=1)
    assert states.total == 18 * layer_parameters(layer, model).total


def test_nothing_is_lost_to_rounding():
    shape = Shape(2048, 1, "bf16", "flash", tensor_parallel=8)
    costs = recipe("megatron", "bf16", 1)
    states = state_bytes(Parameters(attention=1001, replicated=7), shape, costs, Shards(3, 1))
    assert states.weights == 2 * (126 + 7)
    assert states.optimizer == 12 * (126 + 7) // 3


def test_fp8_keeps_two_quantized_copies_of_a_layer_and_none_of_the_embedding():
    model = mixture()
    layer = model.layers[0].layer
    bf16, fp8 = (
        layer_state_bytes(
            layer, model, Shape(4096, 1, precision, "flash"), zero_stage=1, data_parallel=1
        )
        for precision in ("bf16", "fp8")
    )
    assert fp8.weights == 2 * bf16.weights
    assert fp8.optimizer == bf16.optimizer
