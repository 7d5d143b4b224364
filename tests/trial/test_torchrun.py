"""Processes that a launcher started find their device in the plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import cluster, configuration, devices, model, plan, stage

from hetcli.errors import EnvironmentFailure
from hetcli.spec.plan import Plan, PlanDevice
from hetcli.spec.trial import Trial
from hetcli.trial.torchrun import launched, place

ROOT = Path(__file__).resolve().parents[2]


def two_nodes() -> Plan:
    given = configuration(
        [
            stage([(0, 2)], [(devices(2, 2, "n-1"), 4)], tp=2),
            stage([(2, 2)], [(devices(0, 1, "n-0"), 4)]),
        ],
        batch=4,
    )
    return plan(given, model(), cluster(nodes=2))


def on(node: str, index: int) -> PlanDevice:
    return PlanDevice(node=node, index=index)


def test_host_names_of_the_plan_decide() -> None:
    ranks = [(None, "n-0.example", 0), (None, "n-1", 0), (None, "n-1", 1)]
    assert place(two_nodes(), ranks) == (on("n-0", 0), on("n-1", 2), on("n-1", 3))


def test_a_given_name_wins_over_the_host_name() -> None:
    ranks = [("n-1", "n-0", 0), ("n-1", "n-0", 1), ("n-0", "n-0", 0)]
    assert place(two_nodes(), ranks) == (on("n-1", 2), on("n-1", 3), on("n-0", 0))


def test_unknown_hosts_stand_for_the_nodes_in_the_order_of_the_plan() -> None:
    ranks = [(None, "x", 0), (None, "x", 1), (None, "y", 0)]
    assert place(two_nodes(), ranks) == (on("n-1", 2), on("n-1", 3), on("n-0", 0))


def test_a_process_too_many_is_an_error_that_says_what_to_start() -> None:
    ranks = [(None, "n-1", 0), (None, "n-1", 1), (None, "n-1", 2), (None, "n-0", 0)]
    with pytest.raises(EnvironmentFailure, match="rank 2 on n-1 has nothing to do") as caught:
        place(two_nodes(), ranks)
    assert "n-1 x 2, n-0 x 1" in caught.value.why


def test_a_device_without_a_process_is_an_error() -> None:
    with pytest.raises(EnvironmentFailure, match="1 devices of the plan have no process"):
        place(two_nodes(), [(None, "n-1", 0), (None, "n-1", 1)])


def test_a_launcher_is_known_by_its_variables() -> None:
    assert not launched({"RANK": "0"})
    assert launched({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "here"})


def test_torchrun_runs_the_command_and_only_rank_0_prints(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    given = configuration([stage([(0, 4)], [(devices(2, 2), 4)], tp=2)], batch=4)
    (tmp_path / "plan.json").write_text(plan(given, model()).model_dump_json())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = ["-m", "hetcli", "trial", str(tmp_path / "plan.json"), "--steps", "1", "--json"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trial = Trial.model_validate_json(done.stdout)
    assert [each.device for each in trial.devices] == [on("n0", 2), on("n0", 3)]
