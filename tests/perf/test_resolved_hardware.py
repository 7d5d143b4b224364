"""From a cluster file to hardware: health, memory, links, prices, and what is assumed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetcli.errors import InfeasibleError
from hetcli.perf.resolve import resolve
from hetcli.spec.cluster import Cluster

A100 = {"name": "a", "count": 2, "gpu": "A100-SXM4-80GB", "gpus": 4}
V100 = {"name": "v", "gpu": "V100-SXM2-16GB", "gpus": 2}


def cluster(*nodes: dict[str, Any], **more: Any) -> Cluster:
    document = {"schema_version": 1, "name": "c", "nodes": list(nodes), **more}
    return Cluster.model_validate_json(json.dumps(document))


def test_nodes_of_a_group_are_alike_and_named() -> None:
    hardware = resolve(cluster(A100, V100))
    assert [len(node.devices) for node in hardware.nodes] == [4, 4, 2]
    assert hardware.device_count == 10
    first, second, third = hardware.nodes
    assert first.device_type is second.device_type
    assert third.device_type.gpu.name == "V100-SXM2-16GB"
    assert third.device_type.memory_bytes == third.device_type.gpu.memory_bytes


def test_a_device_that_is_down_is_left_out_and_a_slow_one_is_of_its_own_type() -> None:
    hardware = resolve(
        cluster(
            V100,
            A100,
            health=[
                {"node": "v", "devices": [1], "state": "down"},
                {"node": "a-0", "state": "slow", "slowdown": 1.5},
            ],
        )
    )
    v, slow, well = hardware.nodes
    assert v.devices == (0,)
    assert slow.device_type.slowdown == 1.5
    assert well.device_type.slowdown == 1
    assert slow.device_type is not well.device_type


def test_a_cluster_with_nothing_left_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="no usable device"):
        resolve(cluster(V100, health=[{"node": "v", "state": "down"}]))


def test_a_network_that_is_not_named_is_an_assumption_that_is_said() -> None:
    named = {**A100, "nics": [{"kind": "infiniband", "rate": "200Gb/s", "count": 4}]}
    assert resolve(cluster(A100)).assumptions
    assert resolve(cluster(named)).assumptions == ()


OLD = {"name": "n[0-1]", "gpu": "RTX-3090", "gpus": 4, "use": [0, 1]}
NEW = {"name": "new-n[0-1]", "host": "n[0-1]", "gpu": "RTX-4090", "gpus": 4, "use": [2, 3]}


def test_unlike_devices_of_one_machine_meet_over_pcie() -> None:
    hardware = resolve(cluster(OLD, NEW))
    node = hardware.by_name
    assert {each.machine for each in hardware.nodes} == {"n0", "n1"}
    inside = hardware.between(node["n0"], node["new-n0"])
    # The 3090's own link is the slower slot, or an NVLink bridge, which no 4090 has.
    assert inside.name.startswith("pcie")
    assert inside.shared
    assert inside.bytes_per_s <= node["new-n0"].intra.bytes_per_s
    away = hardware.between(node["n0"], node["new-n1"])
    assert away.name == "ethernet"
    assert away.bytes_per_s < inside.bytes_per_s


def test_what_was_measured_inside_a_machine_holds() -> None:
    pair = {"nodes": ["new-n0", "n0"], "rate": "9GB/s"}
    hardware = resolve(cluster(OLD, NEW, pairs=[pair]))
    node = hardware.by_name
    assert hardware.between(node["n0"], node["new-n0"]).bytes_per_s == 9e9
    assert hardware.between(node["n1"], node["new-n1"]).bytes_per_s != 9e9


def test_what_is_said_of_a_machine_holds_for_all_its_devices() -> None:
    down = resolve(cluster(OLD, NEW, health=[{"node": "n0", "state": "down"}]))
    assert [node.name for node in down.nodes] == ["n1", "new-n1"]
    one = resolve(cluster(OLD, NEW, health=[{"node": "n0", "devices": [3], "state": "down"}]))
    assert {node.name: node.devices for node in one.nodes} == {
        "n0": (0, 1), "n1": (0, 1), "new-n0": (2,), "new-n1": (2, 3),
    }  # fmt: skip


def test_a_measured_rate_is_what_messages_reach() -> None:
    def reached(origin: str) -> float:
        nic = {"kind": "ethernet", "rate": "10GB/s", "origin": origin}
        return resolve(cluster({**A100, "nics": [nic]})).nodes[0].nic.bytes_per_s

    assert reached("measured") == 10e9
    assert reached("datasheet") < 10e9


def test_a_node_sends_over_all_its_nics() -> None:
    def rate(count: int) -> float:
        nic = {"kind": "infiniband", "rate": "200Gb/s", "count": count}
        node = resolve(cluster({**A100, "nics": [nic]})).nodes[0]
        assert node.nic_count == count
        return node.nic.bytes_per_s

    assert rate(4) == pytest.approx(4 * rate(1))
    assert rate(1) <= 200e9 / 8


def test_free_memory_and_prices_of_the_file_win() -> None:
    told = {**V100, "free_memory": "10GiB", "price_per_hour": 1.25}
    node = resolve(cluster(told)).nodes[0]
    assert node.device_type.memory_bytes == 10 * 2**30
    assert node.price_per_device_hour == 1.25
