"""Real Megatron-LM reads the exported scripts and sees the plan in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Judge
from plans import cluster, deepseek, gpt, group, llama, make_plan, mixtral
from recording import Call, environment_of, node_scripts, stage, written

from hetcli.export import render
from hetcli.perf.configuration import Recompute
from hetcli.spec.plan import Plan

pytestmark = pytest.mark.oracle

MIXED = cluster(
    group("a100-[0-1]", nics=[{"kind": "infiniband", "rate": "200Gbps"}]),
    group("v100-0", "V100-SXM2-32GB", nics=[{"kind": "infiniband", "rate": "100Gbps"}]),
    group("v100-1", "V100-SXM2-32GB", gpus=4, nics=[{"kind": "infiniband", "rate": "100Gbps"}]),
)
H100 = cluster(group("h100-[0-3]", "H100-SXM5-80GB"))
FULL = Recompute("full")


PLANS: dict[str, Plan] = {
    "unequal stages over three kinds of nodes": make_plan(
        MIXED, llama(), [10, 10, 7, 5], tensor=4, precision="fp16"
    ),
    "even stages": make_plan(H100, llama(), [8, 8, 8, 8], tensor=8),
    "no pipeline": make_plan(H100, llama(), [32], tensor=8, data=4),
    "a stage without layers": make_plan(H100, llama(), [11, 11, 10, 0], tensor=2, data=4),
    "interleaved": make_plan(H100, llama(), [[4, 4], [4, 5], [5, 3], [4, 3]], tensor=8),
    "replicas on nodes": make_plan(H100, llama(16), [9, 7], tensor=4, data=4, order="replicas"),
    "full recompute in some stages": make_plan(
        H100, llama(), [20, 12], tensor=8, data=2, recompute=[FULL, Recompute()]
    ),
    "some layers recomputed": make_plan(
        H100, llama(), [20, 12], tensor=8, data=2, recompute=Recompute("full", 5)
    ),
    "selective": make_plan(H100, llama(), [32], data=8, recompute=Recompute("selective")),
    "context parallel": make_plan(H100, llama(), [16, 16], tensor=4, context=2, data=2),
    "optimizer on the host": make_plan(H100, llama(), [32], data=8, offload="optimizer"),
    "without distributed optimizer": make_plan(
        H100, llama(), [32], data=8, zero_stage=0, overlap_param_gather=False
    ),
    "fp8": make_plan(H100, llama(), [32], data=8, precision="fp8"),
    "fp32": make_plan(H100, llama(), [32], data=8, precision="fp32"),
    "experts": make_plan(H100, mixtral(), [16, 16], tensor=2, data=8, expert_parallel=8),
    "experts and tensor-parallel experts": make_plan(
        H100, mixtral(), [16, 16], tensor=4, data=4, expert_parallel=4, expert_tensor_parallel=2
    ),
    "latent attention, experts and prediction": make_plan(
        H100, deepseek(), [4, 4, 4], tensor=2, data=4, expert_parallel=8
    ),
    "latent attention without pipeline": make_plan(
        H100, deepseek(), [12], tensor=8, data=4, expert_parallel=32
    ),
    "learned positions and biases": make_plan(H100, gpt(), [20], data=8, sequence=2048),
}


def judged(
    plan: Plan, megatron: Judge, tmp_path: Path, version: str | None = None
) -> tuple[list[dict[str, Any]], list[Call]]:
    """Megatron-LM's answers, through the real scripts and the real torchrun parser.

    One answer for the nodes with the same options.
    """
    launch = render(plan, target="megatron", target_version=version)
    folder = written(launch, tmp_path)
    stubs = stage(tmp_path / "stubs")
    calls = []
    runs = []
    for script in node_scripts(launch):
        result, made = stubs.run(folder, script)
        assert result.returncode == 0, result.stderr
        [call] = made
        calls.append(call)
        run = megatron.ask("torchrun", argv=call.argv)
        assert run["ok"], run
        runs.append(run)
    assert [run["node_rank"] for run in runs] == list(range(len(runs)))
    assert {(run["nodes"], run["min_nodes"]) for run in runs} == {(len(runs), len(runs))}
    assert {run["backend"] for run in runs} == {"static"}
    assert {run["endpoint"] for run in runs} == {f"{plan.stages[0].devices[0].node}:29500"}
    world = sum(run["processes"] for run in runs)
    assert world == sum(len(stage.devices) for stage in plan.stages)
    answers: list[dict[str, Any]] = []
    asked: list[Any] = []
    for call, run in zip(calls, runs, strict=True):
        environment = environment_of(call)
        # The answer does not depend on which devices and networks a node has.
        question = run["arguments"], environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
        if question not in asked:
            asked.append(question)
            answers.append(
                megatron.ask(
                    "accept", arguments=run["arguments"], world=world, environment=environment
                )
            )
    return answers, calls


def devices_by_rank(calls: list[Call], plan: Plan) -> list[tuple[str, int]]:
    """Which device each global rank gets: nodes in order, then their visible devices in order."""
    nodes = list(dict.fromkeys(_nodes_in_order(calls, plan)))
    return [
        (node, int(index))
        for node, call in zip(nodes, calls, strict=True)
        for index in _visible(call).split(",")
    ]


def _visible(call: Call) -> str:
    """The devices that a node shows its processes, of NVIDIA or of AMD."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    return next(call.env[name] for name in names if name in call.env)


