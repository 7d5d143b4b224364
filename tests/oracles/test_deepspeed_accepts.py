"""Real DeepSpeed reads the exported configuration, hostfile and launcher command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Judge
from plans import cluster, gpt, group, llama, make_plan
from recording import node_scripts, stage, written

from hetcli.export import render
from hetcli.export.deepspeed.config import REMOVED_KEYS
from hetcli.spec.plan import Plan

pytestmark = pytest.mark.oracle

NODE = cluster(group("n0", "A100-SXM4-80GB"))
UNEQUAL = cluster(group("n0"), group("n1", gpus=2))
# Issue 3624 of DeepSpeed: slots are what the host has, the inclusion picks.
V100 = cluster(
    group("work1", "V100-SXM2-32GB", gpus=4, use=[2, 3]),
    group("work2", "V100-SXM2-32GB", gpus=4, use=[2, 3]),
)


def deepspeed_plan(where: Any, layers: Any, **more: Any) -> Plan:
    more = {"target": "deepspeed", "overlap_param_gather": False, **more}
    return make_plan(where, more.pop("model", llama()), layers, **more)


PLANS = {
    "zero 0": deepspeed_plan(NODE, [32], data=8, zero_stage=0),
    "zero 1": deepspeed_plan(NODE, [32], data=8, zero_stage=1),
    "zero 2": deepspeed_plan(NODE, [32], data=8, zero_stage=2),
    "zero 3": deepspeed_plan(NODE, [32], data=8, zero_stage=3),
    "optimizer on the host": deepspeed_plan(NODE, [32], data=8, zero_stage=2, offload="optimizer"),
    "all on the host": deepspeed_plan(
        NODE, [32], data=8, zero_stage=3, offload="optimizer+parameters"
    ),
    "unequal pipeline, unequal nodes": deepspeed_plan(UNEQUAL, [8, 8, 6, 6, 4], data=2),
    "tensor and pipeline": deepspeed_plan(NODE, [20, 12], tensor=2, data=2, precision="fp16"),
    "fp32": deepspeed_plan(NODE, [20], data=8, precision="fp32", model=gpt(), sequence=2048),
    "some devices": deepspeed_plan(V100, [20, 12], data=2, precision="fp16"),
}


@pytest.mark.parametrize("name", PLANS)
def test_deepspeed_reads_the_plan_in_its_configuration(name: str, deepspeed: Judge) -> None:
    plan = PLANS[name]
    degrees = plan.parallelism
    text = render(plan)["ds_config.json"]
    answer = deepspeed.ask("config", config=json.loads(text), world=degrees.data_parallel)
    assert answer["ok"], answer["error"]
    assert answer["train_batch_size"] == degrees.global_batch
    assert answer["micro_batch_size"] == degrees.micro_batch_size
    assert answer["accumulation"] == degrees.gradient_accumulation
    assert answer["zero_stage"] == degrees.zero_stage
    assert answer["bf16"] is (degrees.precision == "bf16")
    assert answer["fp16"] is (degrees.precision == "fp16")
    assert answer["gradient_clipping"] == 1.0
    assert ("cpu" in answer["offload_optimizer"]) is (degrees.offload != "none")
    assert ("cpu" in answer["offload_param"]) is (degrees.offload == "optimizer+parameters")


@pytest.mark.parametrize("name", PLANS)
def test_deepspeed_starts_the_planned_devices(name: str, deepspeed: Judge, tmp_path: Path) -> None:
    plan = PLANS[name]
    launch = render(plan, launcher="deepspeed")
    folder = written(launch, tmp_path)
    stubs = stage(tmp_path / "stubs")
    for rank, script in enumerate(node_scripts(launch)):
        result, calls = stubs.run(folder, script)
        assert result.returncode == 0, result.stderr
        [call] = calls
        assert call.program == "deepspeed"
        answer = deepspeed.ask("launch", argv=call.argv, hostfile=launch["hostfile"])
        assert answer["ok"], answer["error"]
        assert answer["node_rank"] == rank
        assert answer["no_ssh"]
        assert answer["no_local_rank"]
        assert answer["script"] == "train.py"
        planned: dict[str, set[int]] = {}
        for stage_ in plan.stages:
            for device in stage_.devices:
                planned.setdefault(device.node, set()).add(device.index)
        assert [host for host, _ in answer["active"]] == list(planned)
        assert {host: set(slots) for host, slots in answer["active"]} == planned
        assert "CUDA_VISIBLE_DEVICES" not in call.env


def test_slots_are_what_the_host_has_and_the_inclusion_picks(tmp_path: Path) -> None:
    launch = render(PLANS["some devices"], launcher="deepspeed")
    assert "work1 slots=4" in launch["hostfile"]
    assert "work2 slots=4" in launch["hostfile"]
    _, [call] = stage(tmp_path / "stubs").run(written(launch, tmp_path), "run_node_0.sh")
    assert "--include=work1:2,3@work2:2,3" in call.argv


@pytest.mark.parametrize("key", sorted(REMOVED_KEYS))
def test_deepspeed_refuses_the_keys_that_it_has_removed(key: str, deepspeed: Judge) -> None:
    plan = PLANS["zero 2"]
    config = json.loads(render(plan)["ds_config.json"])
    world = plan.parallelism.data_parallel
    assert deepspeed.ask("config", config=config, world=world)["ok"]
    inner = key.startswith(("mics", "zeropp"))
    where = config["zero_optimization"] if inner else config
    where[key] = 2 if inner else {"enabled": True}
    answer = deepspeed.ask("config", config=config, world=world)
    assert not answer["ok"]


def test_the_configuration_has_no_key_that_deepspeed_ignores(deepspeed: Judge) -> None:
    """Unknown keys at the top level are ignored in silence, so each must change an answer."""
    plan = PLANS["optimizer on the host"]
    config = json.loads(render(plan)["ds_config.json"])
    world = plan.parallelism.data_parallel
    known = deepspeed.ask("config", config=config, world=world)
    broken = {**config, "zero_optimization": {**config["zero_optimization"], "stagee": 1}}
    assert not deepspeed.ask("config", config=broken, world=world)["ok"]
    for key in ("gradient_clipping", "optimizer", "zero_optimization", "bf16"):
        without = {k: v for k, v in config.items() if k != key}
        other = deepspeed.ask("config", config=without, world=world)
        changed = {**config, key: {"gradient_clipping": 0.5}.get(key, {})}
        if key == "gradient_clipping":
            other = deepspeed.ask("config", config=changed, world=world)
        assert other != known, key
