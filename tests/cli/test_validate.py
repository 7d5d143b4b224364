"""`validate` holds the predictor to other people's runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hetcli.cli import app

RUNS = Path(__file__).resolve().parent.parent / "published" / "training_runs.csv"
FIGURES = {"rows", "mean_abs_pct", "median_abs_pct", "p90_abs_pct", "bias_pct", "spearman"}


@pytest.fixture(scope="module")
def judged() -> dict[str, Any]:
    result = CliRunner().invoke(app, ["validate", str(RUNS), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_every_row_is_predicted_or_skipped_with_a_reason(judged: dict[str, Any]) -> None:
    with RUNS.open() as file:
        names = {row["id"] for row in csv.DictReader(file)}
    predicted = {row["id"] for row in judged["rows"]}
    skipped = {row["id"]: row["reason"] for row in judged["skipped"]}
    assert predicted | set(skipped) == names
    assert not predicted & set(skipped)
    assert all(skipped.values())
    assert judged["time"]["rows"] > 20


def test_the_figures_are_those_of_the_rows(judged: dict[str, Any]) -> None:
    assert set(judged["time"]) >= FIGURES | {"skipped"}
    errors = [
        abs(row["predicted_s"] / row["measured_s"] - 1) * 100
        for row in judged["rows"]
        if row["measured_s"] and not row["noisy"]
    ]
    assert judged["time"]["mean_abs_pct"] == pytest.approx(sum(errors) / len(errors))
    by_gpu = judged["time"]["by_gpu"].values()
    assert sum(figures["rows"] for figures in by_gpu) == judged["time"]["rows"]


def test_the_text_is_a_page_wide_and_names_the_worst_rows(judged: dict[str, Any]) -> None:
    shown = CliRunner().invoke(app, ["validate", str(RUNS)]).stdout
    assert all(len(line) <= 100 for line in shown.splitlines())
    worst = max(judged["rows"], key=lambda row: abs(row["predicted_s"] / row["measured_s"] - 1))
    assert worst["id"] in shown
    assert f"Skipped: {len(judged['skipped'])} rows" in shown


def test_a_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 2
    assert "error: " in result.stderr
