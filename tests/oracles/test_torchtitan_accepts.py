"""Real torchtitan reads the exported configuration as it is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Judge
from plans import cluster, group, make_plan
from recording import stage, written

from hetcli.catalog.presets import find_preset
from hetcli.export import render
from hetcli.perf.configuration import Recompute
from hetcli.spec.plan import Plan

pytestmark = pytest.mark.oracle

MIXED = cluster(group("n-[0-1]", "H100-SXM5-80GB"), group("a"))
FULL = Recompute("full")


def plan(model: str, layers: Any, **more: Any) -> Plan:
    return make_plan(MIXED, find_preset(model), layers, **more)


PLANS = {
    "unequal stages": plan("llama-3.1-8b", [12, 11, 9], tensor=2, data=4),
    "interleaved": plan("llama-3.1-8b", [[8, 9], [8, 7]], tensor=4, data=2),
    "replicas": plan("llama-3.1-8b", [32], data=8, zero_stage=0, overlap_param_gather=False),
    "context": plan("llama-3.1-70b", [80], tensor=4, context=2, zero_stage=0, recompute=FULL),
    "fp32, sharded": plan("llama-3.1-8b", [32], data=16, precision="fp32", micro_batch_size=2),
    "larger": plan("llama-3.1-70b", [42, 38], tensor=8),
}


def assert_titan_sees(planned: Plan, torchtitan: Judge, tmp_path: Path) -> None:
    """torchtitan builds the planned mesh, batch, parts of the model and schedule."""
    degrees = planned.parallelism
    folder = written(render(planned, target="torchtitan"), tmp_path)
    stubs = stage(tmp_path / "stubs")
    settings = {"HF_ASSETS_PATH": "a b", "TRAIN_STEPS": "7", "DATASET": "c4_test"}
    _, [call] = stubs.run(folder, "run_node_0.sh", **settings)
    start = call.argv.index("torchtitan.train")
    assert call.argv[start - 1] == "--module"
    assert call.env["PYTHONPATH"].split(":")[0] == str(folder)
    answer = torchtitan.ask(
        "config",
        argv=call.argv[start + 1 :],
        folder=str(folder),
        world=sum(len(stage_.devices) for stage_ in planned.stages),
    )
    assert answer["ok"], answer["error"]
    data = degrees.data_parallel or 1
    whole, shards = (data, 1) if degrees.zero_stage == 0 else (1, data)
    assert answer["dims"] == [
        *(whole, shards, degrees.context_parallel),
        *(degrees.tensor_parallel, degrees.pipeline_parallel),
    ]
    model = planned.inputs.model
    assert answer["layers"] == model.layer_count
    assert answer["hidden_size"] == model.hidden_size
    assert answer["vocabulary"] == model.vocab_size
    assert answer["sequence"] == planned.inputs.workload.sequence
    assert (answer["steps"], answer["dataset"]) == (7, "c4_test")
    assert answer["global_batch"] == degrees.global_batch
    assert answer["recompute"] == (
        "FullAC.Config" if planned.stages[0].recompute == "full" else "NoneType"
    )
    if degrees.pipeline_parallel == 1:
        assert answer["local_batch"] == degrees.micro_batch_size
        return
    assert answer["micro_batch"] == degrees.micro_batch_size
    assert answer["local_batch"] == degrees.micro_batch_size * degrees.gradient_accumulation
    parts = answer["parts"]
    counts = [sum("layers." in module for module in part) for part in parts]
    ranks = degrees.pipeline_parallel
    assert [counts[rank::ranks] for rank in range(ranks)] == [
        list(stage_.chunks) for stage_ in planned.stages
    ]
    modules = [module for part in parts for module in part]
    layers = [f"layers.{index}" for index in range(model.layer_count)]
    assert modules == ["tok_embeddings", *layers, "norm", "lm_head"]


@pytest.mark.parametrize("name", PLANS)
def test_torchtitan_reads_the_plan(name: str, torchtitan: Judge, tmp_path: Path) -> None:
    assert_titan_sees(PLANS[name], torchtitan, tmp_path)


def test_torchtitan_refuses_a_world_of_another_size(torchtitan: Judge, tmp_path: Path) -> None:
    folder = written(render(PLANS["unequal stages"], target="torchtitan"), tmp_path)
    argv = ["--module", "titan_plan", "--config", "planned"]
    answer = torchtitan.ask("config", argv=argv, folder=str(folder), world=23)
    assert not answer["ok"]
    assert "23" in answer["error"]
