"""The devices of this node as their drivers describe them. Unknown is null, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from hetcli.probe.nvml import Nvml
from hetcli.probe.pcie import PCI_DEVICES, numa_node, pcie_bytes_per_s
from hetcli.spec.profile import DeviceInventory, Host
from hetcli.units import format_bytes

__all__ = ["cpu_inventory", "gpu_inventory"]

# A card with less memory than this that drives a display is not meant for training.
_DISPLAY_CARD_BYTES = 6 * 1024**3
# Parts that have no memory of their own: NVIDIA's Tegra line and the GB10 of DGX Spark.
_INTEGRATED = ("GB10", "Orin", "Xavier", "Thor", "Tegra")
# Somebody else's work on the device makes every measurement worthless.
_BUSY = 0.1


class _Questions:
    """Asks NVML about one device and keeps the reasons of what has no answer."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.notes: list[str] = []

    def __call__(self, name: str, *arguments: Any, note: bool = True) -> Any:
        answer, reason = self.nvml.ask(name, self.handle, *arguments)
        if reason is not None and note:
            self.notes.append(reason)
        return answer


def gpu_inventory(
    nvml: Nvml, *, meminfo: Path = Path("/proc/meminfo"), pci: Path = PCI_DEVICES
) -> tuple[DeviceInventory, ...]:
    """Every GPU in PCI bus order; with MIG on, its slices instead of the GPU."""
    devices: list[DeviceInventory] = []
    for place in range(nvml.device_count()):
        handle, lost = nvml.handle(place)
        if lost is not None:
            devices.append(_lost(len(devices), place, lost))
            continue
        ask = _Questions(nvml, handle)
        mode = ask("DeviceGetMigMode", note=False)
        if mode is not None and mode[0] == 1:
            devices.extend(_slices(nvml, handle, first=len(devices)))
        else:
            devices.append(_gpu(ask, len(devices), meminfo, pci))
    return tuple(devices)


def _gpu(ask: _Questions, index: int, meminfo: Path, pci: Path) -> DeviceInventory:
    nvml = ask.nvml
    name = str(ask("DeviceGetName") or "unknown GPU")
    total, free, unified = _memory(ask, name, meminfo)
    capability = ask("DeviceGetCudaComputeCapability", note=False)
    info = ask("DeviceGetPciInfo", note=False)
    bus_id = None if info is None else str(info.busId)
    limit = ask("DeviceGetEnforcedPowerLimit")
    draw = ask("DeviceGetPowerUsage", note=False)
    clock = ask("DeviceGetMaxClockInfo", nvml.constant("NVML_CLOCK_SM"), note=False)
    display = ask("DeviceGetDisplayActive", note=False)
    ecc = ask("DeviceGetEccMode", note=False)
    numa = ask("DeviceGetNumaNodeId", note=False)
    usable = total is not None
    if total is not None and display and total < _DISPLAY_CARD_BYTES:
        usable = False
        ask.notes.append(f"drives a display and has {format_bytes(total)}: left out")
    return DeviceInventory(
        index=index,
        name=name,
        uuid=ask("DeviceGetUUID"),
        pci_bus_id=bus_id,
        kind="gpu",
        vendor="nvidia",
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_total_bytes=total,
        memory_free_bytes=free,
        unified_memory=unified,
        power_limit_w=None if limit is None else limit / 1000,
        power_draw_w=None if draw is None else draw / 1000,
        utilization=_utilization(ask),
        clock_sm_max_hz=None if clock is None else clock * 1e6,
        **_pcie(ask, unified),
        ecc=None if ecc is None else bool(ecc[0]),
        numa_node=numa_node(bus_id, pci) if numa is None else numa,
        display_active=None if display is None else bool(display),
        usable=usable,
        notes=tuple(ask.notes),
    )


def _lost(index: int, place: int, reason: str) -> DeviceInventory:
    """A card that the driver counts but cannot reach."""
    return DeviceInventory(
        index=index,
        name=f"GPU {place} (lost)",
        uuid=None,
        pci_bus_id=None,
        vendor="nvidia",
        memory_total_bytes=None,
        memory_free_bytes=None,
        usable=False,
        notes=(f"{reason}: see dmesg for an Xid error, then reset the card or reboot the node",),
    )


