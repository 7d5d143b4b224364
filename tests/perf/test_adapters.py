"""Low-rank adapters: what they have, what is no longer held, and what is no longer computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetcli.catalog.inputs import with_adapters
from hetcli.catalog.presets import find_preset
from hetcli.errors import UsageError
from hetcli.perf.compute import embedding_time, head_time, layer_time
from hetcli.perf.configuration import Shape
from hetcli.perf.flops import model_flops
from hetcli.perf.hardware import DeviceType
from hetcli.perf.memory.states import parameters_on_device
from hetcli.perf.resolve import resolve
from hetcli.search import EstimateRequest, estimate
from hetcli.spec.model.parameters import adapter_parameters, total_parameters
from hetcli.spec.plan import Plan
from hetcli.spec.quick import parse_quick_cluster
from hetcli.spec.workload import Pretrain

LLAMA = find_preset("llama-2-7b")
ADAPTED = with_adapters(LLAMA, 16)
SHAPE = Shape(sequence=2048, micro_batch_size=1, precision="bf16", kernel="flash")
WORK = Pretrain(global_batch=16, sequence=2048)


def device_type() -> DeviceType:
    hardware = resolve(parse_quick_cluster("A100-SXM4-80GB:8"))
    return hardware.nodes[0].device_type


def predicted(name: str, rank: int | None, **request: object) -> Plan:
    model = with_adapters(find_preset(name), rank)
    cluster = parse_quick_cluster("A100-SXM4-80GB:8")
    # Mainline Megatron-LM trains whole models only; the free space has no such target.
    asked = EstimateRequest(target="free", **request)
    return estimate(cluster=cluster, model=model, workload=WORK, request=asked)


def items(plan: Plan) -> dict[str, float]:
    return {item.name: item.memory_bytes for item in plan.predicted.devices[0].items}


def test_llama_has_as_many_as_peft_counts() -> None:
    # Four square projections of 4096 and three of 4096 x 11008 in each of 32 layers: what
    # peft.LoraConfig(r=16, target_modules="all-linear") calls trainable params: 39,976,960.
    layer = ADAPTED.layers[0].layer
    assert 32 * adapter_parameters(layer, ADAPTED).total == 39_976_960
    assert adapter_parameters(layer, LLAMA).total == 0
    assert total_parameters(ADAPTED) == total_parameters(LLAMA)


def test_tensor_ranks_share_the_side_that_is_cut() -> None:
    layer = ADAPTED.layers[0].layer
    parameters = adapter_parameters(layer, ADAPTED)
    halves, _ = parameters_on_device(parameters, replace(SHAPE, tensor_parallel=2))
    # Inputs of seven matrices but two are the hidden states, outputs of two.
    whole = 16 * 4096 * 7
    assert halves == whole + (parameters.total - whole) // 2


def test_frozen_weights_have_neither_gradients_nor_moments() -> None:
    both = predicted("llama-2-7b", None), predicted("llama-2-7b", 16)
    full, adapted = (items(plan) for plan in both)
    trained = 39_976_960
    assert adapted["weights"] == full["weights"] + 2 * trained
    assert adapted["gradients"] == pytest.approx(4 * trained, rel=1e-6)
    assert adapted["optimizer"] == pytest.approx(12 * trained / 8, rel=1e-6)
    assert full["optimizer"] > 100 * adapted["optimizer"]


def test_only_the_gradients_of_inputs_are_computed_of_frozen_weights() -> None:
    kind, layer = device_type(), LLAMA.layers[0].layer
    full, adapted = (layer_time(layer, model, SHAPE, kind) for model in (LLAMA, ADAPTED))
    assert adapted.forward_s > full.forward_s
    # The gradients of weights are two fifths of the backward pass; adapters cost some of it back.
    assert adapted.backward_s < 0.75 * full.backward_s
    assert 0 < adapted.weight_s < 0.1 * full.weight_s
    assert embedding_time(ADAPTED, SHAPE, kind).backward_s == 0
    assert head_time(ADAPTED, SHAPE, kind).weight_s == 0
    assert model_flops(ADAPTED, 2048) == pytest.approx(model_flops(LLAMA, 2048) * 2 / 3)


def test_little_is_left_to_synchronise_and_to_update() -> None:
    full, adapted = predicted("llama-2-7b", None), predicted("llama-2-7b", 16)
    for name in ("data_parallel", "optimizer"):
        assert adapted.predicted.breakdown_s[name] < full.predicted.breakdown_s[name] / 50


def test_routed_experts_have_no_adapters_but_their_shared_expert_has() -> None:
    mixtral, deepseek = (
        with_adapters(find_preset(name), 8) for name in ("mixtral-8x7b", "deepseek-v2-lite")
    )
    attention = 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024))
    assert adapter_parameters(mixtral.layers[0].layer, mixtral).total == attention
    routed = deepseek.layers[-1].layer
    size, hidden = routed.feed_forward.shared_size, deepseek.hidden_size  # type: ignore[union-attr]
    shared = 8 * 3 * (size + hidden)
    without = routed.model_copy(update={"feed_forward": None})
    of_attention = adapter_parameters(without, deepseek).total
    assert adapter_parameters(routed, deepseek).total == shared + of_attention


def test_the_rank_must_be_one_that_the_matrices_have() -> None:
    with pytest.raises(UsageError, match="rank of 4096 at most"):
        with_adapters(LLAMA, 5000)
