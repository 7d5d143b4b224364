"""`hetcli explain` end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hetcli.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    result = run(
        *["plan", "--cluster", "A100-SXM4-80GB:4+V100-SXM2-32GB:4", "--model", "gpt2-xl"],
        *["--global-batch", "32", "-o", str(path)],
    )
    assert result.exit_code == 0, result.output
    return str(path)


def test_every_section_is_shown_in_100_columns(plan_file: str) -> None:
    result = run("explain", plan_file)
    assert result.exit_code == 0, result.output
    for words in ("binds", "busiest stage", "Left out by the search", "Next best", "What if"):
        assert words in result.stdout
    assert "one more node of V100-SXM2-32GB" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_the_document_is_the_same_on_stdout_and_in_a_file(plan_file: str, tmp_path: Path) -> None:
    out = tmp_path / "explanation.json"
    result = run("explain", plan_file, "--json", "--no-what-if", "-o", str(out))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == json.loads(out.read_text())
    assert document["schema_version"] == 1
    assert document["what_if"] == []
    assert document["levers"]


def test_what_is_no_plan_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    assert run("explain", str(path)).exit_code == 2
