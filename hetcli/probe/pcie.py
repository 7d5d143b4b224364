"""PCI Express: what a slot can carry, and how far two devices are from each other in sysfs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hetcli.spec.profile import PathKind

__all__ = ["PCI_DEVICES", "numa_node", "path_between", "pcie_bytes_per_s"]

PCI_DEVICES: Final = Path("/sys/bus/pci/devices")

# Transfers a second of one lane, and how many of how many bits of the line code are data: PCI
# Express base specification 6.0, section 4.2 (8b/10b, 128b/130b, 242 of a flit's 256 bytes).
_LANES: Final = {
    1: (2.5e9, 8, 10),
    2: (5e9, 8, 10),
    3: (8e9, 128, 130),
    4: (16e9, 128, 130),
    5: (32e9, 128, 130),
    6: (64e9, 242, 256),
}


def pcie_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """Bytes per second in one direction, headers not counted; None for an unknown link."""
    if generation not in _LANES or not width:
        return None
    transfers, data, coded = _LANES[generation]
    return transfers * width * data / (8 * coded)


def _address(bus_id: str) -> str:
    """The address as sysfs spells it: four digits of domain, lower case."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def numa_node(bus_id: str | None, root: Path = PCI_DEVICES) -> int | None:
    """The NUMA node of a device; None where the machine has only one and says so with -1."""
    if bus_id is None:
        return None
    try:
        node = int((root / _address(bus_id) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def path_between(one: Path, other: Path) -> PathKind:
    """What lies between two PCI devices, given their folders under /sys/devices.

    `pix`: one switch; `pxb`: several; `phb`: the host bridge they share; `node`: the same NUMA
    node; `sys`: the link between sockets. These are the words of `nvidia-smi topo -m`.
    """
    first, second = one.resolve().parts, other.resolve().parts
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    if shared == len(first) or shared == len(second):
        return "pix"
    common = first[shared - 1]
    if common.startswith("pci"):
        return "phb"
    if ":" in common:
        # Below a common switch port a device has its downstream port and itself.
        below = max(len(first), len(second)) - shared
        return "pix" if below <= 2 else "pxb"
    nodes = {_numa(one), _numa(other)}
    return "node" if len(nodes) == 1 and None not in nodes else "sys"


def _numa(device: Path) -> str | None:
    try:
        return (device / "numa_node").read_text().strip()
    except OSError:
        return None
