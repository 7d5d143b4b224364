"""A launch directory read back describes its plan, and an edited one is found out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plans import cluster, deepseek, group, llama, make_plan, mixtral
from recording import written

from hetcli.errors import UsageError
from hetcli.export import render
from hetcli.export.readback import check_directory
from hetcli.perf.configuration import Recompute
from hetcli.spec.plan import Plan

H100 = cluster(group("h100-[0-3]", "H100-SXM5-80GB"))
FULL = Recompute("full")


def deepspeed(*arguments: Any, **more: Any) -> Plan:
    return make_plan(*arguments, target="deepspeed", overlap_param_gather=False, **more)


PLANS = {
    "stages": make_plan(H100, llama(), [10, 10, 7, 5], tensor=8),
    "interleaved": make_plan(H100, llama(), [[4, 4], [4, 5], [5, 3], [4, 3]], tensor=8),
    "replicas on nodes": make_plan(H100, llama(16), [9, 7], tensor=4, data=4, order="replicas"),
    "recompute": make_plan(
        H100, llama(), [20, 12], tensor=8, data=2, recompute=[FULL, Recompute("full", 5)]
    ),
    "experts": make_plan(H100, mixtral(), [16, 16], tensor=2, data=8, expert_parallel=8),
    "latent": make_plan(H100, deepseek(), [4, 4, 4], tensor=2, data=4, expert_parallel=8),
    "fp8": make_plan(H100, llama(), [32], data=8, precision="fp8"),
    "offload": make_plan(H100, llama(), [32], data=8, offload="optimizer"),
    "zero 3": deepspeed(H100, llama(), [32], data=8, zero_stage=3, offload="optimizer+parameters"),
    "pipeline": deepspeed(H100, llama(), [20, 12], tensor=2, data=4, precision="fp16"),
    "hostile": make_plan(cluster(group("a$(id)'\"|b", gpus=2)), llama(), [16, 16]),
}


@pytest.mark.parametrize("name", PLANS)
def test_what_is_written_describes_the_plan(name: str, tmp_path: Path) -> None:
    checked = check_directory(written(render(PLANS[name]), tmp_path))
    assert checked.differences == ()
    assert checked.target == PLANS[name].target


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("common.sh", "-model-parallel-size 8", "-model-parallel-size 4", "tensor_parallel is 4"),
        ("common.sh", "t*7|t*5L", "t*6|t*6L", "layers of every chunk"),
        ("common.sh", "--global-batch-size 8", "--global-batch-size 16", "global_batch is 16"),
        ("common.sh", "--bf16", "--fp16", "precision is fp16"),
        ("common.sh", "--use-distributed-optimizer", "", "zero_stage is 0"),
        ("common.sh", "--seq-length 4096", "--seq-length 2048", "sequence is 2048"),
        ("run_node_1.sh", "DEVICES=(0 1 2", "DEVICES=(0 2 1", "stage 1 replica 0 is started on"),
        ("run_node_1.sh", "NODE_RANK=1", "NODE_RANK=2", "has NODE_RANK 2"),
        ("run_node_2.sh", "VISIBLE_DEVICES='0,1", "VISIBLE_DEVICES='1,0", "shows devices 1,0"),
        ("run_node_0.sh", "DEVICES=(0 1 2 3 4 5 6 7)", "DEVICES=(0 1 2)", "processes are started"),
        ("hostfile", "h100-0 slots=8\nh100-1", "h100-1 slots=8\nh100-0", "the hostfile names"),
        ("plan.json", '"global_batch": 8', '"global_batch": 16', "planned is 16"),
    ],
)
def test_an_edit_is_found(file: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    folder = written(render(PLANS["stages"]), tmp_path)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    [*differences] = check_directory(folder).differences
    assert any(message in difference for difference in differences), differences


def test_unlike_recompute_of_nodes_is_read(tmp_path: Path) -> None:
    folder = written(render(PLANS["recompute"]), tmp_path)
    script = folder / "run_node_2.sh"
    script.write_text(script.read_text().replace("num-layers 5", "num-layers 4"))
    [difference] = check_directory(folder).differences
    assert difference == "stage 1 recomputes ('full', 4), planned is ('full', 5)"


def test_an_edited_deepspeed_configuration_is_found(tmp_path: Path) -> None:
    folder = written(render(PLANS["zero 3"]), tmp_path)
    config = json.loads((folder / "ds_config.json").read_text())
    config["zero_optimization"]["stage"] = 2
    (folder / "ds_config.json").write_text(json.dumps(config))
    assert check_directory(folder).differences == ("zero_stage is 2, planned is 3",)


@pytest.mark.parametrize(
    ("place", "key", "message"),
    [
        (None, "gradient_cliping", "ignored keys is ['gradient_cliping']"),
        (None, "sparse_attention", "refused keys is ['sparse_attention']"),
        ("zero_optimization", "mics_shard_size", "refused keys is ['mics_shard_size']"),
    ],
)
def test_a_key_that_deepspeed_ignores_or_refuses_is_found(
    place: str | None, key: str, message: str, tmp_path: Path
) -> None:
    folder = written(render(PLANS["zero 3"]), tmp_path)
    config = json.loads((folder / "ds_config.json").read_text())
    (config[place] if place else config)[key] = 1
    (folder / "ds_config.json").write_text(json.dumps(config))
    assert check_directory(folder).differences == (f"{message}, planned is []",)


@pytest.mark.parametrize(
    ("file", "text"),
    [("common.sh", "MODEL=(\n"), ("run_node_0.sh", ""), ("common.sh", "A='\n")],
)
def test_a_directory_that_makes_no_sense_is_refused(file: str, text: str, tmp_path: Path) -> None:
    folder = written(render(PLANS["stages"]), tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(UsageError, match="cannot be read back"):
        check_directory(folder)
    (folder / file).unlink()
    with pytest.raises(UsageError):
        check_directory(folder)
