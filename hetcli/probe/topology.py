"""How the devices of a node reach each other and its network interfaces."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hetcli.probe.nvml import Nvml
from hetcli.probe.pcie import PCI_DEVICES, path_between
from hetcli.spec.profile import DeviceInventory, DeviceLink, NicDistance, NicInventory, PathKind

__all__ = ["device_links", "nic_distances", "nvlink_bytes_per_s"]

# Bytes per second of one NVLink in one direction, by the compute capability of its GPU: NVIDIA's
# white papers of P100, V100, Turing (RTX 8000), A100, GA102 (RTX 3090, A6000), H100 and Blackwell.
# The driver's version of a link does not tell: GA102 has slower links of the same version, and the
# numbers that nvmlDeviceGetNvLinkVersion returns (nvmlNvlinkVersion_t) changed between drivers.
_NVLINK: Final = {
    "6.0": 20e9,
    "7.0": 25e9,
    "7.5": 25e9,
    "8.0": 25e9,
    "8.6": 14.0625e9,
    "9.0": 25e9,
    "10.0": 50e9,
    "10.3": 50e9,
}
_SWITCH: Final = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
# nvmlGpuTopologyLevel_t
_LEVELS: Final[Mapping[int, PathKind]] = {
    0: "same",
    10: "pix",
    20: "pxb",
    30: "phb",
    40: "node",
    50: "sys",
}


def nvlink_bytes_per_s(compute_capability: str | None, links: int) -> float | None:
    """Nominal rate of `links` NVLinks of a GPU in one direction; None for an unknown GPU."""
    rate = _NVLINK.get(compute_capability or "")
    return None if rate is None else rate * links


def device_links(nvml: Nvml, devices: Sequence[DeviceInventory]) -> tuple[DeviceLink, ...]:
    """The path between every two GPUs of the node. MIG instances have none between them."""
    by_uuid = nvml.handles()
    gpus = [device for device in devices if device.kind == "gpu" and device.uuid in by_uuid]
    handles = {device.index: by_uuid[device.uuid or ""] for device in gpus}
    ends = {device.index: _nvlinks(nvml, handles[device.index]) for device in gpus}
    links = []
    for one, other in itertools.combinations(gpus, 2):
        count = _joint(ends[one.index], ends[other.index], one, other)
        if count:
            links.append(
                DeviceLink(
                    devices=(one.index, other.index),
                    path="nvlink",
                    nvlinks=count,
                    bytes_per_s=nvlink_bytes_per_s(one.compute_capability, count),
                )
            )
            continue
        level, _ = nvml.ask(
            "DeviceGetTopologyCommonAncestor", handles[one.index], handles[other.index]
        )
        links.append(
            DeviceLink(
                devices=(one.index, other.index),
                path=_LEVELS.get(-1 if level is None else level, "unknown"),
            )
        )
    return tuple(links)


def _nvlinks(nvml: Nvml, handle: Any) -> Counter[str]:
    """Active NVLinks by what is at their other end: a bus id, or "switch"."""
    ends: Counter[str] = Counter()
    for link in range(nvml.constant("NVML_NVLINK_MAX_LINKS")):
        state, _ = nvml.ask("DeviceGetNvLinkState", handle, link)
        if state != 1:
            continue
        kind, _ = nvml.ask("DeviceGetNvLinkRemoteDeviceType", handle, link)
        remote, _ = nvml.ask("DeviceGetNvLinkRemotePciInfo", handle, link)
        ends["switch" if kind == _SWITCH or remote is None else str(remote.busId)] += 1
    return ends


def _joint(
    ends: Counter[str], others: Counter[str], one: DeviceInventory, other: DeviceInventory
) -> int:
    """NVLinks between two GPUs: those that end at each other, else what both have to the switch."""
    direct = ends.get(other.pci_bus_id or "", 0)
    if direct:
        return direct
    if one.name != other.name:
        return 0
    return min(ends.get("switch", 0), others.get("switch", 0))


def nic_distances(
    devices: Sequence[DeviceInventory],
    nics: Sequence[NicInventory],
    *,
    pci: Path = PCI_DEVICES,
    network: Path = Path("/sys/class/net"),
) -> tuple[NicDistance, ...]:
    """How far every physical network interface is from every device that has a bus id."""
    found = []
    for device in devices:
        if device.pci_bus_id is None:
            continue
        domain, _, rest = device.pci_bus_id.lower().partition(":")
        own = pci / f"{int(domain, 16):04x}:{rest}"
        for nic in nics:
            place = network / nic.interface / "device"
            if own.exists() and place.exists():
                found.append(
                    NicDistance(
                        device=device.index,
                        interface=nic.interface,
                        path=path_between(own, place),
                    )
                )
    return tuple(found)
