"""`hetcli report` and `hetcli compare` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetcli.cli import app
from hetcli.spec.base import Origin
from hetcli.spec.hardware import ComputeRates, HardwareFile

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    arguments = ["estimate", "--cluster", "A100:8+V100:8", "--model", "qwen2.5-1.5b", "--gbs", "64"]
    degrees = ["--seq-len", "2048", "--tp", "2", "--pp", "2", "-o", str(path), "-q"]
    assert RUNNER.invoke(app, [*arguments, *degrees]).exit_code == 0
    return path


def test_forms_follow_the_suffix(plan: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("r.html", "r.md", "trace.json")]
    options = [word for file in files for word in ("-o", str(file))]
    done = RUNNER.invoke(app, ["report", str(plan), *options])
    assert done.exit_code == 0
    assert done.stdout == ""
    assert [line for line in done.stderr.splitlines() if line] == [f"wrote {f}" for f in files]
    assert files[0].read_text().startswith("<!doctype html>")
    assert files[1].read_text().startswith("## `qwen2.5-1.5b on ")
    assert json.loads(files[2].read_text())["traceEvents"]


def test_without_a_file_the_terminal_tells_the_story(plan: Path) -> None:
    done = RUNNER.invoke(app, ["report", str(plan)])
    assert done.exit_code == 0
    for part in (
        "Memory of the fullest device",
        "One step of",
        "left to right",
        "Tokens/s against",
    ):
        assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_json_carries_plan_timeline_and_trade(plan: Path) -> None:
    document = json.loads(RUNNER.invoke(app, ["report", str(plan), "--json"]).stdout)
    assert document["schema_version"] == 1
    assert document["plan"] == json.loads(plan.read_text())
    assert document["timeline"]["end"] == round(document["plan"]["predicted"]["step_time_s"] * 1e6)
    assert document["trade"]["plans"][0]["best"]


@pytest.mark.parametrize(
    ("form", "start"), [("html", "<!doctype html>"), ("md", "## `"), ("trace", '{"traceEvents"')]
)
def test_format_alone_writes_to_stdout(plan: Path, form: str, start: str) -> None:
    done = RUNNER.invoke(app, ["report", str(plan), "--format", form])
    assert done.exit_code == 0
    assert done.stdout.lstrip().startswith(start)
    piped = RUNNER.invoke(app, ["report", "-", "--format", form, "-o", "-"], plan.read_text())
    assert piped.stdout == done.stdout


def test_a_suffix_that_says_nothing_is_refused(plan: Path, tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["report", str(plan), "-o", str(tmp_path / "report.pdf")])
    assert done.exit_code == 2
    assert "--format" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "x.json"
    other.write_text('{"schema_version": 1}')
    assert RUNNER.invoke(app, ["report", str(other)]).exit_code == 2
    assert RUNNER.invoke(app, ["compare", str(other), str(other)]).exit_code == 2


def test_compare_needs_two_and_puts_them_side_by_side(plan: Path) -> None:
    assert RUNNER.invoke(app, ["compare", str(plan)]).exit_code == 2
    done = RUNNER.invoke(app, ["compare", str(plan), str(plan)])
    assert done.exit_code == 0
    assert "step time" in done.stdout
    table = RUNNER.invoke(app, ["compare", str(plan), str(plan), "--format", "md"]).stdout
    assert table.startswith("|  | `")
    document = json.loads(RUNNER.invoke(app, ["compare", str(plan), str(plan), "--json"]).stdout)
    assert len(document["plans"]) == 2


def test_compare_shows_a_plan_before_and_after_its_rates_were_corrected(
    plan: Path, tmp_path: Path
) -> None:
    used = {device["gpu"] for device in json.loads(plan.read_text())["predicted"]["devices"]}
    precision = json.loads(plan.read_text())["parallelism"]["precision"]
    slow = tuple(
        ComputeRates(
            device=gpu,
            dtype=precision,
            flop_per_s=1e12,
            left_s=0.0,
            right_s=0.0,
            output_s=0.0,
            launch_s=0.0,
            origin=Origin.MEASURED,
            rows=1,
            residual=None,
            versus_shipped=None,
            source="train.log",
        )
        for gpu in sorted(used)
    )
    path = tmp_path / "corrected.json"
    changes = []
    for compute in ((), slow):
        fitted = HardwareFile(name="mine", hetcli_version="0", compute=compute)
        path.write_text(fitted.model_dump_json())
        done = RUNNER.invoke(app, ["compare", str(plan), "--hardware", str(path), "--json"])
        before, after = json.loads(done.stdout)["plans"]
        assert after["layers"] == before["layers"]
        assert after["gap"] is None
        changes.append(after["step_time_change"])
    assert changes[0] == 0
    assert changes[1] > 1
