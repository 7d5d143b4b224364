"""Rates that were fitted to measurements are what plans are made with, and stay with the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hetcli.catalog.efficiency import shipped_efficiency
from hetcli.cli import app

INPUTS = ["--cluster", "A100-SXM4-80GB:8", "--model", "llama-2-7b", "--gbs", "16"]
INPUTS += ["--seq-len", "2048"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def hardware(tmp_path: Path) -> Path:
    """An A100 that multiplies at a fifth of its data sheet's 312 TFLOP/s."""
    rates = {
        "device": "A100-SXM4-80GB",
        "dtype": "bf16",
        "flop_per_s": 62.4e12,
        "left_s": 0.0,
        "right_s": 0.0,
        "output_s": 0.0,
        "launch_s": 5e-6,
        "origin": "fitted",
        "rows": 40,
        "residual": 0.02,
        "versus_shipped": 3.5,
        "source": "profiles",
    }
    document = {"name": "slow A100", "hetcli_version": "0", "compute": [rates]}
    path = tmp_path / "hardware.json"
    path.write_text(json.dumps(document))
    return path


def seconds(result: Result) -> float:
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return float(document["predicted"]["step_time_s"])


@pytest.mark.parametrize("command", ["plan", "estimate"])
def test_plans_are_made_with_the_rates_of_the_file(
    command: str, hardware: Path, tmp_path: Path
) -> None:
    shipped = seconds(run(command, *INPUTS, "--json"))
    fitted = run(command, *INPUTS, "--hardware", hardware, "--json")
    # 6 x 6.7e9 x 16 x 2048 FLOPs on eight such cards take 2.6 s at least.
    assert seconds(fitted) > max(2.6, 2 * shipped)
    # The plan carries the rates: what reads it computes with them.
    plan = tmp_path / "plan.json"
    plan.write_text(fitted.stdout)
    assert json.loads(fitted.stdout)["inputs"]["cluster"]["hardware"]["name"] == "slow A100"
    trace = tmp_path / "trace.json"
    assert run("report", plan, "-o", trace).exit_code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    last = max(event["ts"] + event.get("dur", 0) for event in events if "ts" in event)
    assert last / 1e6 == pytest.approx(seconds(fitted), rel=0.01)


def test_a_rate_above_the_data_sheet_is_believed(hardware: Path) -> None:
    document = json.loads(hardware.read_text())
    document["compute"][0]["flop_per_s"] = 2 * 312e12
    hardware.write_text(json.dumps(document))
    shipped = seconds(run("estimate", *INPUTS, "--json"))
    assert seconds(run("estimate", *INPUTS, "--hardware", hardware, "--json")) < shipped


def test_efficiencies_fitted_to_runs_are_planned_with(tmp_path: Path) -> None:
    shipped = shipped_efficiency()
    slower = tuple(
        entry.model_copy(
            update={
                "sustained": {
                    dtype: term.model_copy(update={"value": term.value / 4})
                    for dtype, term in entry.sustained.items()
                }
            }
        )
        for entry in shipped.devices
    )
    path = tmp_path / "efficiency.json"
    table = shipped.model_copy(update={"devices": slower})
    path.write_text(table.model_dump_json(exclude_none=True))
    before = seconds(run("estimate", *INPUTS, "--json"))
    after = run("estimate", *INPUTS, "--efficiency", path, "--json")
    assert seconds(after) > 2 * before
    plan = tmp_path / "plan.json"
    plan.write_text(after.stdout)
    shown = run("report", plan, "-o", tmp_path / "plan.md")
    assert shown.exit_code == 0, shown.stderr
    assert "efficiencies fitted to runs" in (tmp_path / "plan.md").read_text()
    refused = run("estimate", *INPUTS, "--efficiency", plan)
    assert refused.exit_code == 2
    assert "no table of efficiencies" in refused.stderr


def test_the_terminal_says_whose_rates_they_are(hardware: Path) -> None:
    shown = run("plan", *INPUTS, "--hardware", hardware)
    assert shown.exit_code == 0, shown.stderr
    assert "rates of slow A100" in " ".join(shown.stdout.split())


def test_another_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "hardware.json"
    path.write_text('{"name": "x",\n "hetcli_version": "0",\n "compute": [{"device": 3}]}')
    refused = run("plan", *INPUTS, "--hardware", path)
    assert refused.exit_code == 2
    assert f"{path}:3" in refused.stderr.replace("\n", "")
