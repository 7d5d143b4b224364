"""Case bandwidth-outlier-pair (https://github.com/NVIDIA/nccl-tests/issues/106), to the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hetcli.cli import app
from hetcli.spec.cluster import Cluster
from hetcli.spec.profile import DeviceInventory, Host, LinkMeasurement, Profile, Spread
from hetcli.spec.source import read_document

NODES = ("n0", "n1", "n2", "n3")
MESSAGE_BYTES = 2**28


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


def link(one: str, other: str, rate: float) -> LinkMeasurement:
    """One message of one size, as the case states it."""
    seconds = MESSAGE_BYTES / rate
    return LinkMeasurement(
        operation="send_recv",
        backend="nccl",
        scope="inter_node",
        nodes=(one, other),
        ranks=2,
        message_bytes=MESSAGE_BYTES,
        seconds=Spread(median=seconds, p95=seconds, minimum=seconds, repeats=5),
        algbw_bytes_per_s=rate,
        busbw_bytes_per_s=rate,
        verified=True,
    )


def node(name: str, links: tuple[LinkMeasurement, ...]) -> Profile:
    unknown: dict[str, Any] = dict.fromkeys(("os", "python", "torch", "driver", "cuda", "nccl"))
    return Profile(
        hetcli_version="0",
        created="2026-01-02T03:04:05+00:00",
        complete=True,
        node=name,
        host=Host(
            hostname=name, cores=128, memory_bytes=2**40, cpu="EPYC", cpu_vendor="AMD", **unknown
        ),
        devices=tuple(
            DeviceInventory(
                index=index,
                name="NVIDIA A100-SXM4-80GB",
                uuid=f"GPU-{name}-{index}",
                pci_bus_id=None,
                vendor="nvidia",
                compute_capability="8.0",
                memory_total_bytes=80 * 2**30,
                memory_free_bytes=79 * 2**30,
            )
            for index in range(8)
        ),
        links=links,
    )


def merged(folder: Path, fast: tuple[str, str], slow: tuple[str, str]) -> tuple[Path, str]:
    """The cluster file of four equal nodes with two measured pairs, and what merging warned of."""
    for name in NODES:
        own = ((fast, 80e9), (slow, 40e9))
        links = tuple(link(*pair, rate) for pair, rate in own if pair[0] == name)
        (folder / f"{name}.json").write_text(node(name, links).model_dump_json())
    path = folder / "cluster.yaml"
    done = run("profile", "merge", *(folder / f"{name}.json" for name in NODES), "-o", path)
    return path, done.stderr


def planned(cluster: Path, *options: object) -> list[set[str]]:
    """The nodes of each stage of the best plan."""
    inputs = ["--cluster", cluster, "--model", "llama-2-13b", "--gbs", 64, "--seq-len", 4096]
    printed = run("plan", *inputs, "--no-compare", "--json", *options).stdout
    document: dict[str, Any] = json.loads(printed)
    return [
        {device["node"] for replica in stage["replicas"] for device in replica["devices"]}
        for stage in document["stages"]
    ]


@pytest.mark.parametrize("fast", [("n0", "n1"), ("n2", "n3")])
def test_the_heavier_traffic_takes_the_faster_pair(fast: tuple[str, str], tmp_path: Path) -> None:
    first, second = (name for name in NODES if name not in fast)
    slow = (first, second)
    path, warned = merged(tmp_path, fast, slow)
    cluster = read_document(path, Cluster)
    # Kept for each pair, never averaged to 60; one size says nothing of the latency.
    assert {(pair.nodes, pair.rate, pair.latency) for pair in cluster.pairs} == {
        (fast, 80e9, None),
        (slow, 40e9, None),
    }
    assert f"{first}, {second}: 40 GB/s between them, where 80 GB/s is usual" in warned
    # Two nodes are enough: those of the fast pair.
    assert set.union(*planned(path, "--max-nodes", 2)) == set(fast)
    # Gradients of whole stages are heavier than activations between stages: the replicas of one
    # stage talk over the fast pair, and the other stage has what is left.
    assert planned(path, "--tp", 8, "--pp", 2, "--dp", 2) == [set(fast), set(slow)]