def _nodes_in_order(calls: list[Call], plan: Plan) -> list[str]:
    if "--use-tp-pp-dp-mapping" in calls[0].argv:
        columns = zip(*(stage.replicas for stage in plan.stages), strict=True)
        return [device.node for column in columns for r in column for device in r.devices]
    return [device.node for stage in plan.stages for device in stage.devices]


def assert_plan_is_seen(plan: Plan, answers: list[dict[str, Any]], calls: list[Call]) -> None:
    """Every node's Megatron-LM has the planned degrees, layers and groups of devices."""
    degrees = plan.parallelism
    ranks = devices_by_rank(calls, plan)
    for answer in answers:
        assert answer["ok"], answer["error"]
        assert answer["data_parallel"] == degrees.data_parallel
        assert answer["micro_batches"] == degrees.gradient_accumulation
        assert [[chunk.count("t") for chunk in rank] for rank in answer["layers"]] == [
            list(stage.chunks) for stage in plan.stages
        ]
        flat = "".join(
            rank[chunk] for chunk in range(degrees.virtual_stages) for rank in answer["layers"]
        )
        layers = plan.inputs.model.layer_count
        assert flat == "E" + "t" * layers + "m" * plan.inputs.model.prediction_layers + "L"
        for group_ in answer["groups"]["pp"]:
            for number, rank in enumerate(group_):
                planned = {(d.node, d.index) for d in plan.stages[number].devices}
                assert ranks[rank] in planned
        replicas = [
            [(d.node, d.index) for d in replica.devices]
            for stage in plan.stages
            for replica in stage.replicas
        ]
        tensor = degrees.tensor_parallel
        planned_groups = {
            tuple(devices[first : first + tensor])
            for devices in replicas
            for first in range(0, len(devices), tensor)
        }
        assert {tuple(ranks[r] for r in g) for g in answer["groups"]["tp"]} == planned_groups


@pytest.mark.parametrize("name", PLANS)
def test_megatron_sees_the_plan(name: str, megatron: Judge, tmp_path: Path) -> None:
    plan = PLANS[name]
    assert_plan_is_seen(plan, *judged(plan, megatron, tmp_path))


@pytest.mark.parametrize("name", PLANS)
def test_megatron_builds_the_model(name: str, megatron: Judge, tmp_path: Path) -> None:
    plan = PLANS[name]
    model = plan.inputs.model
    [answer, *_], _ = judged(plan, megatron, tmp_path)
    arguments = answer["arguments"]
    first = model.layers[0].layer
    assert first.attention is not None
    assert arguments["num_layers"] == model.layer_count
    assert arguments["hidden_size"] == model.hidden_size
    assert arguments["num_attention_heads"] == first.attention.heads
    assert arguments["vocab_size"] == model.vocab_size
    assert arguments["seq_length"] == plan.inputs.workload.sequence
    assert arguments["untie_embeddings_and_output_weights"] is not model.tied_embeddings
    assert arguments["bf16"] is (plan.parallelism.precision in ("bf16", "fp8"))
    assert arguments["use_distributed_optimizer"] is (plan.parallelism.zero_stage == 1)
    assert answer["config"]["gated"] is (model.name != "gpt-20l")
    expected = "MLATransformerConfig" if "deepseek" in model.name else "TransformerConfig"
    assert answer["config"]["class"] == expected


def test_stages_recompute_as_planned(megatron: Judge, tmp_path: Path) -> None:
    answers, _ = judged(PLANS["full recompute in some stages"], megatron, tmp_path)
    seen = [answer["arguments"]["recompute_granularity"] for answer in answers]
    assert seen == ["full", None]


# What uses the most options: the other plans differ in numbers only.
RICH = (
    "interleaved",
    "some layers recomputed",
    "context parallel",
    "optimizer on the host",
    "fp8",
    "experts and tensor-parallel experts",
    "latent attention, experts and prediction",
    "learned positions and biases",
)


@pytest.mark.parametrize("name", RICH)
def test_older_releases_accept_the_plan(
    name: str, megatron_before: tuple[str, Judge], tmp_path: Path
) -> None:
    version, judge = megatron_before
    [answer, *_], _ = judged(PLANS[name], judge, tmp_path, version)
    assert answer["ok"], answer["error"]
    assert [[chunk.count("t") for chunk in rank] for rank in answer["layers"]] == [
        list(stage.chunks) for stage in PLANS[name].stages
    ]
