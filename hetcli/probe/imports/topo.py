"""`nvidia-smi topo -m`: who is joined to whom, and the nearest interface of every GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from hetcli.probe.imports.foreign import Known, foreign_profile, listed_device, unreadable
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
# One NVLink in one direction, from V100 to H200: NVIDIA's white papers. Blackwell's is twice that.
_NVLINK: Final = 25e9


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
    devices = [
        listed_device(place, known.device or "unknown GPU").model_copy(
            update={"numa_node": numa[name]}
        )
        for place, name in enumerate(gpus)
    ]
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
        device_links=tuple(
            _link(one, other, rows[gpus[one]][columns.index(gpus[other])])
            for one in range(len(gpus))
            for other in range(one + 1, len(gpus))
        ),
        nic_distances=tuple(
            NicDistance(
                device=place,
                interface=nic,
                path=_PATHS.get(rows[name][columns.index(nic)], "unknown"),
            )
            for place, name in enumerate(gpus)
            for nic in nics
        ),
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


def _link(one: int, other: int, cell: str) -> DeviceLink:
    if cell.startswith("NV"):
        count = int(cell[2:])
        return DeviceLink(
            devices=(one, other), path="nvlink", nvlinks=count, bytes_per_s=count * _NVLINK
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
