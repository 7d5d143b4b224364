"""The machine around the devices."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hetcli.probe.host import host_facts, network_interfaces, nvidia_on_bus

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480C
"""


def test_this_machine_has_cores_memory_and_a_name() -> None:
    host = host_facts(driver=None)
    assert host.hostname == socket.gethostname()
    assert host.cores == len(os.sched_getaffinity(0))
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    assert host.memory_bytes == kilobytes * 1024
    assert host.machine == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_processor_is_named_with_its_vendor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    host = host_facts(driver="550.54.15", cuda="12.4", cpuinfo=path)
    assert (host.cpu, host.cpu_vendor) == ("Intel(R) Xeon(R) Platinum 8480C", "Intel")
    assert (host.driver, host.cuda) == ("550.54.15", "12.4")


def test_variables_that_steer_the_libraries_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    monkeypatch.setenv("NCCLX", "no")
    monkeypatch.setenv("SECRET_TOKEN", "no")
    environment = host_facts(driver=None).environment
    assert environment["NCCL_IB_HCA"] == "mlx5_0"
    assert not {"NCCLX", "SECRET_TOKEN"} & set(environment)


def interface(
    root: Path, name: str, *, state: str = "up", speed: str | None = None, type_: str = "1"
) -> Path:
    folder = root / "net" / name
    (folder / "device").mkdir(parents=True)
    (folder / "operstate").write_text(f"{state}\n")
    (folder / "type").write_text(f"{type_}\n")
    if speed is not None:
        (folder / "speed").write_text(f"{speed}\n")
    return folder


def rdma(root: Path, device: str, netdev: str, layer: str) -> None:
    port = root / "infiniband" / device / "ports" / "1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text(f"{layer}\n")
    (root / "infiniband" / device / "device" / "net" / netdev).mkdir(parents=True)


def test_interfaces_have_kind_rate_device_and_numa_node(tmp_path: Path) -> None:
    folder = interface(tmp_path, "ib0", speed="200000", type_="32")
    (folder / "device" / "numa_node").write_text("1\n")
    rdma(tmp_path, "mlx5_0", "ib0", "InfiniBand")
    interface(tmp_path, "eth0", speed="100000")
    rdma(tmp_path, "mlx5_1", "eth0", "Ethernet")
    interface(tmp_path, "eno1", speed="10000")
    found = {nic.interface: nic for nic in network_interfaces(tmp_path)}
    assert [
        (nic.kind, nic.device, nic.rate_bytes_per_s)
        for nic in (found["ib0"], found["eth0"], found["eno1"])
    ] == [
        ("infiniband", "mlx5_0", 25e9),
        ("roce", "mlx5_1", 12.5e9),
        ("ethernet", None, 1.25e9),
    ]
    assert (found["ib0"].numa_node, found["eth0"].numa_node) == (1, None)
    assert found["eno1"].notes == ()


@pytest.mark.parametrize("speed", ["-1", None, "0", "unknown"])
def test_a_rate_that_the_driver_does_not_state_is_null_with_the_reason(
    tmp_path: Path, speed: str | None
) -> None:
    interface(tmp_path, "eth0", speed=speed)
    (nic,) = network_interfaces(tmp_path)
    assert nic.rate_bytes_per_s is None
    assert nic.notes == ("the driver states no link rate",)


@pytest.mark.parametrize("name", ["lo", "docker0", "br-12ab", "veth1", "virbr0", "cni0", "wg0"])
def test_bridges_and_loopback_are_no_network(tmp_path: Path, name: str) -> None:
    interface(tmp_path, name, state="unknown", speed="10000")
    assert network_interfaces(tmp_path) == ()


@pytest.mark.parametrize("folder", ["bridge", "brport"])
def test_a_bridge_of_any_name_and_its_ports_are_no_network(tmp_path: Path, folder: str) -> None:
    (interface(tmp_path, "lab0", speed="10000") / folder).mkdir()
    assert network_interfaces(tmp_path) == ()


def test_an_interface_that_is_down_is_left_out(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", state="down", speed="10000")
    assert network_interfaces(tmp_path) == ()


@pytest.mark.parametrize(
    ("vendor", "kind", "there"),
    [
        ("0x10de", "0x030200", True),
        ("0x10de", "0x030000", True),
        ("0x10de", "0x040300", False),  # the sound device of a card that was handed to a guest
        ("0x1002", "0x030000", False),
    ],
)
def test_a_card_is_seen_on_the_bus_without_its_driver(
    tmp_path: Path, vendor: str, kind: str, there: bool
) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "vendor").write_text(f"{vendor}\n")
    (tmp_path / "0000:01:00.0" / "class").write_text(f"{kind}\n")
    assert nvidia_on_bus(tmp_path) is there


def test_a_machine_without_pci_has_no_card(tmp_path: Path) -> None:
    assert not nvidia_on_bus(tmp_path / "absent")
