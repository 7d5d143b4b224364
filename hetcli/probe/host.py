"""Facts about the machine around the devices, and its network interfaces."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import psutil

from hetcli.spec.profile import Host, NicInventory

__all__ = ["host_facts", "network_interfaces", "nvidia_on_bus"]

# Interfaces that never carry training traffic: loopback, container and virtual-machine bridges.
_VIRTUAL: Final = re.compile(r"^(lo|docker|br-|veth|virbr|cni|flannel|cali|tunl|tailscale|wg|kube)")
# Variables that change what a probe, or a training run, gets from CUDA and the network.
_STEERING: Final = re.compile(r"^(CUDA_|NCCL_|GLOO_|UCX_|ROCR_|HIP_|HSA_|ASCEND_|HCCL_|OMP_|MKL_)")
_CPUINFO: Final = Path("/proc/cpuinfo")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_VENDORS: Final = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}


def _cpu_field(text: str, field: str) -> str | None:
    found = re.search(rf"^{field}\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def host_facts(
    *, driver: str | None, cuda: str | None = None, cpuinfo: Path = _CPUINFO, boot: Path = _BOOT
) -> Host:
    """What this machine is; versions of torch and friends without importing them."""
    text = _read(cpuinfo) or ""
    vendor = _cpu_field(text, "vendor_id")
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Host(
        hostname=socket.gethostname(),
        cores=usable or 1,
        memory_bytes=psutil.virtual_memory().total,
        cpu=_cpu_field(text, "model name") or platform.processor() or platform.machine(),
        cpu_vendor=_VENDORS.get(vendor or "", vendor),
        os=platform.platform(),
        python=platform.python_version(),
        torch=torch,
        driver=driver,
        cuda=cuda,
        nccl=None,
        machine=_read(boot),
        environment=_steering(os.environ),
    )


def _steering(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(environment.items()) if _STEERING.match(name)}


def network_interfaces(root: Path = Path("/sys/class")) -> tuple[NicInventory, ...]:
    """Interfaces that are up, with the rate that the driver states. Reads sysfs below `root`."""
    rdma = _rdma_by_netdev(root)
    addresses = psutil.net_if_addrs()
    found = []
    for entry in sorted((root / "net").glob("*")) if (root / "net").is_dir() else []:
        if _VIRTUAL.match(entry.name) or _is_bridge(entry):
            continue
        if _read(entry / "operstate") not in {"up", "unknown"}:
            continue
        speed = _read(entry / "speed")
        known = speed is not None and speed.isdigit() and int(speed) > 0
        numa = _read(entry / "device" / "numa_node")
        kind, device = rdma.get(entry.name, (_kind(entry), None))
        found.append(
            NicInventory(
                interface=entry.name,
                kind=kind,
                # The kernel states megabits a second (Documentation/ABI/testing/sysfs-class-net).
                rate_bytes_per_s=int(speed or 0) * 1e6 / 8 if known else None,
                device=device,
                addresses=tuple(
                    each.address
                    for each in addresses.get(entry.name, ())
                    if each.family in {socket.AF_INET, socket.AF_INET6}
                    and not each.address.startswith("fe80:")
                ),
                numa_node=int(numa) if numa and numa.isdigit() else None,
                notes=() if known else ("the driver states no link rate",),
            )
        )
    return tuple(found)


def _is_bridge(entry: Path) -> bool:
    """Whether this is a bridge, or a port of one: the far ends of containers' interfaces."""
    return (entry / "bridge").exists() or (entry / "brport").exists()


def _kind(entry: Path) -> Literal["infiniband", "roce", "ethernet"]:
    # ARPHRD_INFINIBAND is 32 (linux/if_arp.h).
    return "infiniband" if _read(entry / "type") == "32" else "ethernet"


def _rdma_by_netdev(root: Path) -> dict[str, tuple[Literal["infiniband", "roce", "ethernet"], str]]:
    """Network devices that also speak RDMA: the kind of their port, and the RDMA device's name."""
    found: dict[str, tuple[Literal["infiniband", "roce", "ethernet"], str]] = {}
    base = root / "infiniband"
    for device in sorted(base.glob("*")) if base.is_dir() else []:
        layer = _read(device / "ports" / "1" / "link_layer")
        for netdev in (device / "device" / "net").glob("*"):
            found[netdev.name] = ("infiniband" if layer == "InfiniBand" else "roce", device.name)
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def nvidia_on_bus(root: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether a display or compute device of NVIDIA (PCI vendor 0x10de, class 0x03) is plugged."""
    if not root.is_dir():
        return False
    return any(
        _read(device / "vendor") == "0x10de" and (_read(device / "class") or "").startswith("0x03")
        for device in root.iterdir()
    )
