"""`nvidia-smi topo -m`: who is joined to whom, and the nearest interface of every GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from hetcli.catalog.hardware import find_gpu
from hetcli.errors import UnknownNameError
from hetcli.probe.imports.foreign import Known, foreign_profile, listed_device, unreadable
from hetcli.probe.topology import nvlink_bytes_per_s
from hetcli.spec.profile import DeviceLink, NicDistance, NicInventory, PathKind, Profile

__all__ = ["from_text", "looks_like_text"]

_NODE: Final = re.compile(r"^(GPU|NIC|mlx\d_|ib)\d+$")
_CELL: Final = re.compile(r"^(X|NV\d+|PIX|PXB|PHB|NODE|SYS)$")
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_LEGEND: Final = re.compile(r"^\s*NIC(\d+): (\S+)\s*$", re.MULTILINE)
_PATHS: Final[Mapping[str, PathKind]] = {
    "PIX": "pix",
    "PXB": "pxb",
    "PHB": "phb",
    "NODE": "node",
    "SYS": "sys",
}
# The matrix counts NVLinks and names no GPU. From V100 to H200 a link is as fast as that of 8.0.
_USUAL_CAPABILITY: Final = "8.0"
_ASSUMED_RATE: Final = (
    "the file names no GPU: 25 GB/s an NVLink each way, as from V100 to H200 (assumed); "
    "--device-name tells"
)


def looks_like_text(text: str) -> bool:
    """Whether this holds such a matrix."""
    return re.search(r"^\s*GPU0\s+X\b", _ESCAPES.sub("", text), re.MULTILINE) is not None


def from_text(text: str, known: Known) -> tuple[Profile, ...]:
    """The profile of one node: devices, paths, interfaces and distances. Raises SpecError.

    Header words are taken in order: names of columns first, then titles of two words (`CPU
    Affinity`), which is why rows are read from their left as far as cells of the matrix go.
    """
    lines = [_ESCAPES.sub("", line).rstrip() for line in text.splitlines()]
    header = next((line for line in lines if line.split()[:1] == ["GPU0"]), None)
    columns: list[str] = []
    for word in header.split() if header else ():
        if not _NODE.match(word):
            break
        columns.append(word)
    rows = {
        words[0]: words[1:]
        for line in lines
        if line != header and (words := line.split()) and words[0] in columns
    }
    gpus = [name for name in columns if name.startswith("GPU")]
    if not gpus or any(len(rows.get(name, ())) < len(columns) for name in gpus):
        raise unreadable(
            known.label,
            "no complete matrix of `nvidia-smi topo -m`",
            why="it has a line of names, and for each GPU a row with as many cells",
            fix="keep the whole output, from the line that starts with GPU0",
        )
    for name in gpus:
        _check(rows[name][: len(columns)], name, known)
    nics = [name for name in columns if name not in gpus]
    legend = {f"NIC{number}": device for number, device in _LEGEND.findall(text)}
    numa = {name: _numa(rows[name], len(columns), header or "") for name in gpus}
    capability = _capability(known.device)
    devices = []
    for place, name in enumerate(gpus):
        device = listed_device(place, known.device or "unknown GPU")
        unknown = () if numa[name] is not None else ("no NUMA affinity is printed for it",)
        update = {"numa_node": numa[name], "notes": (*device.notes, *unknown)}
        devices.append(device.model_copy(update=update))
    links = tuple(
        _link(one, other, rows[gpus[one]][columns.index(gpus[other])], capability)
        for one in range(len(gpus))
        for other in range(one + 1, len(gpus))
    )
    profile = foreign_profile(
        known.node,
        "nvidia-smi topo -m",
        devices=devices,
        nics=tuple(
            NicInventory(
                interface=name,
                kind="unknown",
                rate_bytes_per_s=None,
                device=legend.get(name),
                notes=("imported: its rate is not known",),
            )
            for name in nics
        ),
        device_links=links,
        nic_distances=tuple(
            NicDistance(
                device=place,
                interface=nic,
                path=_PATHS.get(rows[name][columns.index(nic)], "unknown"),
            )
            for place, name in enumerate(gpus)
            for nic in nics
        ),
        notes=(_ASSUMED_RATE,)
        if capability is None and any(link.nvlinks for link in links)
        else (),
    )
    return (profile,)


def _check(cells: Sequence[str], name: str, known: Known) -> None:
    for cell in cells:
        if not _CELL.match(cell):
            raise unreadable(
                known.label,
                f"{cell!r} in the row of {name}",
                why="a cell is X, NV#, PIX, PXB, PHB, NODE or SYS",
                fix="keep the columns apart by spaces or tabs, as they were printed",
            )


def _capability(name: str | None) -> str | None:
    """The compute capability of the GPU that the user names; None without a name that is known."""
    try:
        return None if name is None else find_gpu(name).compute_capability
    except UnknownNameError:
        return None


def _link(one: int, other: int, cell: str, capability: str | None) -> DeviceLink:
    if cell.startswith("NV"):
        count = int(cell[2:])
        return DeviceLink(
            devices=(one, other),
            path="nvlink",
            nvlinks=count,
            bytes_per_s=nvlink_bytes_per_s(capability or _USUAL_CAPABILITY, count),
        )
    return DeviceLink(devices=(one, other), path=_PATHS.get(cell, "unknown"))


def _numa(row: Sequence[str], cells: int, header: str) -> int | None:
    """The word under `NUMA Affinity`: behind the cells and the CPU list; `N/A` is unknown."""
    if "NUMA Affinity" not in header:
        return None
    behind = row[cells:]
    position = 1 if "CPU Affinity" in header else 0
    value = behind[position] if len(behind) > position else ""
    return int(value) if value.isdigit() else None
