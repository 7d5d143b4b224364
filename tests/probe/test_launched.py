"""Slurm and torchrun start the profiler on every node; node 0 leads, the others come to it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from hetcli.errors import UsageError
from hetcli.probe.launched import Placement, placement
from hetcli.spec.profile import Profile
from hetcli.spec.source import read_document

ROOT = Path(__file__).parents[2]

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "gpu-[07-10]",
}
TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "10",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
}


def test_a_process_by_itself_has_no_placement() -> None:
    assert placement({}) is None
    assert placement({"SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "1"}) is None
    assert placement({**TORCHRUN, "GROUP_WORLD_SIZE": "1"}) is None


def test_slurm_names_nodes_and_their_first_process() -> None:
    found = placement(SLURM)
    assert found == Placement(
        launcher="Slurm", node=1, nodes=4, first=False, leader="gpu-07", port=30311, token="4711.0"
    )
    assert placement({**SLURM, "SLURM_LOCALID": "0"}).first  # type: ignore[union-attr]


def test_torchrun_with_unequal_processes_still_knows_its_nodes() -> None:
    found = placement(TORCHRUN)
    assert found is not None
    assert (found.node, found.nodes, found.first) == (1, 2, False)
    # Its own rendezvous keeps MASTER_PORT.
    assert (found.leader, found.port) == ("10.0.0.1", 29501)


def test_a_job_template_sets_rank_and_world_only() -> None:
    found = placement(
        {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "job-0.job", "MASTER_PORT": "29500"}
    )
    assert found is not None
    assert (found.node, found.nodes, found.first) == (2, 3, True)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({**SLURM, "SLURM_NODEID": "x"}, "SLURM_NODEID=x"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"RANK": "0", "WORLD_SIZE": "many"}, "WORLD_SIZE=many"),
    ],
)
def test_variables_that_contradict_are_refused(environment: Mapping[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        placement(environment)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        port: int = listening.getsockname()[1]
        return port


def start(folder: Path, name: str, **variables: str) -> subprocess.Popen[str]:
    arguments = ["--device", "cpu", "--quick", "--only", "between", "--name", name]
    return subprocess.Popen(
        [sys.executable, "-m", "hetcli", "profile", *arguments, "-o", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )


def pairs(folder: Path) -> set[tuple[str, ...]]:
    return {
        row.nodes
        for path in folder.glob("*.json")
        for row in read_document(path, Profile).links
        if row.operation == "send_recv"
    }


def test_two_nodes_of_a_launcher_measure_their_link(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # The processes' own port is one above.
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1)}
    other = start(tmp_path / "other", "b", RANK="1", **job)
    first = start(tmp_path / "first", "a", RANK="0", **job)
    _, said = first.communicate(timeout=150)
    assert first.returncode == 0, said
    _, said = other.communicate(timeout=20)
    assert other.returncode == 0, said
    assert pairs(tmp_path / "first") == {("a", "b"), ("b", "a")}
    assert not (tmp_path / "other").exists()


def test_several_processes_of_a_node_leave_the_work_to_the_first(tmp_path: Path) -> None:
    started = time.monotonic()
    process = start(
        tmp_path / "p", "a", RANK="1", WORLD_SIZE="4", LOCAL_RANK="1", GROUP_RANK="0",
        GROUP_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port() - 1),
    )  # fmt: skip
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (0, ""), stderr
    assert time.monotonic() - started < 20
    assert not (tmp_path / "p").exists()


def test_a_leader_that_dies_ends_the_others(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    port = free_port()
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}
    first = start(tmp_path / "first", "a", RANK="0", **job)
    other = start(tmp_path / "other", "b", RANK="1", **job)
    end = time.monotonic() + 60
    while not (tmp_path / "first").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert (tmp_path / "first").exists()
    first.kill()
    first.communicate(timeout=20)
    _, said = other.communicate(timeout=30)
    assert other.returncode == 3
    assert "node 0 (127.0.0.1) went away" in said


def test_a_stranger_at_the_port_is_sent_away(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    port = free_port()
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}
    first = start(tmp_path / "first", "a", RANK="0", TORCHELASTIC_RUN_ID="mine", **job)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            time.sleep(0.1)
            continue
        break
    with stranger:
        stranger.sendall(b'{"token": "guess", "node": 1, "name": "evil"}\n')
        stranger.settimeout(20)
        assert stranger.recv(1) == b""
    other = start(tmp_path / "other", "b", RANK="1", TORCHELASTIC_RUN_ID="mine", **job)
    _, said = first.communicate(timeout=150)
    assert first.returncode == 0, said
    other.communicate(timeout=20)
    assert pairs(tmp_path / "first") == {("a", "b"), ("b", "a")}


def test_torchrun_itself_starts_it_on_two_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists() and shutil.which("torchrun") is None:
        pytest.skip("torch is installed without torchrun")
    port = free_port()
    nodes = [
        subprocess.Popen(
            [
                str(torchrun), "--nnodes", "2", "--node-rank", str(rank),
                # Unequal processes, as launchers of mixed nodes have them.
                "--nproc-per-node", str(1 + rank),
                "--master-addr", "127.0.0.1", "--master-port", str(port),
                "--no-python", sys.executable, "-m", "hetcli", "profile", "--device", "cpu",
                "--quick", "--only", "between", "-o", str(tmp_path / "profiles"),
                "--name", f"n{rank}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    said = [node.communicate(timeout=200)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert pairs(tmp_path / "profiles") == {("n0", "n1"), ("n1", "n0")}
