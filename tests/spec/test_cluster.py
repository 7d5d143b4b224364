from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.errors import SpecError
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster
from hetcli.spec.complaint import spell
from hetcli.spec.source import dump_yaml, parse_mapping, validate

A100: dict[str, Any] = {
    "name": "a-[0-1]",
    "gpu": "A100-SXM4-80GB",
    "gpus": 8,
    "nics": [{"kind": "infiniband", "rate": "200Gbps"}],
}
V100: dict[str, Any] = {**A100, "name": "v-[0-1]", "gpu": "V100-SXM2-32GB"}


def read(**keys: Any) -> Cluster:
    return Cluster.model_validate_json(json.dumps({"name": "c", "nodes": [A100, V100], **keys}))


def group(**keys: Any) -> Cluster:
    return read(nodes=[{**A100, **keys}])


def test_a_range_names_the_nodes_and_counts_them() -> None:
    cluster = read()
    assert list(cluster.group_of) == ["a-0", "a-1", "v-0", "v-1"]
    assert cluster.group_of["v-1"].gpu == "V100-SXM2-32GB"
    assert (cluster.node_count, cluster.device_count) == (4, 32)


def test_a_count_numbers_a_plain_name() -> None:
    assert group(name="a", count=3).nodes[0].node_names == ("a-0", "a-1", "a-2")
    assert group(name="a").nodes[0].node_names == ("a",)
    assert group(name="a", count=1).nodes[0].node_names == ("a",)
    assert group(count=2).nodes[0].node_names == ("a-0", "a-1")


OLD: dict[str, Any] = {"name": "n[0-1]", "gpu": "RTX-3090", "gpus": 4, "use": [0, 1]}
NEW: dict[str, Any] = {
    "name": "new-n[0-1]", "host": "n[0-1]", "gpu": "RTX-4090", "gpus": 4, "use": [2, 3],
}  # fmt: skip


def test_unlike_devices_of_one_machine_are_nodes_of_one_host() -> None:
    cluster = read(nodes=[OLD, NEW])
    assert [group.machine_names for group in cluster.nodes] == [("n0", "n1")] * 2
    assert list(cluster.group_of) == ["n0", "n1", "new-n0", "new-n1"]
    assert cluster.device_count == 8


def test_used_devices_are_the_ones_that_count() -> None:
    cluster = group(use=[2, 3])
    assert cluster.nodes[0].devices == (2, 3)
    assert cluster.device_count == 4


@pytest.mark.parametrize(
    ("keys", "fabric"),
    [
        ({}, "infiniband"),
        ({"zone": "z"}, "infiniband@z"),
        ({"region": "r"}, "infiniband@r"),
        ({"zone": "z", "region": "r"}, "infiniband@z"),
        ({"zone": "z", "fabric": "f"}, "f"),
        ({"nics": []}, "a-[0-1]"),
    ],
)
def test_a_fabric_is_named_by_nic_and_place(keys: dict[str, Any], fabric: str) -> None:
    assert group(**keys).nodes[0].fabric_name == fabric


def test_links_may_join_places_of_every_kind() -> None:
    nodes = [
        {**A100, "zone": "z1", "region": "r1", "fabric": "f1"},
        {**V100, "zone": "z2", "region": "r2", "fabric": "f2"},
    ]
    pairs = [("f1", "f2"), ("z1", "z2"), ("r1", "r1"), ("a-[0-1]", "v-[0-1]")]
    links = [{"between": list(pair), "rate": "1GB/s"} for pair in pairs]
    cluster = read(nodes=nodes, links=links)
    assert [link.between for link in cluster.links] == pairs
    assert cluster.places("zone") == {"z1", "z2"}
    assert cluster.links[0].origin is Origin.DATASHEET
    assert not cluster.links[0].measured


