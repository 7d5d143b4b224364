"""Who reaches whom over what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetcli.probe.inventory import gpu_inventory
from hetcli.probe.nvml import open_nvml
from hetcli.probe.pcie import numa_node, path_between, pcie_bytes_per_s
from hetcli.probe.topology import device_links, nic_distances, nvlink_bytes_per_s
from hetcli.spec.profile import DeviceLink, NicInventory

Recorded = Callable[..., Any]


def links(module: Any) -> dict[tuple[int, int], DeviceLink]:
    with open_nvml(module) as nvml:
        found = device_links(nvml, gpu_inventory(nvml))
    return {link.devices: link for link in found}


def test_dgx_a100_has_twelve_nvlinks_between_any_two(recorded: Recorded) -> None:
    found = links(recorded("dgx_a100"))
    assert len(found) == 28
    for link in found.values():
        assert (link.path, link.nvlinks, link.bytes_per_s) == ("nvlink", 12, 300e9)


def test_dgx_1_is_a_hybrid_cube_mesh(recorded: Recorded) -> None:
    found = links(recorded("v100_eight"))
    # NVIDIA WP-08437-002: GPU 0 has one link to 1 and 2, two to 3 and 4, and none to 5, 6 and 7.
    assert [found[0, other].nvlinks for other in range(1, 8)] == [1, 1, 2, 2, None, None, None]
    assert found[0, 3].bytes_per_s == 50e9
    assert [found[0, other].path for other in (5, 6, 7)] == ["sys"] * 3
    assert sum(link.nvlinks or 0 for link in found.values()) == 8 * 6 / 2


def test_two_cards_without_nvlink_meet_at_the_host_bridge(recorded: Recorded) -> None:
    found = links(recorded("mixed_3090_4090"))
    assert found[0, 1] == DeviceLink(devices=(0, 1), path="phb")


def test_mig_instances_have_no_path_between_them(recorded: Recorded) -> None:
    assert links(recorded("mig_seven")) == {}


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"),
    [(1, 16, 4.0), (3, 16, 15.754), (4, 16, 31.508), (5, 16, 63.015), (5, 8, 31.508), (6, 16, 121)],
)
def test_slot_rates_are_those_of_the_specification(
    generation: int, width: int, gigabytes: float
) -> None:
    assert pcie_bytes_per_s(generation, width) == pytest.approx(gigabytes * 1e9, rel=1e-4)


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (4, None), (4, 0), (9, 16)])
def test_an_unknown_link_has_no_rate(generation: int | None, width: int | None) -> None:
    assert pcie_bytes_per_s(generation, width) is None


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, Path]:
    """Two sockets; behind the first a switch with a GPU and a NIC, and a second switch."""
    base = tmp_path / "devices"
    switch = "pci0000:40/0000:40:01.0/0000:41:00.0"
    places = {
        "gpu": f"{switch}/0000:42:00.0/0000:43:00.0",
        "near": f"{switch}/0000:42:01.0/0000:44:00.0",
        "switch2": f"{switch}/0000:42:02.0/0000:45:00.0/0000:46:00.0/0000:47:00.0",
        "bridge": "pci0000:40/0000:40:02.0/0000:50:00.0",
        "numa": "pci0000:60/0000:60:01.0/0000:61:00.0",
        "far": "pci0000:80/0000:80:01.0/0000:81:00.0",
    }
    made = {}
    for name, place in places.items():
        made[name] = base / place
        made[name].mkdir(parents=True)
        (made[name] / "numa_node").write_text("1\n" if name == "far" else "0\n")
    return made


@pytest.mark.parametrize(
    ("other", "path"),
    [("near", "pix"), ("switch2", "pxb"), ("bridge", "phb"), ("numa", "node"), ("far", "sys")],
)
def test_paths_have_the_words_of_nvidia_smi(tree: dict[str, Path], other: str, path: str) -> None:
    assert path_between(tree["gpu"], tree[other]) == path
    assert path_between(tree[other], tree["gpu"]) == path


def test_the_nearest_interface_is_found_through_sysfs(
    recorded: Recorded, tree: dict[str, Path], tmp_path: Path
) -> None:
    pci, network = tmp_path / "bus", tmp_path / "net"
    pci.mkdir()
    (pci / "0000:07:00.0").symlink_to(tree["gpu"])
    for name, place in (("ib0", "near"), ("eth0", "far")):
        (network / name).mkdir(parents=True)
        (network / name / "device").symlink_to(tree[place])
    with open_nvml(recorded("dgx_a100")) as nvml:
        device = gpu_inventory(nvml)[0]
    nics = [
        NicInventory(interface=name, kind="ethernet", rate_bytes_per_s=None)
        for name in ("eth0", "ib0", "gone0")
    ]
    found = nic_distances([device], nics, pci=pci, network=network)
    assert [(each.interface, each.path) for each in found] == [("eth0", "sys"), ("ib0", "pix")]


def test_the_numa_node_comes_from_sysfs_where_the_driver_has_none(tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "numa_node").write_text("1\n")
    (tmp_path / "0000:02:00.0").mkdir()
    (tmp_path / "0000:02:00.0" / "numa_node").write_text("-1\n")
    assert numa_node("00000000:01:00.0", tmp_path) == 1
    assert numa_node("00000000:02:00.0", tmp_path) is None
    assert numa_node("00000000:03:00.0", tmp_path) is None


@pytest.mark.parametrize(
    ("capability", "links", "gigabytes"),
    # Totals of both directions, as NVIDIA states them for V100, RTX 3090, H100 and B200.
    [("7.0", 6, 300), ("8.6", 4, 112.5), ("9.0", 18, 900), ("10.0", 18, 1800)],
)
def test_nvlink_rates_are_half_of_the_stated_totals(
    capability: str, links: int, gigabytes: float
) -> None:
    assert nvlink_bytes_per_s(capability, links) == gigabytes / 2 * 1e9
