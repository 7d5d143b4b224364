"""The devices of this node as their drivers describe them. Unknown is null, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from hetcli.probe.nvml import Nvml
from hetcli.spec.profile import DeviceInventory, Host

__all__ = ["cpu_inventory", "gpu_inventory"]

# A card with less memory than this that drives a display is not meant for training.
_DISPLAY_CARD_BYTES = 6 * 1024**3


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
        return answer.decode() if isinstance(answer, bytes) else answer


def gpu_inventory(
    nvml: Nvml, *, meminfo: Path = Path("/proc/meminfo")
) -> tuple[DeviceInventory, ...]:
    """Every GPU in PCI bus order; with MIG on, its slices instead of the GPU."""
    devices: list[DeviceInventory] = []
    for index in range(nvml.device_count()):
        handle = nvml.handle(index)
        ask = _Questions(nvml, handle)
        mode = ask("DeviceGetMigMode", note=False)
        if mode is not None and mode[0] == 1:
            devices.extend(_slices(nvml, handle, first=len(devices)))
        else:
            devices.append(_gpu(ask, len(devices), meminfo))
    return tuple(devices)


def _gpu(ask: _Questions, index: int, meminfo: Path) -> DeviceInventory:
    nvml = ask.nvml
    name = str(ask("DeviceGetName") or "unknown GPU")
    memory = ask("DeviceGetMemoryInfo", note=False)
    unified = memory is None and _shares_host_memory(ask, name)
    total, free = (None, None) if memory is None else (int(memory.total), int(memory.free))
    if unified:
        total, free = _host_memory(meminfo)
        ask.notes.append("memory is shared with the host; total and free are the host's")
    elif memory is None:
        ask.notes.append("the driver reports no memory of a discrete card: not usable")
    capability = ask("DeviceGetCudaComputeCapability", note=False)
    pci = ask("DeviceGetPciInfo", note=False)
    power = ask("DeviceGetEnforcedPowerLimit")
    clock = ask("DeviceGetMaxClockInfo", getattr(nvml.module, "NVML_CLOCK_SM", 1), note=False)
    display = ask("DeviceGetDisplayActive", note=False)
    ecc = ask("DeviceGetEccMode", note=False)
    numa = ask("DeviceGetNumaNodeId", note=False)
    usable = total is not None
    if total is not None and display and total < _DISPLAY_CARD_BYTES:
        usable = False
        ask.notes.append("drives a display and has little memory: left out")
    return DeviceInventory(
        index=index,
        name=name,
        uuid=ask("DeviceGetUUID"),
        pci_bus_id=_bus_id(pci),
        kind="gpu",
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_total_bytes=total,
        memory_free_bytes=free,
        unified_memory=unified,
        power_limit_w=None if power is None else power / 1000,
        clock_sm_max_hz=None if clock is None else clock * 1e6,
        pcie_generation=ask("DeviceGetCurrPcieLinkGeneration", note=False),
        pcie_width=ask("DeviceGetCurrPcieLinkWidth", note=False),
        pcie_generation_max=ask("DeviceGetMaxPcieLinkGeneration", note=False),
        pcie_width_max=ask("DeviceGetMaxPcieLinkWidth", note=False),
        ecc=None if ecc is None else bool(ecc[0]),
        numa_node=numa,
        display_active=None if display is None else bool(display),
        usable=usable,
        notes=tuple(ask.notes),
    )


def _slices(nvml: Nvml, parent: Any, first: int) -> list[DeviceInventory]:
    """The MIG instances of one GPU: each with its own memory, none with the parent's."""
    count, _ = nvml.ask("DeviceGetMaxMigDeviceCount", parent)
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
                memory_total_bytes=None if memory is None else int(memory.total),
                memory_free_bytes=None if memory is None else int(memory.free),
                usable=memory is not None,
                notes=("MIG instance: no peer-to-peer, never in a tp or pp group", *ask.notes),
            )
        )
    return made


def _bus_id(pci: Any) -> str | None:
    value = getattr(pci, "busId", None)
    return value.decode() if isinstance(value, bytes) else value


def _shares_host_memory(ask: _Questions, name: str) -> bool:
    """Integrated Blackwell and Tegra parts have no memory of their own (NVML: not supported)."""
    architecture = ask("DeviceGetArchitecture", note=False)
    integrated = any(part in name for part in ("GB10", "Orin", "Xavier", "Thor"))
    return integrated and architecture != 0


def _host_memory(meminfo: Path) -> tuple[int | None, int | None]:
    fields: Mapping[str, int] = {}
    if meminfo.exists():
        lines = (line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        fields = {key: int(rest.split()[0]) * 1024 for key, rest in lines}
    return fields.get("MemTotal"), fields.get("MemAvailable")


def cpu_inventory(host: Host) -> tuple[DeviceInventory, ...]:
    """The processor as the only device, so that every machine can be profiled."""
    return (
        DeviceInventory(
            index=0,
            name=host.cpu,
            uuid=None,
            pci_bus_id=None,
            kind="cpu",
            memory_total_bytes=host.memory_bytes,
            memory_free_bytes=psutil.virtual_memory().available,
            unified_memory=True,
        ),
    )
