"""Which GPUs this process may use, and how CUDA is made to number them as the inventory does.

CUDA numbers devices fastest first unless told otherwise, the driver by bus address, so an index of
one is not an index of the other. Measuring processes get the UUIDs of the devices in the order of
the inventory: the n-th device of CUDA is then the n-th of the list, whatever else is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hetcli.spec.profile import DeviceInventory

__all__ = ["cuda_environment", "restrict"]


def restrict(
    devices: Sequence[DeviceInventory], environment: Mapping[str, str]
) -> tuple[tuple[DeviceInventory, ...], tuple[str, ...]]:
    """Mark the devices that CUDA_VISIBLE_DEVICES hides as not usable; also returns notes.

    Entries are indices or beginnings of UUIDs; the list ends at the first entry that names no
    device (CUDA Programming Guide, section on environment variables).
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return tuple(devices), ()
    notes = []
    by_index = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen: set[int] = set()
    for entry in (part.strip() for part in value.split(",")):
        found = _find(devices, entry)
        if found is None:
            break
        if entry.isdigit() and not by_index and len({device.name for device in devices}) > 1:
            notes = [
                "CUDA_VISIBLE_DEVICES holds indices on a node of unlike GPUs: they are read in PCI "
                "bus order; set CUDA_DEVICE_ORDER=PCI_BUS_ID so that CUDA agrees"
            ]
        chosen.add(found)
    hidden = f"left out: not in CUDA_VISIBLE_DEVICES={value}"
    return tuple(
        device
        if device.index in chosen
        else device.model_copy(update={"usable": False, "notes": (*device.notes, hidden)})
        for device in devices
    ), tuple(notes)


def _find(devices: Sequence[DeviceInventory], entry: str) -> int | None:
    if entry.isdigit():
        return int(entry) if int(entry) < len(devices) else None
    if not entry:
        return None
    named = [device.index for device in devices if (device.uuid or "").startswith(entry)]
    return named[0] if len(named) == 1 else None


def cuda_environment(
    devices: Sequence[DeviceInventory], index: int
) -> tuple[dict[str, str], int | None]:
    """The variables for the process that measures device `index`, and its ordinal there.

    All usable GPUs are shown, since peer-to-peer copies need both ends; CUDA shows at most one MIG
    instance to a process, so that one stands alone. The processor has no ordinal; its threads give
    way while they wait, since spinning ones stall each other for whole scheduler ticks as soon as
    anything else runs on the machine.
    """
    device = devices[index]
    if device.kind == "mig":
        return _variables([device.uuid or ""]), 0
    if device.kind != "gpu":
        return {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}, None
    gpus = [each for each in devices if each.kind == "gpu" and each.usable]
    ordinal = next(place for place, each in enumerate(gpus) if each.index == index)
    return _variables([each.uuid or "" for each in gpus]), ordinal


def _variables(uuids: Sequence[str]) -> dict[str, str]:
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(uuids)}
