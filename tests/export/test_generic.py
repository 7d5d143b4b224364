"""A user's own trainer: every rank finds its part of any plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plans import cluster, group, llama, make_plan, uneven_plan
from recording import node_scripts, stage, written

from hetcli.export import render
from hetcli.export.readback import check_directory
from hetcli.spec.plan import Plan

WHERE = cluster(group("a", gpus=4), group("b", gpus=3))
PLANS = {
    "interleaved": make_plan(WHERE, llama(), [[8, 8], [8, 8]], tensor=2),
    "unlike stages": uneven_plan(
        WHERE, llama(), [(20, 2, 2, 1), (12, 1, 3, 1)], micro_batches=12, target="free"
    ),
    "replicas on nodes": make_plan(
        cluster(group("n[0-1]", gpus=3)), llama(), [12, 11, 9], data=2, order="replicas"
    ),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "kubernetes"])
def test_any_plan_is_written_and_read_back(name: str, launcher: str, tmp_path: Path) -> None:
    launch = render(PLANS[name], target="generic", launcher=launcher)
    checked = check_directory(written(launch, tmp_path))
    assert checked.target == "generic"
    assert checked.differences == ()


def roles(plan: Plan) -> list[dict[str, object]]:
    return list(json.loads(render(plan, target="generic")["ranks.json"])["ranks"])


def test_every_device_of_the_plan_has_one_rank_with_its_part() -> None:
    for plan in PLANS.values():
        ranks = roles(plan)
        assert [role["rank"] for role in ranks] == list(range(len(ranks)))
        found = {
            (role["node"], role["device"]): (role["stage"], role["replica"], role["layers"])
            for role in ranks
        }
        planned = {
            (device.node, device.index): (number, position)
            for number, stage_ in enumerate(plan.stages)
            for position, replica in enumerate(stage_.replicas)
            for device in replica.devices
        }
        assert {key: value[:2] for key, value in found.items()} == planned
        nodes = [role["node"] for role in ranks]
        assert nodes == sorted(nodes, key=nodes.index)
        for replica in range(len(plan.stages[0].replicas)):
            held = sorted(
                (first, count)
                for role in ranks
                if role["replica"] == replica and role["tensor_rank"] == 0
                for first, count in role["layers"]  # type: ignore[attr-defined]
            )
            if all(len(stage_.replicas) == len(plan.stages[0].replicas) for stage_ in plan.stages):
                assert [first for first, _ in held] == [
                    sum(count for _, count in held[:position]) for position in range(len(held))
                ]


def test_the_trainer_is_started_with_the_plan_in_its_environment(tmp_path: Path) -> None:
    launch = render(PLANS["replicas on nodes"], target="generic")
    folder = written(launch, tmp_path)
    trainer = tmp_path / "my $(trainer).py"
    trainer.touch()
    stubs = stage(tmp_path / "stubs")
    for script in node_scripts(launch):
        result, [call] = stubs.run(folder, script, "--mine", TRAINER=str(trainer))
        assert result.returncode == 0, result.stderr
        assert call.argv[-2:] == [str(trainer), "--mine"]
        assert call.env["HETCLI_RANKS"] == str(folder / "ranks.json")
        assert call.env["HETCLI_PLAN"] == str(folder / "plan.json")
        assert call.env["STEPS"] == "100"


def test_edited_ranks_are_found_out(tmp_path: Path) -> None:
    folder = written(render(PLANS["interleaved"], target="generic"), tmp_path)
    path = folder / "ranks.json"
    path.write_text(path.read_text().replace('"stage": 1', '"stage": 0', 1))
    [difference] = check_directory(folder).differences
    assert "ranks.json" in difference