LINK = {"between": ["a-[0-1]", "v-[0-1]"], "rate": "1GB/s"}
PAIR = {"nodes": ["a-0", "v-1"], "rate": "1GB/s"}
GPU = {"name": "x", "memory": "8GiB", "memory_rate": "1TB/s", "fp16_tflops": 10}
WRONG: list[tuple[dict[str, Any], str, tuple[str | int, ...]]] = [
    ({"nodes": [{**A100, "count": 3}]}, "count 3 is not the 2 hosts", ("nodes", 0, "count")),
    ({"nodes": [{**A100, "use": [0, 8]}]}, "no device 8", ("nodes", 0, "use", 1)),
    ({"nodes": [{**A100, "use": [1, 1]}]}, "listed twice", ("nodes", 0, "use")),
    ({"nodes": [{**A100, "use": []}]}, "at least 1 item", ("nodes", 0, "use")),
    ({"nodes": [A100, {**V100, "name": "a-1"}]}, "also belongs", ("nodes", 1, "name")),
    ({"nodes": []}, "at least 1 item", ("nodes",)),
    ({"nodes": [{**A100, "name": "a[1-"}]}, "partner", ("nodes", 0, "name")),
    ({"nodes": [{**A100, "name": "a\nb"}]}, "control", ("nodes", 0, "name")),
    ({"nodes": [{**A100, "gpu": "\x1b]0;owned\x07"}]}, "control", ("nodes", 0, "gpu")),
    ({"description": "\x1b[2J"}, "control", ("description",)),
    ({"nodes": [{**A100, "gpus": 0}]}, "greater than 0", ("nodes", 0, "gpus")),
    ({"nodes": [{**A100, "memory": 64}]}, "no size with its unit", ("nodes", 0, "memory")),
    ({"nodes": [{**A100, "name": "a-[1-50000]", "gpus": 1000}]}, "devices", ("nodes", 0)),
    ({"nodes": [OLD, {**NEW, "host": "n0"}]}, "one machine for each", ("nodes", 1, "host")),
    ({"nodes": [OLD, {**NEW, "host": "n[0-"}]}, "partner", ("nodes", 1, "host")),
    ({"nodes": [OLD, {**NEW, "use": [1, 2]}]}, "device 1 of n0", ("nodes", 1, "use")),
    ({"nodes": [{**OLD, "use": None}, NEW]}, "also belongs", ("nodes", 1, "use")),
    ({"nodes": [OLD, {**NEW, "gpus": 8}]}, "4 GPUs in one group and 8", ("nodes", 1, "gpus")),
    (
        {"nodes": [{**A100, "zone": "z", "region": "r"}, {**V100, "zone": "z"}]},
        "zone z lies in r",
        ("nodes", 1, "zone"),
    ),
    (
        {"nodes": [{**A100, "gpu": {k: v for k, v in GPU.items() if k != "fp16_tflops"}}]},
        "no compute rate",
        ("nodes", 0, "gpu"),
    ),
    ({"links": [{**LINK, "between": ["a", "v-[0-1]"]}]}, "called a", ("links", 0, "between", 0)),
    (
        {"links": [{**LINK, "between": ["a-[0-1]", "infiniband"]}]},
        "different kinds",
        ("links", 0, "between"),
    ),
    (
        {"links": [LINK, {**LINK, "between": LINK["between"][::-1]}]},
        "given twice",
        ("links", 1, "between"),
    ),
    ({"links": [{**LINK, "rate": "0GB/s"}]}, "greater than 0", ("links", 0, "rate")),
    (
        {"pairs": [{**PAIR, "nodes": ["a-0", "a-7"]}]},
        "no node is called a-7",
        ("pairs", 0, "nodes", 1),
    ),
    ({"pairs": [{**PAIR, "nodes": ["a-0", "a-0"]}]}, "one node", ("pairs", 0, "nodes")),
    ({"pairs": [PAIR, {**PAIR, "nodes": ["v-1", "a-0"]}]}, "given twice", ("pairs", 1, "nodes")),
    ({"health": [{"node": "b", "state": "down"}]}, "no node is called b", ("health", 0, "node")),
    (
        {"health": [{"node": "a-0", "devices": [8], "state": "down"}]},
        "no device 8",
        ("health", 0, "devices"),
    ),
    ({"health": [{"node": "a-0", "state": "slow"}]}, "factor of 1", ("health", 0)),
    (
        {"health": [{"node": "a-0", "state": "down", "slowdown": 2.0}]},
        "no slowdown",
        ("health", 0, "slowdown"),
    ),
    (
        {
            "health": [
                {"node": "a-0", "devices": [3], "state": "down"},
                {"node": "a-0", "state": "slow", "slowdown": 1.5},
            ]
        },
        "a state already",
        ("health", 1),
    ),
]


