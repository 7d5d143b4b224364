"""What a target cannot run is refused with the rule, the nearest legal plan and a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plans import cluster, deepseek, gpt, group, llama, make_plan, mixtral, with_stage_tensor

from hetcli.errors import ConfigurationError, UnknownNameError, UnsupportedByTargetError
from hetcli.export import render
from hetcli.perf.configuration import Recompute
from hetcli.spec.model.architecture import Layer, Positions, Rotary, RotaryScaling
from hetcli.spec.plan import Plan

H100 = cluster(group("h100-[0-3]", "H100-SXM5-80GB"))
V100 = cluster(group("v100-[0-1]", "V100-SXM2-32GB"))
PAIR = cluster(group("a"), group("b", gpus=4))


def unequal_replicas() -> Plan:
    plan = make_plan(H100, llama(), [32], data=2)
    [stage] = plan.stages
    one, two = stage.replicas
    replicas = (
        one.model_copy(update={"micro_batches": 10}),
        two.model_copy(update={"micro_batches": 6}),
    )
    return plan.model_copy(update={"stages": (stage.model_copy(update={"replicas": replicas}),)})


def scattered() -> Plan:
    """Stages 0 and 2 on one node, stage 1 on another."""
    plan = make_plan(PAIR, llama(), [16, 8, 8], tensor=4)
    first, second, third = plan.stages
    swap = [{"devices": s.devices, "replicas": s.replicas} for s in (first, third, second)]
    stages = [s.model_copy(update=its) for s, its in zip(plan.stages, swap, strict=True)]
    return plan.model_copy(update={"stages": tuple(stages)})


def unlike_recompute() -> Plan:
    return make_plan(H100, llama(), [16, 16], tensor=4, recompute=[Recompute("full"), Recompute()])


def megatron(*arguments: Any, **more: Any) -> Callable[[], Plan]:
    return lambda: make_plan(*arguments, **more)


def deepspeed(*arguments: Any, **more: Any) -> Callable[[], Plan]:
    more = {"target": "deepspeed", "overlap_param_gather": False, **more}
    return lambda: make_plan(*arguments, **more)


MEGATRON = {
    "bf16 on volta": (megatron(V100, llama(), [32], data=8), "bf16 needs compute capability 8.0"),
    "fp8 before ada": (
        megatron(PAIR, llama(), [32], data=8, precision="fp8"),
        "fp8 needs compute capability 8.9",
    ),
    "tensor group over two nodes": (
        megatron(cluster(group("n[0-1]", gpus=2)), llama(), [32], tensor=4),
        "sends every layer's activations over the network",
    ),
    "interleaving that fails in the first step": (
        megatron(H100, llama(), [[4, 4]] * 4, tensor=8, micro_batches=6),
        "validate_args accepts it and the schedule fails",
    ),
    "another schedule": (
        megatron(H100, llama(), [8] * 4, tensor=8, schedule="zb-h1"),
        "it runs 1F1B",
    ),
    "tensor parallel a stage": (
        lambda: with_stage_tensor(make_plan(H100, llama(), [16, 16], tensor=8), 1, 4),
        "--tensor-model-parallel-size is one number",
    ),
    "micro-batches a replica": (unequal_replicas, "--micro-batch-size is one number"),
    "scattered stages": (scattered, "there is no third order"),
    "recompute within a node": (unlike_recompute, "options of a node hold for all"),
    "zero 3": (megatron(H100, llama(), [32], data=8, zero_stage=3), "shards optimizer states"),
    "parameters on the host": (
        megatron(H100, llama(), [32], data=8, offload="optimizer+parameters"),
        "moves optimizer states only",
    ),
    "gather without distributed optimizer": (
        megatron(H100, llama(), [32], data=8, zero_stage=0),
        "--overlap-param-gather needs",
    ),
    "experts without sequence parallelism": (
        megatron(H100, mixtral(), [32], tensor=2, data=8, sequence_parallel=False),
        "every rank routes every token",
    ),
    "two vendors": (
        megatron(cluster(group("n"), group("m", "MI300X")), llama(), [16, 16], tensor=8),
        "do not talk to each other",
    ),
    "odd context chunks": (
        megatron(H100, llama(), [32], context=2, sequence=1023),
        "each rank holds two chunks",
    ),
    "flash attention on volta": (
        megatron(V100, llama(), [32], data=8, precision="fp16", attention="flash"),
        "neither flash nor cuDNN attention below compute capability 8.0",
    ),
    "context parallelism on volta": (
        megatron(V100, llama(), [32], context=2, data=4, precision="fp16"),
        "the unfused attention needs whole sequences",
    ),
    "heads that tensor parallelism cannot cut": (
        megatron(cluster(group("n", gpus=3)), llama(), [32], tensor=3, sequence_parallel=False),
        "% 3 = ",
    ),
    "sequence longer than the position table": (
        megatron(H100, gpt(), [20], data=8, sequence=4096),
        "position table has 2048 rows",
    ),
    "expert mesh in replica order": (
        megatron(
            cluster(group("n[0-1]", gpus=4)),
            mixtral(),
            [16, 16],
            tensor=2,
            data=2,
            expert_parallel=4,
            order="replicas",
        ),
        "equal data parallelism",
    ),
}


def unequal_sizes_in_a_pipeline() -> Plan:
    plan = make_plan(
        H100, llama(), [16, 16], data=2, target="deepspeed", overlap_param_gather=False
    )
    stages = []
    for stage in plan.stages:
        one, two = stage.replicas
        replicas = (one.model_copy(update={"micro_batch_size": 3}), two)
        stages.append(stage.model_copy(update={"replicas": replicas}))
    workload = plan.inputs.workload.model_copy(update={"global_batch": 32})
    return plan.model_copy(
        update={
            "stages": tuple(stages),
            "inputs": plan.inputs.model_copy(update={"workload": workload}),
            "parallelism": plan.parallelism.model_copy(update={"global_batch": 32}),
        }
    )


DEEPSPEED = {
    "micro-batches a replica": (unequal_replicas, "every rank accumulates over as many"),
    "unequal micro-batches in a pipeline": (unequal_sizes_in_a_pipeline, "tensors of one shape"),
    "zero 2 with a pipeline": (
        deepspeed(H100, llama(), [16, 16], data=4, zero_stage=2),
        "ZeRO-2 and ZeRO-3 are refused",
    ),
    "chunks": (deepspeed(H100, llama(), [[8, 8], [8, 8]]), "runs 1F1B"),
    "context parallel": (deepspeed(H100, llama(), [32], context=2), "has neither"),
    "sequence parallel": (
        deepspeed(H100, llama(), [32], tensor=2, sequence_parallel=True),
        "whole sequences",
    ),
    "fp8": (deepspeed(H100, llama(), [32], precision="fp8"), "bf16, fp16 or fp32"),
    "prediction layers": (
        deepspeed(H100, deepseek(), [12], expert_tensor_parallel=1),
        "next token only",
    ),
    "an empty stage in the middle": (
        deepspeed(H100, llama(), [16, 0, 16]),
        "a stage begins with a layer of its own",
    ),
    "tensor group over two nodes": (
        deepspeed(cluster(group("n[0-1]", gpus=3)), llama(), [32], tensor=2, data=3),
        "sends every layer's activations over the network",
    ),
    "parameters on the host without zero 3": (
        deepspeed(H100, llama(), [32], data=8, offload="optimizer+parameters"),
        "only ZeRO-3",
    ),
    "scattered stages": (
        lambda: scattered().model_copy(
            update={
                "target": "deepspeed",
                "parallelism": scattered().parallelism.model_copy(
                    update={"sequence_parallel": False}
                ),
            }
        ),
        "stage by stage",
    ),
}


@pytest.mark.parametrize(
    ("target", "name"),
    [("megatron", name) for name in MEGATRON] + [("deepspeed", name) for name in DEEPSPEED],
)
def test_what_a_target_cannot_run_is_refused(target: str, name: str) -> None:
    make, rule = {"megatron": MEGATRON, "deepspeed": DEEPSPEED}[target][name]
    with pytest.raises(UnsupportedByTargetError) as caught:
        render(make(), target=target)
    error = caught.value
    assert rule in error.why, error
    assert error.fix
    assert "hetcli plan" in error.fix


def rope(**scaling: Any) -> Positions:
    return Positions(kind="rope", rotary=Rotary(scaling=RotaryScaling(**scaling)))


def changed(layer: dict[str, Any]) -> Layer:
    plain = llama().layers[0].layer
    return plain.model_copy(update=layer)


ATTENTION = llama().layers[0].layer.attention
assert ATTENTION is not None
MODELS: dict[str, Any] = {
    "sandwich norms": {"layer": changed({"norms": 4, "norm_placement": "sandwich"})},
    "parallel blocks": {"layer": changed({"parallel": True})},
    "softcap": {
        "layer": changed({"attention": ATTENTION.model_copy(update={"logit_softcap": 50.0})})
    },
    "projection norm": {
        "layer": changed(
            {"attention": ATTENTION.model_copy(update={"query_key_norm": "projection"})}
        )
    },
    "some biases": {
        "layer": changed({"attention": ATTENTION.model_copy(update={"output_bias": True})})
    },
    "embedding scale": {"embedding_scale": 64.0},
    "head bias": {"head_bias": True},
    "alibi": {"positions": Positions(kind="alibi")},
    "longrope": {"positions": rope(kind="longrope", factor=4.0, original_max_sequence=2048)},
    "odd llama 3 scaling": {
        "positions": rope(
            kind="llama3",
            factor=8.0,
            low_frequency_factor=2.0,
            high_frequency_factor=4.0,
            original_max_sequence=8192,
        )
    },
    "fractional base": {"positions": Positions(kind="rope", rotary=Rotary(base=10000.5))},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_megatron_has_no_option_for_is_refused_and_deepspeed_builds_it(
    name: str,
) -> None:
    model = llama(**MODELS[name])
    with pytest.raises(UnsupportedByTargetError, match="megatron cannot build") as caught:
        render(make_plan(H100, model, [32], data=8))
    assert "--target deepspeed" in caught.value.fix
    plan = make_plan(H100, model, [32], data=8, target="deepspeed", overlap_param_gather=False)
    assert "train.py" in render(plan).files


def test_cards_before_ampere_keep_transformer_engine_and_the_directory_says_how() -> None:
    """Its RMSNorm is the only one that takes sequence parallelism, and it runs on Volta."""
    plan = make_plan(V100, llama(), [16, 16], tensor=8, precision="fp16")
    launch = render(plan)
    assert "--sequence-parallel" in launch["common.sh"]
    assert "--transformer-impl" not in launch["common.sh"]
    assert "built with CUDA 12" in launch["README.md"]
    assert "CUDA 12" not in render(make_plan(H100, llama(), [32], data=8))["README.md"]


def test_stages_that_do_not_build_the_model_are_invalid_input() -> None:
    """Megatron-LM issue 1778: a plan edited to one layer trained a one-layer model."""
    plan = make_plan(H100, gpt(), [20], data=8, sequence=2048)
    stage = plan.stages[0].model_copy(update={"layers": 1, "chunks": (1,)})
    with pytest.raises(ConfigurationError, match="the stages hold 1 layers, the model has 20"):
        render(plan.model_copy(update={"stages": (stage,)}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_batch": 65}, "the global batch is 65"),
        ({"pipeline_parallel": 2}, "pipeline_parallel is 2"),
        ({"data_parallel": 4}, "data_parallel is 4"),
        ({"context_parallel": 2}, "a replica of stage 0 has 1 devices"),
        ({"schedule": "fastest"}, "the schedule is 'fastest'"),
    ],
)
def test_a_plan_whose_degrees_contradict_its_stages_is_invalid_input(
    change: dict[str, Any], message: str
) -> None:
    plan = make_plan(H100, llama(), [32], data=8)
    degrees = plan.parallelism.model_copy(update=change)
    with pytest.raises(ConfigurationError, match=message):
        render(plan.model_copy(update={"parallelism": degrees}))


def test_a_device_that_the_cluster_lacks_is_invalid_input() -> None:
    plan = make_plan(H100, llama(), [32], data=8)
    other = cluster(group("h100-0", "H100-SXM5-80GB", gpus=4))
    inputs = plan.inputs.model_copy(update={"cluster": other})
    with pytest.raises(ConfigurationError, match="h100-0:4 is not a usable device"):
        render(plan.model_copy(update={"inputs": inputs}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "accelerate"}, "divides the processes evenly"),
        ({"target": "free"}, "unlike shape"),
        ({"launcher": "mpirun"}, "not known to start this target"),
        ({"target_version": "0.16"}, "0.17 or 0.18"),
        ({"target_version": "latest"}, "0.17 or 0.18"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnknownNameError, match=message):
        render(make_plan(H100, llama(), [32], data=8), **options)


def test_the_deepspeed_launcher_is_refused_where_it_would_turn_the_ranks() -> None:
    """Its local rank is the global rank modulo the node's processes."""
    turned = cluster(group("a", gpus=2), group("b", gpus=3))
    plan = make_plan(turned, llama(), [7, 7, 6, 6, 6])
    with pytest.raises(UnsupportedByTargetError, match="devices 2 0 1") as caught:
        render(plan, launcher="deepspeed")
    assert "--launcher torchrun" in caught.value.fix
    straight = cluster(group("a", gpus=3), group("b", gpus=3))
    assert (
        "deepspeed"
        in render(make_plan(straight, llama(), [6, 6, 5, 5, 5, 5]), launcher="deepspeed")[
            "common.sh"
        ]
    )