def _memory(ask: _Questions, name: str, meminfo: Path) -> tuple[int | None, int | None, bool]:
    """Total and free bytes, and whether they are the host's."""
    unified = any(part in name for part in _INTEGRATED)
    memory = ask("DeviceGetMemoryInfo", note=False)
    if memory is not None:
        return int(memory.total), int(memory.free), unified
    if not unified:
        ask.notes.append("the driver reports no memory of a discrete card: not usable")
        return None, None, False
    ask.notes.append("memory is shared with the host; total and free are the host's")
    return *_host_memory(meminfo), True


def _host_memory(meminfo: Path) -> tuple[int | None, int | None]:
    fields: Mapping[str, int] = {}
    if meminfo.exists():
        lines = (line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        fields = {key: int(rest.split()[0]) * 1024 for key, rest in lines}
    return fields.get("MemTotal"), fields.get("MemAvailable")


def _utilization(ask: _Questions) -> float | None:
    rates = ask("DeviceGetUtilizationRates", note=False)
    if rates is None:
        return None
    share = float(rates.gpu) / 100
    if share > _BUSY:
        ask.notes.append(f"busy when it was probed ({share:.0%}): measured rates will be too low")
    return share


def _pcie(ask: _Questions, unified: bool) -> dict[str, Any]:
    """Generation and width, now and at most; the nominal rate of the slot.

    An idle card lowers its generation to save power, so the nominal rate takes the largest one; the
    width does not change with load, so a width below the largest is a fault.
    """
    generation = ask("DeviceGetCurrPcieLinkGeneration", note=False)
    width = ask("DeviceGetCurrPcieLinkWidth", note=False)
    most = ask("DeviceGetMaxPcieLinkGeneration", note=False)
    widest = ask("DeviceGetMaxPcieLinkWidth", note=False)
    rate = None if unified else pcie_bytes_per_s(most, width or widest)
    if width and widest and width < widest and not unified:
        ask.notes.append(f"PCIe trained to x{width} of x{widest}: reseat the card or its riser")
    return {
        "pcie_generation": generation,
        "pcie_width": width,
        "pcie_generation_max": most,
        "pcie_width_max": widest,
        "pcie_bytes_per_s": rate,
    }


def _slices(nvml: Nvml, parent: Any, first: int) -> list[DeviceInventory]:
    """The MIG instances of one GPU: each with its own memory, none with the parent's."""
    count, _ = nvml.ask("DeviceGetMaxMigDeviceCount", parent)
    capability, _ = nvml.ask("DeviceGetCudaComputeCapability", parent)
    made: list[DeviceInventory] = []
    for position in range(count or 0):
        handle, _ = nvml.ask("DeviceGetMigDeviceHandleByIndex", parent, position)
        if handle is None:
            continue
        ask = _Questions(nvml, handle)
        memory = ask("DeviceGetMemoryInfo")
        made.append(
            DeviceInventory(
                index=first + len(made),
                name=str(ask("DeviceGetName") or "MIG instance"),
                uuid=ask("DeviceGetUUID"),
                pci_bus_id=None,
                kind="mig",
                vendor="nvidia",
                compute_capability=None
                if capability is None
                else f"{capability[0]}.{capability[1]}",
                memory_total_bytes=None if memory is None else int(memory.total),
                memory_free_bytes=None if memory is None else int(memory.free),
                utilization=_utilization(ask),
                usable=memory is not None,
                notes=("MIG instance: no peer-to-peer, never in a tp or pp group", *ask.notes),
            )
        )
    return made


def cpu_inventory(host: Host) -> tuple[DeviceInventory, ...]:
    """The processor as the only device, so that every machine can be profiled."""
    return (
        DeviceInventory(
            index=0,
            name=host.cpu or "CPU",
            uuid=None,
            pci_bus_id=None,
            kind="cpu",
            vendor="cpu",
            memory_total_bytes=host.memory_bytes,
            memory_free_bytes=psutil.virtual_memory().available,
            unified_memory=True,
        ),
    )