@pytest.mark.parametrize(("keys", "reason", "place"), WRONG)
def test_a_contradiction_is_refused_at_its_place(
    keys: dict[str, Any], reason: str, place: tuple[str | int, ...]
) -> None:
    data = {"name": "c", "nodes": [A100, V100], **keys}
    with pytest.raises(SpecError) as caught:
        validate(*parse_mapping(json.dumps(data), "c.json"), Cluster)
    assert caught.value.what.startswith(f"c.json:1: {spell(place)}")
    assert reason in caught.value.why
    assert caught.value.fix


def test_custom_devices_and_health_are_read() -> None:
    cluster = read(
        nodes=[{**A100, "gpu": GPU}],
        health=[
            {"node": "a-0", "devices": [3], "state": "down"},
            {"node": "a-1", "state": "slow", "slowdown": 1.4, "reason": "throttled"},
        ],
        cross_vendor_backend={"name": "gloo"},
    )
    assert not isinstance(cluster.nodes[0].gpu, str)
    assert cluster.nodes[0].gpu.memory == 8 * 2**30
    assert cluster.health[1].slowdown == 1.4


def test_ten_thousand_gpus_are_read_in_a_moment() -> None:
    nodes = "".join(
        f"- {{name: n{index}, gpu: A100-SXM4-80GB, gpus: 8, "
        "nics: [{kind: infiniband, rate: 200Gbps, count: 8}]}\n"
        for index in range(1280)
    )
    text = f"name: large\nnodes:\n{nodes}"
    seconds = []
    for _ in range(3):
        # Of the processor, not of the clock, so that a busy machine does not decide.
        start = time.process_time()
        data, locator = parse_mapping(text, "large.yaml")
        cluster = validate(data, locator, Cluster)
        seconds.append(time.process_time() - start)
    assert cluster.device_count == 10_240
    assert min(seconds) < 0.3


# --- Round trips -----------------------------------------------------------------------------

names = st.one_of(
    st.sampled_from(
        ["no", "1e5", "~", "0x10", "true", "2026-01-01", ".inf", "a: b", "- a", "'", "#"]
    ),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20),
)
hosts = names.filter(lambda name: not set(name) & set("[],"))
rates = st.floats(min_value=1e3, max_value=1e13).map(lambda value: f"{value!r}B/s")
sizes = st.integers(1, 2**62).map("{}B".format)
nics = st.fixed_dictionaries(
    {"kind": st.sampled_from(["infiniband", "roce", "ethernet", "efa"]), "rate": rates},
    optional={
        "count": st.integers(1, 16),
        "interface": names,
        "latency": st.floats(min_value=0, max_value=1).map(lambda value: f"{value!r}s"),
        "origin": st.sampled_from([origin.value for origin in Origin]),
    },
)
groups = st.fixed_dictionaries(
    {"gpu": names, "gpus": st.integers(1, 16)},
    optional={
        "count": st.integers(1, 5),
        "nics": st.lists(nics, max_size=3),
        "memory": sizes,
        "free_memory": sizes,
        "price_per_hour": st.floats(min_value=0, max_value=1e6),
        "region": names,
        "use": st.just([0]),
    },
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    hostnames = draw(st.lists(hosts, unique=True, min_size=1, max_size=4))
    text = st.text(st.characters(exclude_categories=["C"], include_characters="\n\t"), max_size=60)
    data = {
        "name": draw(names),
        "description": draw(text),
        # A number keeps `x` with a count apart from a host that is called `x-0`.
        "nodes": [{**draw(groups), "name": f"{n}.{i}"} for i, n in enumerate(hostnames)],
    }
    return Cluster.model_validate_json(json.dumps(data))


@given(clusters())
def test_a_cluster_is_read_back_from_yaml_and_from_json(cluster: Cluster) -> None:
    for text in (dump_yaml(cluster), cluster.model_dump_json(), cluster.model_dump_json(indent=2)):
        assert validate(*parse_mapping(text, "<stdin>"), Cluster) == cluster
