"""Profiles become a cluster file that reads back equal and says what it could not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hetcli.errors import UsageError
from hetcli.perf.resolve import resolve
from hetcli.probe.inventory import gpu_inventory
from hetcli.probe.merge import merge_profiles
from hetcli.probe.nvml import open_nvml
from hetcli.probe.topology import device_links
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster, CustomGpu, IntraLink
from hetcli.spec.finding import Finding
from hetcli.spec.hardware import LinkRates
from hetcli.spec.profile import (
    DeviceInventory,
    Host,
    MatmulMeasurement,
    MemoryBandwidthMeasurement,
    NicInventory,
    Profile,
    Spread,
)
from hetcli.spec.source import dump_yaml, read_document

Recorded = Callable[..., Any]
SECOND = Spread(median=1.0, p95=1.0, minimum=1.0, repeats=5)


def profile(
    node: str,
    devices: Sequence[DeviceInventory],
    *,
    nics: Sequence[tuple[str, float | None]] = (("infiniband", 25e9),),
    **changes: Any,
) -> Profile:
    host = Host(
        hostname=node,
        cores=128,
        memory_bytes=2**40,
        cpu="EPYC 7742",
        cpu_vendor="AMD",
        os="Linux",
        python="3.11",
        torch="2.5",
        driver="535",
        cuda="12.2",
        nccl="2.21",
    )
    return Profile(
        hetcli_version="0",
        created="2026-01-02T03:04:05+00:00",
        complete=True,
        node=node,
        host=host,
        devices=tuple(devices),
        nics=tuple(
            NicInventory(interface=f"net{place}", kind=kind, rate_bytes_per_s=rate)  # type: ignore[arg-type]
            for place, (kind, rate) in enumerate(nics)
        ),
        **changes,
    )


@pytest.fixture
def node_of(recorded: Recorded) -> Callable[..., Profile]:
    def make(node: str, recording: str, **changes: Any) -> Profile:
        with open_nvml(recorded(recording)) as nvml:
            devices = gpu_inventory(nvml)
            links = device_links(nvml, devices)
        return profile(node, devices, **{"device_links": links, **changes})

    return make


def link(one: str, other: str, rate: float, latency: float = 1.2345678e-5) -> LinkRates:
    return LinkRates(
        between=(one, other),
        latency_s=latency,
        bytes_per_s=rate,
        origin=Origin.FITTED,
        rows=8,
        residual=0.01,
        source="hetcli profile",
    )


def test_equal_nodes_become_one_group_in_their_order(node_of: Callable[..., Profile]) -> None:
    profiles = [node_of(f"a{number:02d}", "dgx_a100") for number in range(4)]
    profiles.append(node_of("v0", "v100_eight"))
    cluster, left = merge_profiles(profiles, name="lab")
    a100, v100 = cluster.nodes
    assert (a100.name, a100.gpu, a100.gpus, a100.use) == ("a[00-03]", "A100-SXM4-80GB", 8, None)
    assert a100.node_names == ("a00", "a01", "a02", "a03")
    assert (v100.name, v100.gpu) == ("v0", "V100-SXM2-32GB")
    assert (a100.nics[0].kind, a100.nics[0].rate, a100.nics[0].count) == ("infiniband", 25e9, 1)
    assert (a100.cores, a100.cpu_vendor, a100.memory) == (128, "AMD", 2**40)
    assert a100.free_memory == 81079 * 2**20
    assert left == ()


def test_the_file_reads_back_to_the_same_cluster(
    node_of: Callable[..., Profile], tmp_path: Path
) -> None:
    profiles = [node_of("a", "dgx_a100"), node_of("b", "display_card")]
    links = [link("a", "b", 11.87654321e9), link("a", "a", 231e9)]
    cluster, _ = merge_profiles(profiles, name="lab", links=links, files={"a": "p/a.json"})
    path = tmp_path / "cluster.yaml"
    path.write_text(dump_yaml(cluster))
    assert read_document(path, Cluster) == cluster
    hardware = resolve(cluster)
    a, b = hardware.nodes
    assert hardware.between(a, b).bytes_per_s == pytest.approx(11.88e9)
    assert hardware.between(a, a).bytes_per_s == pytest.approx(231e9)
    assert a.device_type.profile == "p/a.json"


def test_the_display_card_is_not_used(node_of: Callable[..., Profile]) -> None:
    cluster, _ = merge_profiles([node_of("station", "display_card")], name="lab")
    (group,) = cluster.nodes
    assert (group.gpus, group.use) == (5, (0, 1, 2, 4))
    assert resolve(cluster).nodes[0].devices == (0, 1, 2, 4)


def test_unlike_cards_of_one_machine_are_two_groups_on_one_host(
    node_of: Callable[..., Profile],
) -> None:
    # The cards of case cuda-order-mixed: both are planned, and both are known to share a machine.
    profiles = [node_of(f"n{number}", "mixed_3090_4090") for number in range(3)]
    findings = [
        Finding(kind="slow device", nodes=("n1",), devices=(1,), factor=1.4, what="w", cause="hot")
    ]
    links = [link("n0", "n1", 1e9), link("n2", "n2", 9e9)]
    cluster, left = merge_profiles(profiles, name="lab", links=links, findings=findings)
    old, new = cluster.nodes
    # The 3090 has 12 MiB more memory, so it comes first.
    assert (old.name, old.host, old.gpu, old.gpus, old.use) == (
        "n[0-2]", None, "RTX-3090", 2, (0,),
    )  # fmt: skip
    assert (new.name, new.host, new.gpu, new.gpus, new.use) == (
        "RTX-4090-n[0-2]", "n[0-2]", "RTX-4090", 2, (1,),
    )  # fmt: skip
    assert old.nics == new.nics
    assert left == ()
    assert {(frozenset(pair.nodes), pair.rate) for pair in cluster.pairs} == {
        (frozenset({"n0", "n1"}), 1e9),
        (frozenset({"n0", "RTX-4090-n1"}), 1e9),
        (frozenset({"RTX-4090-n0", "n1"}), 1e9),
        (frozenset({"RTX-4090-n0", "RTX-4090-n1"}), 1e9),
        (frozenset({"n2", "RTX-4090-n2"}), 9e9),
    }
    # What is slow is the 4090 of the machine, not its 3090.
    slow = {node.name: node.device_type.slowdown for node in resolve(cluster).nodes}
    assert slow == {
        "n0": 1, "n1": 1, "n2": 1, "RTX-4090-n0": 1, "RTX-4090-n1": 1.4, "RTX-4090-n2": 1,
    }  # fmt: skip


def test_mig_instances_never_meet_in_a_group(node_of: Callable[..., Profile]) -> None:
    measured = {
        "matmul": (
            MatmulMeasurement(
                device=0, dtype="bf16", m=8, n=8, k=8, seconds=SECOND, flop_per_s=40e12
            ),
        ),
        "memory_bandwidth": (
            MemoryBandwidthMeasurement(
                device=0, transferred_bytes=8, seconds=SECOND, bytes_per_s=2e11
            ),
        ),
    }
    cluster, left = merge_profiles([node_of("n0", "mig_seven", **measured)], name="lab")
    (group,) = cluster.nodes
    assert len(resolve(cluster).nodes[0].devices) == 1
    assert isinstance(group.gpu, CustomGpu)
    assert group.gpu.memory == 4864 * 2**20  # its own, not a seventh or all of the parent's
    assert [finding.devices for finding in left] == [(index,) for index in range(1, 7)]


def test_a_mig_instance_is_left_out_beside_a_whole_card(recorded: Recorded) -> None:
    player = recorded("mig_seven")
    whole = {"Name": "NVIDIA A100-SXM4-40GB", "MigMode": [0, 0], "UUID": "GPU-whole"}
    whole["MemoryInfo"] = {"total": 42505273344, "free": 1, "used": 2}
    with open_nvml(recorded("mig_seven", devices=[*player._recorded["devices"], whole])) as nvml:
        devices = gpu_inventory(nvml)
    cluster, left = merge_profiles([profile("n0", devices)], name="lab")
    (group,) = cluster.nodes
    assert (group.gpu, group.gpus, group.use) == ("A100-SXM4-40GB", 8, (7,))
    assert [finding.devices for finding in left] == [(index,) for index in range(7)]


def processor(node: str, fp32: float | None, **changes: Any) -> Profile:
    device = DeviceInventory(
        index=0,
        name="AMD EPYC",
        uuid=None,
        pci_bus_id=None,
        kind="cpu",
        vendor="cpu",
        memory_total_bytes=2**34,
        memory_free_bytes=2**33,
    )
    rows: dict[str, Any] = {}
    if fp32 is not None:
        rows["matmul"] = tuple(
            MatmulMeasurement(
                device=0, dtype="fp32", m=size, n=8, k=8, seconds=SECOND, flop_per_s=rate
            )
            for size, rate in ((64, fp32 / 2), (128, fp32))
        )
        rows["memory_bandwidth"] = (
            MemoryBandwidthMeasurement(
                device=0, transferred_bytes=8, seconds=SECOND, bytes_per_s=40e9
            ),
        )
    return profile(node, [device], **{"nics": (), **rows, **changes})


def test_a_device_outside_the_catalogue_is_described_as_measured() -> None:
    cluster, _ = merge_profiles(
        [processor("n0", 1.5e11), processor("n1", 2.5e11), processor("n2", 1.7e11)], name="lab"
    )
    (group,) = cluster.nodes
    assert isinstance(group.gpu, CustomGpu)
    assert (group.gpu.name, group.gpu.vendor, group.gpu.origin) == (
        "AMD EPYC",
        "cpu",
        Origin.MEASURED,
    )
    assert group.gpu.fp32_tflops == 0.17  # the median of the nodes' best
    assert group.gpu.bf16_tflops is None
    assert group.gpu.memory_rate == 40e9


def test_an_unknown_device_that_was_not_measured_is_refused() -> None:
    with pytest.raises(UsageError, match="AMD EPYC") as caught:
        merge_profiles([processor("n0", None)], name="lab")
    assert "without --no-measure" in caught.value.fix


def test_measured_pairs_override_what_interfaces_state() -> None:
    slow = [
        processor("n0", 1e11, nics=(("ethernet", 1.25e9),)),
        processor("n1", 1e11, nics=(("ethernet", 1.25e9),)),
    ]
    cluster, _ = merge_profiles(slow, name="lab", links=[link("n0", "n1", 12e6)])
    (pair,) = cluster.pairs
    assert (pair.nodes, pair.rate, pair.latency) == (("n0", "n1"), 12e6, 1.235e-5)
    (nic,) = cluster.nodes[0].nics
    assert (nic.rate, nic.origin) == (12e6, Origin.MEASURED)
    # An interface that comes near its rate keeps it.
    cluster, _ = merge_profiles(slow, name="lab", links=[link("n0", "n1", 1.1e9)])
    assert cluster.nodes[0].nics[0].rate == 1.25e9


def test_an_interface_without_a_rate_takes_the_measured_one() -> None:
    unknown = [processor(node, 1e11, nics=(("ethernet", None),)) for node in ("n0", "n1")]
    cluster, _ = merge_profiles(unknown, name="lab", links=[link("n0", "n1", 1e9)])
    (nic,) = cluster.nodes[0].nics
    assert (nic.kind, nic.rate, nic.origin) == ("ethernet", 1e9, Origin.MEASURED)


def test_the_link_inside_is_the_slowest_of_the_group(node_of: Callable[..., Profile]) -> None:
    profiles = [node_of("a0", "dgx_a100"), node_of("a1", "dgx_a100")]
    links = [link("a0", "a0", 230e9), link("a1", "a1", 210e9)]
    cluster, _ = merge_profiles(profiles, name="lab", links=links)
    inside = cluster.nodes[0].intra_link
    assert isinstance(inside, IntraLink)
    assert (inside.kind, inside.rate, inside.origin) == ("nvlink", 210e9, Origin.MEASURED)


def test_slow_devices_are_health_of_the_cluster(node_of: Callable[..., Profile]) -> None:
    findings = [
        Finding(kind="slow device", nodes=("a1",), devices=(3,), factor=1.4, what="w", cause="hot"),
        Finding(kind="slow memory", nodes=("a0",), devices=(0,), factor=2.0, what="w"),
    ]
    profiles = [node_of("a0", "dgx_a100"), node_of("a1", "dgx_a100")]
    cluster, _ = merge_profiles(profiles, name="lab", findings=findings)
    (entry,) = cluster.health
    assert (entry.node, entry.devices, entry.slowdown, entry.reason) == ("a1", (3,), 1.4, "hot")


def test_two_profiles_of_one_node_are_refused() -> None:
    with pytest.raises(UsageError, match="2 profiles of node n0"):
        merge_profiles([processor("n0", 1e11), processor("n0", 1e11)], name="lab")


def test_a_node_without_a_usable_device_is_refused_with_its_reasons(
    recorded: Recorded,
) -> None:
    broken = {"Name": "NVIDIA A30", "MemoryInfo": {"error": "NOT_SUPPORTED"}}
    with open_nvml(recorded("gb10", devices=[broken])) as nvml:
        devices = gpu_inventory(nvml)
    with pytest.raises(UsageError) as caught:
        merge_profiles([profile("n0", devices)], name="lab")
    assert "no memory of a discrete card" in caught.value.why
