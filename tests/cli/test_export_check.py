"""`hetcli export --check`: the exit code says whether a directory describes its plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetcli.cli import app

sys.path.insert(0, str(Path(__file__).parents[1] / "export"))
from plans import cluster, group, llama, make_plan


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_written_directory_is_checked_and_an_edited_one_fails(tmp_path: Path) -> None:
    plan = make_plan(cluster(group("n[0-1]")), llama(), [20, 12], tensor=8)
    path, out = tmp_path / "plan.json", str(tmp_path / "launch")
    path.write_text(plan.model_dump_json())
    assert run("export", str(path), "-o", out)[0] == 0
    code, said = run("export", "--check", out, "--json")
    assert code == 0
    assert json.loads(said)["differences"] == []
    common = Path(out) / "common.sh"
    common.write_text(common.read_text().replace("Et*20|t*12L", "Et*16|t*16L"))
    code, said = run("export", "--check", out)
    assert code == 1


@pytest.mark.parametrize("arguments", [(), ("plan.json", "--check", "launch")])
def test_one_of_plan_and_check_is_needed(arguments: tuple[str, ...]) -> None:
    assert run("export", *arguments)[0] == 2
