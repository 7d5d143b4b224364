"""What a node's script checks before it starts training."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hetcli.catalog.gpu import Gpu
from hetcli.export.placement import Host, by_machine
from hetcli.export.planned import Planned
from hetcli.units import GIB

__all__ = ["LISTED_VENDORS", "DeviceCheck", "device_checks", "name_words"]

# Vendors whose devices templates/launch/preflight.sh.j2 lists.
LISTED_VENDORS: Final = ("nvidia", "amd")

MIB: Final = GIB // 1024
# Words of a catalogue name that nvidia-smi leaves out or spells in another way. Memory is checked
# by its size.
_FORM: Final = re.compile(r"sxm\d*|pcie|nvl|hbm\d\w*|\d+gb")
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """One device: its index, words that its name must hold, and the memory that must be free."""

    index: int
    words: str
    needed_mib: int


def name_words(name: str) -> str:
    """The words of a catalogue name that the driver's name of the same card holds too."""
    words = [word for word in _SEPARATORS.split(name.lower()) if word]
    return " ".join(word for word in words if not _FORM.fullmatch(word))


def device_checks(planned: Planned, host: Host) -> tuple[DeviceCheck, ...]:
    """The checks of a node's devices in rank order.

    The memory is the predicted peak plus the margin that the workload asks for, rounded up.
    """
    margin = planned.plan.inputs.workload.memory_margin
    peaks = {
        device.index: device.peak_memory_bytes
        for device in by_machine(planned.plan).predicted.devices
        if device.node == host.name
    }
    return tuple(
        DeviceCheck(
            index,
            _words(planned.gpu_at(host.name, index)),
            -(-(peaks.get(index, 0) + margin) // MIB),
        )
        for index in host.devices
    )


def _words(gpu: Gpu) -> str:
    """None of a device that the cluster file describes: its name there is anybody's choice."""
    return "" if gpu.architecture == "custom" else name_words(gpu.name)
