"""A user's own runs correct the shipped efficiencies, and the error is told honestly."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hetcli.catalog.efficiency import shipped_efficiency
from hetcli.cli import app
from hetcli.perf.validation.fit import leave_one_source_out, publisher
from hetcli.perf.validation.knobs import MIN_ROWS, knobs, scaled
from hetcli.perf.validation.predict import predict_runs, runs_of
from hetcli.perf.validation.runs import Run
from hetcli.perf.validation.table import read_table

RUNS = Path(__file__).parents[2] / "published" / "training_runs.csv"
# Four publishers on one GPU type.
SOURCES = ("dgxc-benchmarking v25", "Megatron-LM examples/llama", "NeMo docs", "MosaicML")


def chosen(row: dict[str, str]) -> bool:
    return row["gpu"].startswith("H100") and any(each in row["source"] for each in SOURCES)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    with RUNS.open(newline="") as file:
        reader = csv.DictReader(file)
        kept = [row for row in reader if chosen(row)]
        assert reader.fieldnames
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, reader.fieldnames)
        writer.writeheader()
        writer.writerows(kept)
    return path


@pytest.fixture(scope="module")
def runs(small: Path) -> list[Run]:
    return runs_of(read_table(small))[0]


def test_releases_of_one_publisher_are_one_source() -> None:
    old = "NeMo docs r2.0; https://github.com/NVIDIA/NeMo/blob/r2.0.0/docs/a.md"
    new = "NeMo docs main; https://github.com/NVIDIA/NeMo/blob/main/docs/b.md"
    assert publisher(old) == publisher(new) == "NVIDIA/NeMo"
    assert publisher("a paper (arXiv:2104.04473) Table 2") == "2104.04473"
    assert publisher("my own log") == "my own log"


def test_no_term_is_turned_by_fewer_runs_than_stated(runs: list[Run]) -> None:
    assert len(knobs(runs)) >= 1
    assert knobs(runs[: MIN_ROWS - 1]) == []


def test_a_fit_finds_back_what_was_changed(runs: list[Run]) -> None:
    # Runs that a table with slower cards gives exactly: the fit must come to that table's seconds.
    shipped = shipped_efficiency()
    turned = next(knob for knob in knobs(runs) if knob.name.startswith("sustained"))
    slower = scaled(shipped, {turned: np.log(0.8)}, {})
    seconds = predict_runs(runs, slower)

    measured = [replace(run, measured_s=each) for run, each in zip(runs, seconds, strict=True)]
    fitted, left_out = leave_one_source_out(measured, shipped)
    before = np.abs(np.log(np.array(predict_runs(runs, shipped)) / np.array(seconds)))
    assert np.median(before) > 0.05
    assert np.median(np.abs(fitted.errors)) < np.median(before) / 3
    # Fits that never saw a source must find it too: the cards are the same.
    assert len(left_out["publisher"]) == len(runs)
    assert np.median(np.abs(left_out["publisher"])) < np.median(before) * 0.7


@pytest.fixture(scope="module")
def calibrated(
    small: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("fit") / "efficiency.json"
    result = CliRunner().invoke(app, ["fit", str(small), "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return out, document


def test_fit_says_what_it_changed_and_how_far_that_carries(
    calibrated: tuple[Path, dict[str, Any]],
) -> None:
    _, document = calibrated
    errors = document["errors"]
    assert set(errors) == {"shipped", "fitted", "without_own_source"}
    assert errors["fitted"]["median_abs_pct"] <= errors["shipped"]["median_abs_pct"]
    assert all(factor["rows"] >= MIN_ROWS for factor in document["factors"])
    rows = sum(each["rows"] for each in document["left_out"].values())
    assert rows == errors["fitted"]["rows"]
    assert len(document["left_out"]) >= 3


def test_validate_judges_by_the_fitted_table(
    small: Path, calibrated: tuple[Path, dict[str, Any]]
) -> None:
    out, document = calibrated
    result = CliRunner().invoke(app, ["validate", str(small), "--efficiency", str(out), "--json"])
    assert result.exit_code == 0, result.output
    time = json.loads(result.stdout)["time"]
    assert time["median_abs_pct"] == pytest.approx(document["errors"]["fitted"]["median_abs_pct"])


def test_too_few_runs_are_refused(tmp_path: Path, small: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("".join(small.read_text().splitlines(keepends=True)[:4]))
    result = CliRunner().invoke(app, ["fit", str(path)])
    assert result.exit_code == 2
    assert "fewer than 10" in result.stderr


def test_a_file_without_efficiencies_is_refused(tmp_path: Path, small: Path) -> None:
    path = tmp_path / "efficiency.json"
    path.write_text("{}")
    result = CliRunner().invoke(app, ["validate", str(small), "--efficiency", str(path)])
    assert result.exit_code == 2
    assert "no table of efficiencies" in result.stderr
