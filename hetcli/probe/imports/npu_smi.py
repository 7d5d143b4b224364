"""`npu-smi info`: Huawei Ascend devices. A card has one or two chips; each chip is a device."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

from hetcli.probe.imports.foreign import Known, foreign_profile, unreadable
from hetcli.spec.profile import DeviceInventory, Profile

__all__ = ["devices_from_text", "from_text", "looks_like_text"]

_USAGE: Final = re.compile(r"(\d+)\s*/\s*(\d+)")
_BUS: Final = re.compile(r"^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]$")
# What npu-smi prints as MB is 2^20 bytes: an Ascend 910 with 64 GiB shows 65536.
_MB: Final = 2**20


def looks_like_text(text: str) -> bool:
    """Whether this is the table of `npu-smi info`."""
    return "Bus-Id" in text and re.search(r"\|\s*NPU\b", text) is not None


def from_text(text: str, known: Known) -> tuple[Profile, ...]:
    """The profile of one node: its devices. Raises SpecError."""
    devices = devices_from_text(text)
    if not devices:
        raise unreadable(
            known.label,
            "no chip in the table of `npu-smi info`",
            why="a chip has a line with its card and name, and one with its bus id below",
            fix="keep the whole table",
        )
    return (foreign_profile(known.node, "npu-smi info", devices=devices),)


def devices_from_text(text: str) -> tuple[DeviceInventory, ...]:
    """Every chip, in the order of the table."""
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.strip().startswith("|")
    ]
    devices: list[DeviceInventory] = []
    for upper, lower in itertools.pairwise(lines):
        if len(upper) == len(lower) == 3 and _BUS.match(lower[1]):
            devices.append(_device(len(devices), upper, lower))
    return tuple(devices)


def _device(index: int, upper: Sequence[str], lower: Sequence[str]) -> DeviceInventory:
    """A chip from its two lines: card, name | health | power ..., and chip | bus id | usage."""
    card, _, name = upper[0].partition(" ")
    power = upper[2].split()[0] if upper[2].split() else "-"
    notes = []
    draw = _number(power)
    if draw is None:
        notes.append("npu-smi prints no power for this chip")
    # The last usage is that of the HBM; parts without HBM have one usage only.
    usages = _USAGE.findall(lower[2])
    used, total = (int(value) * _MB for value in usages[-1]) if usages else (None, None)
    if not total:
        total = used = None
        notes.append("npu-smi prints no memory for this chip")
    if upper[1] != "OK":
        notes.append(f"health: {upper[1]}")
    return DeviceInventory(
        index=index,
        name=name.strip() or f"NPU {card}",
        uuid=None,
        pci_bus_id=lower[1],
        kind="npu",
        vendor="huawei",
        memory_total_bytes=total,
        memory_free_bytes=None if total is None or used is None else total - used,
        power_draw_w=draw,
        usable=total is not None and upper[1] not in {"Alarm", "Critical"},
        notes=tuple(notes),
    )


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
