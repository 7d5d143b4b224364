"""`plan` and `estimate` end to end: the promised document, and the same content everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hetcli.cli import app
from hetcli.spec.plan import Plan

INPUTS = [
    *["--cluster", "sample:dgx-a100-v100", "--model", "llama-3-8b"],
    *["--global-batch", "512", "--seq-len", "4096"],
]
WIDTH = 100


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


@pytest.fixture(scope="module")
def planned() -> dict[str, Any]:
    result = run("plan", *INPUTS, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_document_has_every_promised_field(planned: dict[str, Any]) -> None:
    assert planned["schema_version"] == 1
    assert set(planned["inputs"]) == {"cluster", "model", "workload"}
    assert planned["target"] == "megatron"
    predicted = planned["predicted"]
    assert predicted["step_time_s"] > 0
    assert predicted["tokens_per_s"] == pytest.approx(512 * 4096 / predicted["step_time_s"])
    assert 0 < predicted["mfu"] < 1
    assert "cost_per_step" in predicted
    assert sum(predicted["breakdown_s"].values()) == pytest.approx(predicted["step_time_s"])
    assert planned["certificate"]["lower_bound_s"] <= predicted["step_time_s"]
    assert planned["certificate"]["gap"] == pytest.approx(
        predicted["step_time_s"] / planned["certificate"]["lower_bound_s"] - 1
    )
    assert planned["alternatives"]
    assert planned["search"]["seen"] > 0


def test_stages_hold_every_layer_once_and_no_device_twice(planned: dict[str, Any]) -> None:
    stages = planned["stages"]
    assert sum(stage["layers"] for stage in stages) == 32
    devices = [(d["node"], d["index"]) for stage in stages for d in stage["devices"]]
    assert len(devices) == len(set(devices))
    for stage in stages:
        of_replicas = [d for replica in stage["replicas"] for d in replica["devices"]]
        assert of_replicas == stage["devices"]
        sequences = sum(r["micro_batches"] * r["micro_batch_size"] for r in stage["replicas"])
        assert sequences == 512


def test_memory_items_add_up_and_fit(planned: dict[str, Any]) -> None:
    margin = 1024**3
    for device in planned["predicted"]["devices"]:
        assert sum(i["memory_bytes"] for i in device["items"]) == device["peak_memory_bytes"]
        assert device["capacity_bytes"] - device["peak_memory_bytes"] == device["headroom_bytes"]
        assert device["headroom_bytes"] >= margin


def test_the_a100s_carry_more_layers_than_the_v100s(planned: dict[str, Any]) -> None:
    by_gpu: dict[str, list[int]] = {}
    for stage in planned["stages"]:
        by_gpu.setdefault(stage["gpu"][:4], []).append(stage["layers"])
    assert set(by_gpu) == {"A100", "V100"}
    assert min(by_gpu["A100"]) > max(by_gpu["V100"])


def test_the_same_inputs_give_the_same_bytes(planned: dict[str, Any]) -> None:
    assert json.loads(run("plan", *INPUTS, "--json").stdout) == planned


def test_estimate_of_the_planned_configuration_predicts_the_same(planned: dict[str, Any]) -> None:
    degrees = planned["parallelism"]
    result = run(
        "estimate",
        *INPUTS,
        *["--tp", str(degrees["tensor_parallel"]), "--pp", str(degrees["pipeline_parallel"])],
        *["--cp", str(degrees["context_parallel"]), "--mbs", str(degrees["micro_batch_size"])],
        *["--virtual-stages", str(degrees["virtual_stages"])],
        *["--zero", str(degrees["zero_stage"])],
        *["--recompute", planned["stages"][0]["recompute"]],
        *["--stage-layers", ",".join(str(stage["layers"]) for stage in planned["stages"])],
        "--json",
    )
    assert result.exit_code == 0, result.output
    estimated = json.loads(result.stdout)
    assert estimated["predicted"]["step_time_s"] == planned["predicted"]["step_time_s"]
    assert estimated["predicted"]["devices"] == planned["predicted"]["devices"]
    assert estimated["certificate"]["lower_bound_s"] is None


def test_text_is_at_most_a_page_wide_and_starts_with_the_answer() -> None:
    result = run("plan", *INPUTS)
    lines = result.stdout.splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[0] == "llama-3-8b on dgx-a100-v100 for megatron"
    assert lines[1].startswith("assumes 512 x 4,096 tokens")
    assert "a step" in lines[2] or "a step" in lines[3]
    for word in ("worst device", "Best plans", "Where the step goes", "no plan of the grid space"):
        assert word in result.stdout


@pytest.mark.parametrize("launcher", ["torchrun"])
def test_a_plan_travels_through_a_pipe_into_a_launch_directory(
    planned: dict[str, Any], launcher: str, tmp_path: Path
) -> None:
    document = run("plan", *INPUTS, "-o", "-", "-q").stdout
    assert json.loads(document) == planned
    out = tmp_path / "launch"
    result = run(
        *["export", "-", "--target", "megatron", "--launcher", launcher, "-o", str(out)],
        stdin=document,
    )
    assert result.exit_code == 0, result.output
    assert Plan.model_validate_json((out / "plan.json").read_text()).stages
    assert (out / "run_node_0.sh").stat().st_mode & 0o111


def test_a_target_that_cannot_run_the_plan_is_refused_with_a_command(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    # Megatron-LM splits the sequence inside tensor groups, which the DeepSpeed trainer cannot.
    degrees = ["--tp", "2", "--pp", "4", "--sequence-parallel"]
    assert run("estimate", *INPUTS, *degrees, "-o", str(plan)).exit_code == 0
    result = run("export", str(plan), "--target", "deepspeed", "-o", str(tmp_path / "launch"))
    assert result.exit_code == 1
    assert "hetcli plan" in result.stderr
    assert not (tmp_path / "launch").exists()


def test_a_deepspeed_plan_is_exported_for_deepspeed(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "launch"
    assert run("plan", *INPUTS, "--target", "deepspeed", "-o", str(plan)).exit_code == 0
    result = run("export", str(plan), "--launcher", "deepspeed", "-o", str(out))
    assert result.exit_code == 0, result.output
    assert json.loads((out / "ds_config.json").read_text())["zero_optimization"]["stage"] >= 0
