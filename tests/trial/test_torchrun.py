"""Processes that a launcher started find their device in the plan."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
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


def torchrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--log-dir",
        "/dev/null",
    ]
    return subprocess.run(
        [*command, "--nproc-per-node", "2", "-m", "hetcli", "trial", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def two_ranks(folder: Path) -> str:
    given = configuration([stage([(0, 4)], [(devices(2, 2), 4)], tp=2)], batch=4)
    file = folder / "plan.json"
    made = plan(given, model(), cluster()).model_copy(update={"target": "megatron"})
    file.write_text(made.model_dump_json())
    return str(file)


def test_the_time_limit_holds_under_torchrun_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    begun = time.monotonic()
    # Long enough for the ranks to have begun, on a slow machine too.
    done = torchrun(two_ranks(tmp_path), "--steps", "1000000", "--time-limit", "8", "--json")
    assert done.returncode != 0
    assert "the time limit of 8 s is over" in done.stderr
    # Of the rank whose time is up first; the other one may lose it before its own is.
    assert re.search(r"rank [01] \(.*, local rank [01]\): last ", done.stderr)
    assert done.stdout == ""
    assert time.monotonic() - begun < 120


def test_a_rank_that_dies_under_torchrun_is_reported_and_nobody_is_left(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file, mark = two_ranks(tmp_path), f"mark-{tmp_path.name}"

    def kill() -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            ranks = [pid for pid, environment in running(mark) if "RANK=1" in environment]
            # Each rank's process takes a while to get from its start to its steps.
            if ranks and time.monotonic() > end - 112:
                os.kill(ranks[0], signal.SIGKILL)
                return
            time.sleep(0.1)

    threading.Thread(target=kill, daemon=True).start()
    done = torchrun(file, "--steps", "100000", "--stall", "30", "--time-limit", "90", MARK=mark)
    assert done.returncode != 0
    assert "Signal 9" in done.stderr or "SIGKILL" in done.stderr
    assert done.stdout == ""
    assert not running(mark)


def running(mark: str) -> list[tuple[int, list[str]]]:
    """Process ids with their variables, of those that have `mark` among these."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_text().split("\0")
        except OSError:
            continue
        if f"MARK={mark}" in environment:
            found.append((int(folder.name), environment))
    return found


def test_an_exported_directory_starts_a_trial_and_only_rank_0_prints(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "launch"
    exported = subprocess.run(
        [sys.executable, "-m", "hetcli", "export", two_ranks(tmp_path), "-o", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert exported.returncode == 0, exported.stderr
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "torchrun"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n')
    script.chmod(0o755)
    done = subprocess.run(
        ["bash", str(folder / "run_node_0.sh"), "--trial", "--steps", "1", "--json"],
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PREFLIGHT": "off",
            "MEGATRON_PATH": str(tmp_path),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trial = Trial.model_validate_json(done.stdout)
    assert [each.device for each in trial.devices] == [on("n0", 2), on("n0", 3)]
    assert not list(tmp_path.glob("torchelastic*"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
