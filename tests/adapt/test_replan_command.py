"""`hetcli replan`, as it is typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trial"))
from running_plans import lost_node, resihp
from tiny import cluster, configuration, devices, model, plan, stage

from hetcli.cli import app
from hetcli.spec.plan import Plan


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replan", *arguments])


def test_the_command_writes_a_plan_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(resihp().model_dump_json())
    out = tmp_path / "new.json"
    done = run(str(tmp_path / "plan.json"), "--fail", "n-1:0", "-o", str(out), "--json")
    assert done.exit_code == 0, done.stderr
    new = Plan.model_validate_json(out.read_text())
    assert sum(each.layers for each in new.stages) == 12
    assert json.loads(done.stdout)["lost"] == [{"node": "n-1", "index": 0}]


def test_the_command_shows_the_ways_and_refuses_to_do_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(lost_node().model_dump_json())
    times = ("--mtbf", "200h", "--repair", "1d")
    shown = run(str(tmp_path / "plan.json"), "--fail", "n-7", *times)
    assert shown.exit_code == 0, shown.stderr
    for word in ("drop the replica", "new plan", "resharded", "checkpoint every", "nodes that pay"):
        assert word in " ".join(shown.stdout.split())
    assert run(str(tmp_path / "plan.json")).exit_code == 2
    assert run(str(tmp_path / "plan.json"), "--fail", "n-7", "--mtbf", "soon").exit_code == 2


def test_devices_left_that_run_nothing_are_a_no(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(resihp().model_dump_json())
    faults = [word for node in range(3) for word in ("--fail", f"n-{node}")]
    assert run(str(tmp_path / "plan.json"), *faults).exit_code == 1


def test_unlike_models_keep_their_layers(tmp_path: Path) -> None:
    given_ = plan(
        configuration(
            [
                stage([(0, 2)], [(devices(0, 2), 4)], tp=2),
                stage([(2, 2)], [(devices(2, 2), 4)], tp=2),
            ],
            batch=4,
        ),
        model(),
        cluster(),
    )
    (tmp_path / "plan.json").write_text(given_.model_dump_json())
    done = run(str(tmp_path / "plan.json"), "--fail", "n0:3", "--any-target", "--json")
    assert done.exit_code == 0, done.stderr
    options = json.loads(done.stdout)["options"]
    assert any(each["tensor_parallel"] == [[2, 1]] for each in options)
