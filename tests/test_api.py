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


def test_a_record_and_flags_contradict_each_other() -> None:
    workload = Pretrain(global_batch=64, sequence=2048)
    with pytest.raises(UsageError, match="guess"):
        hetcli.plan("A100:8", "qwen2.5-1.5b", workload=workload, global_batch=32)
