"""The functions say what the commands say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hetcli
from hetcli.cli import app
from hetcli.errors import UsageError
from hetcli.spec.workload import Pretrain

RUNNER = CliRunner()
WORK = ("--cluster", "A100:8+V100:8", "--model", "qwen2.5-1.5b", "--gbs", "64", "--seq-len", "2048")


def test_every_public_name_exists() -> None:
    assert all(hasattr(hetcli, name) for name in hetcli.__all__)
    assert all(hasattr(hetcli.api, name) for name in hetcli.api.__all__)
    assert dir(hetcli) == sorted(hetcli.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        _ = hetcli.plann  # type: ignore[attr-defined]


def test_importing_hetcli_imports_no_library() -> None:
    script = "import hetcli, sys; print(*{'numpy', 'scipy', 'pydantic', 'rich'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


def test_plan_is_that_of_the_command() -> None:
    options = hetcli.PlanOptions(tensor_parallel=2)
    found = hetcli.plan(
        "A100:8+V100:8", "qwen2.5-1.5b", global_batch=64, sequence=2048, options=options
    )
    printed = RUNNER.invoke(app, ["plan", *WORK, "--tp", "2", "--json"])
    assert json.loads(found.model_dump_json()) == json.loads(printed.stdout)


def test_estimate_is_that_of_the_command() -> None:
    request = hetcli.EstimateRequest(tensor_parallel=2, pipeline_parallel=2)
    workload = Pretrain(global_batch=64, sequence=2048)
    found = hetcli.estimate("A100:8+V100:8", "qwen2.5-1.5b", workload=workload, request=request)
    printed = RUNNER.invoke(app, ["estimate", *WORK, "--tp", "2", "--pp", "2", "--json"])
    assert json.loads(found.model_dump_json()) == json.loads(printed.stdout)


def test_a_plan_is_written_read_exported_and_reported(tmp_path: Path) -> None:
    request = hetcli.EstimateRequest(tensor_parallel=2, pipeline_parallel=2)
    found = hetcli.estimate(
        "A100:8+V100:8", "qwen2.5-1.5b", global_batch=64, sequence=2048, request=request
    )
    hetcli.api.write_plan(found, tmp_path / "plan.json")
    assert hetcli.api.read_plan(tmp_path / "plan.json") == found
    hetcli.api.export(found, tmp_path / "launch")
    assert (tmp_path / "launch" / "README.md").exists()
    for name, start in (("r.html", "<!doctype"), ("r.md", "## "), ("t.json", '{"traceEvents"')):
        hetcli.api.report(found, tmp_path / name)
        assert (tmp_path / name).read_text().lstrip().startswith(start)
    with pytest.raises(UsageError, match="suffix"):
        hetcli.api.report(found, tmp_path / "r.pdf")


def test_a_failed_device_is_replanned_and_compared() -> None:
    found = hetcli.plan("A100:8+V100:8", "qwen2.5-1.5b", global_batch=64, sequence=2048)
    lost = found.stages[0].devices[0]
    way, after = hetcli.api.replan(found, fail=[f"{lost.node}:{lost.index}"])
    assert lost not in [device for stage in after.stages for device in stage.devices]
    assert way.notes
    compared = hetcli.api.compare(found, after)["plans"]
    assert compared[1]["step_time_s"] == after.predicted.step_time_s
    assert compared[1]["step_time_change"] > 0


def test_a_log_stands_beside_its_plan_and_in_its_report(tmp_path: Path) -> None:
    found = hetcli.estimate("A100:2", "llama-3.2-1b", global_batch=16, sequence=2048)
    log = tmp_path / "train.log"
    slow = 2e3 * found.predicted.step_time_s
    log.write_text(
        "".join(
            f" iteration {at}/ 9 | elapsed time per iteration (ms): {slow:.1f} | "
            f"global batch size: 16 |\n"
            for at in range(1, 6)
        )
    )
    seen = hetcli.api.observe([log], found)
    assert seen.drift
    assert seen.step_time_s.error == pytest.approx(-0.5, abs=0.001)
    hetcli.api.report(found, tmp_path / "r.html", observation=seen)
    assert "drifted" in (tmp_path / "r.html").read_text()


def test_explain_is_that_of_the_command(tmp_path: Path) -> None:
    found = hetcli.estimate("A100:2", "llama-3.2-1b", global_batch=16, sequence=2048)
    hetcli.api.write_plan(found, tmp_path / "plan.json")
    path = str(tmp_path / "plan.json")
    printed = RUNNER.invoke(app, ["explain", path, "--no-what-if", "--json"])
    told = hetcli.api.explain(found, what_if=False)
    assert json.loads(told.model_dump_json()) == json.loads(printed.stdout)


def test_a_record_and_flags_contradict_each_other() -> None:
    workload = Pretrain(global_batch=64, sequence=2048)
    with pytest.raises(UsageError, match="guess"):
        hetcli.plan("A100:8", "qwen2.5-1.5b", workload=workload, global_batch=32)
