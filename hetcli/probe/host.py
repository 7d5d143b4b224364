"""Facts about the machine around the devices, and its network interfaces."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
from pathlib import Path
from typing import Literal

import psutil

from hetcli.spec.profile import Host, NicInventory

__all__ = ["host_facts", "network_interfaces", "nvidia_on_bus"]

# Interfaces that never carry training traffic: loopback, container and virtual-machine bridges.
_VIRTUAL = re.compile(r"^(lo|docker|br-|veth|virbr|cni|flannel|cali|tunl|tailscale|wg|kube)")
_CPUINFO = Path("/proc/cpuinfo")


def _cpu_field(text: str, field: str) -> str | None:
    found = re.search(rf"^{field}\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def host_facts(*, driver: str | None) -> Host:
    """What this machine is; versions of torch and friends without importing them."""
    cpuinfo = _CPUINFO.read_text(errors="replace") if _CPUINFO.exists() else ""
    vendor = _cpu_field(cpuinfo, "vendor_id")
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Host(
        hostname=socket.gethostname(),
        cores=usable or 1,
        memory_bytes=psutil.virtual_memory().total,
        cpu=_cpu_field(cpuinfo, "model name") or platform.processor() or platform.machine(),
        cpu_vendor={"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(vendor or "", vendor),
        os=platform.platform(),
        python=platform.python_version(),
        torch=torch,
        driver=driver,
        cuda=None,
        nccl=None,
    )


def network_interfaces(root: Path = Path("/sys/class")) -> tuple[NicInventory, ...]:
    """Interfaces that are up, with the rate that the driver states. Reads sysfs below `root`."""
    by_device = _rdma_by_netdev(root)
    found = []
    for entry in sorted((root / "net").glob("*")) if (root / "net").is_dir() else []:
        if _VIRTUAL.match(entry.name) or _read(entry / "operstate") not in {"up", "unknown"}:
            continue
        speed = _read(entry / "speed")
        known = speed is not None and speed.lstrip("-").isdigit() and int(speed) > 0
        numa = _read(entry / "device" / "numa_node")
        found.append(
            NicInventory(
                interface=entry.name,
                kind=by_device.get(entry.name, _kind(entry)),
                rate_bytes_per_s=int(speed or 0) * 1e6 / 8 if known else None,
                numa_node=int(numa) if numa and numa.isdigit() else None,
                notes=() if known else ("the driver states no link rate",),
            )
        )
    return tuple(found)


def _kind(entry: Path) -> Literal["infiniband", "ethernet"]:
    # ARPHRD_INFINIBAND is 32 (linux/if_arp.h).
    return "infiniband" if _read(entry / "type") == "32" else "ethernet"


def _rdma_by_netdev(root: Path) -> dict[str, Literal["infiniband", "roce"]]:
    """Network devices that also speak RDMA, and whether their port is InfiniBand or Ethernet."""
    found: dict[str, Literal["infiniband", "roce"]] = {}
    base = root / "infiniband"
    for device in sorted(base.glob("*")) if base.is_dir() else []:
        layer = _read(device / "ports" / "1" / "link_layer")
        for netdev in (device / "device" / "net").glob("*"):
            found[netdev.name] = "infiniband" if layer == "InfiniBand" else "roce"
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
