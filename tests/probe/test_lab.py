"""Four hosts on this machine, each a network namespace with a shaped link, profiled through ssh.

Needs root for the namespaces. The ssh client is a stand-in that enters the host's namespace; the
agents, their measuring processes, gloo and the shaped links are real.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab, lab, reason_why_not

from hetcli.spec.cluster import Cluster
from hetcli.spec.profile import Profile
from hetcli.spec.source import read_document

pytest.importorskip("torch")

WHY_NOT = reason_why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

# Megabits a second: the third host is behind half the rate of its peers.
RATES = {"n0": 100.0, "n1": 100.0, "n2": 50.0, "n3": 100.0}
HOSTS = ["--hosts", "n[0-3]", "--device", "cpu", "--quick", "--only", "between"]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Lab]:
    with lab(RATES, tmp_path) as made:
        yield made


def start(made: Lab, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hetcli", "profile", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(made.environment),
    )


def profiles(folder: Path) -> dict[str, Profile]:
    return {path.stem: read_document(path, Profile) for path in sorted(folder.glob("*.json"))}


def pairs(found: dict[str, Profile]) -> set[tuple[str, ...]]:
    return {
        row.nodes
        for profile in found.values()
        for row in profile.links
        if row.scope == "inter_node" and row.operation == "send_recv"
    }


def wait_for_pairs(folder: Path, seconds: float = 200) -> None:
    """Until the first link between two hosts was measured."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            if pairs(profiles(folder)):
                return
        time.sleep(0.2)
    raise AssertionError("no pair was measured")


def nobody_left(made: Lab, within: float = 10) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not any(made.processes(host) for host in made.hosts):
            return True
        time.sleep(0.1)
    return False


def test_the_cluster_has_the_configured_rates_and_names_the_slow_host(
    hosts: Lab, tmp_path: Path
) -> None:
    folder, cluster_file = tmp_path / "profiles", tmp_path / "cluster.yaml"
    process = start(hosts, *HOSTS, "--only", "compute", "--seconds", "2", "-o", str(folder))
    _, stderr = process.communicate(timeout=500)
    assert process.returncode == 0, stderr
    assert nobody_left(hosts)
    found = profiles(folder)
    assert set(found) == set(RATES)
    assert all(profile.complete for profile in found.values())

    done = subprocess.run(
        [sys.executable, "-m", "hetcli", "profile", "merge", str(folder), "-o", str(cluster_file)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(hosts.environment),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    cluster = read_document(cluster_file, Cluster)
    assert cluster.node_count == 4
    assert {tuple(pair.nodes) for pair in cluster.pairs} == {
        (one, other) for one in RATES for other in RATES if one < other
    }
    for pair in cluster.pairs:
        configured = min(RATES[node] for node in pair.nodes) * 1e6 / 8
        assert pair.rate == pytest.approx(configured, rel=0.10), pair.nodes
    warnings = [line for line in done.stderr.splitlines() if "its links reach" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: n2: its links reach")


def test_a_host_that_dies_costs_its_own_rows(hosts: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    process = start(hosts, *HOSTS, "-o", str(folder))
    wait_for_pairs(folder)
    died = time.monotonic()
    for pid in hosts.processes("n3"):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(_pidfd(pid), signal.SIGKILL)
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 3, stderr
    assert time.monotonic() - died < 150
    assert nobody_left(hosts)
    alive = {"n0", "n1", "n2"}
    found = profiles(folder)
    assert {pair for pair in pairs(found) if set(pair) <= alive} == {
        (one, other) for one in alive for other in alive if one != other
    }
    missing = [each for profile in found.values() for each in profile.missing]
    assert missing
    assert all("n3" in each.nodes for each in missing)
    assert "Traceback" not in stderr
    assert "n3" in stderr


def _pidfd(pid: int) -> int:
    import os

    return os.pidfd_open(pid)


def test_a_cable_that_is_pulled_ends_in_time(hosts: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    process = start(hosts, *HOSTS, "-o", str(folder))
    wait_for_pairs(folder)
    hosts.cut("n1")
    cut = time.monotonic()
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 3, stderr
    # Two attempts of at most 26 s with the host that is cut off, and the rest of the pairs.
    assert time.monotonic() - cut < 200
    assert nobody_left(hosts)
    alive = {"n0", "n2", "n3"}
    assert {pair for pair in pairs(profiles(folder)) if set(pair) <= alive} == {
        (one, other) for one in alive for other in alive if one != other
    }


def test_ctrl_c_ends_every_process_on_every_host(hosts: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    process = start(hosts, *HOSTS, "-o", str(folder))
    wait_for_pairs(folder)
    assert all(hosts.processes(host) for host in RATES)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert nobody_left(hosts)
    assert pairs(profiles(folder))


def test_a_profiler_that_is_killed_leaves_no_process_on_any_host(
    hosts: Lab, tmp_path: Path
) -> None:
    folder = tmp_path / "profiles"
    process = start(hosts, *HOSTS, "-o", str(folder))
    wait_for_pairs(folder)
    process.kill()
    process.communicate(timeout=30)
    assert nobody_left(hosts)


def test_a_host_that_cannot_be_reached_is_named_and_the_others_are_profiled(
    hosts: Lab, tmp_path: Path
) -> None:
    folder = tmp_path / "profiles"
    arguments = ["--hosts", "n0,nowhere", "--device", "cpu", "--no-measure", "-o", str(folder)]
    process = start(hosts, *arguments)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "host nowhere cannot be profiled" in stderr
    assert "Could not resolve hostname nowhere" in stderr
    assert set(profiles(folder)) == {"n0"}
    assert nobody_left(hosts)


def test_a_host_whose_name_is_an_option_is_only_a_host(hosts: Lab, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    folder = tmp_path / "profiles"
    name = f"-oProxyCommand=touch {proof}"
    process = start(hosts, "--hosts", name, "--device", "cpu", "-o", str(folder))
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert not proof.exists()
