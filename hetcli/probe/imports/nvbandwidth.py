"""nvbandwidth: copies between host and devices, and between devices of one node.

Text and JSON: README.md and json_output.cpp of NVIDIA/nvbandwidth. Bidirectional tests and those
with several copies at once are left aside: a profile holds what one copy reaches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from hetcli.probe.imports.foreign import Known, foreign_profile, listed_device, once, unreadable
from hetcli.spec.profile import HostCopyMeasurement, LinkMeasurement, Profile

__all__ = ["from_json", "from_text", "looks_like_json", "looks_like_text"]

# --bufferSize of nvbandwidth 0.4 and newer; the text does not print it.
_BUFFER_BYTES: Final = 512 * 2**20
_RUNNING: Final = re.compile(r"^Running (?P<test>\w+)\.?\s*$")
_DEVICE: Final = re.compile(
    r"^Device (?P<index>\d+): (?P<name>.+?)(?: \((?P<bus>[0-9A-Fa-f:.]+)\))?$"
)
_HOST: Final[Mapping[str, Literal["to_device", "to_host"]]] = {
    "host_to_device_memcpy_ce": "to_device",
    "device_to_host_memcpy_ce": "to_host",
}
# Which of row and column sends: a read moves data from the column (the peer) to the row.
_PEER: Final[Mapping[str, Literal["row", "column"]]] = {
    "device_to_device_memcpy_read_ce": "column",
    "device_to_device_memcpy_write_ce": "row",
}

Matrix = Sequence[Sequence[float | None]]


def looks_like_text(text: str) -> bool:
    """Whether this is the printed output."""
    return (
        "nvbandwidth" in text or re.search(r"memcpy (CE|SM) .*bandwidth \(GB/s\)", text) is not None
    )


def looks_like_json(data: Mapping[str, Any]) -> bool:
    """Whether this is the JSON output."""
    return "nvbandwidth" in data


def from_text(text: str, known: Known) -> tuple[Profile, ...]:
    """The profile of one node. Raises SpecError."""
    matrices: dict[str, list[list[float | None]]] = {}
    names: dict[int, tuple[str, str | None]] = {}
    test = None
    for line in text.splitlines():
        running, device = _RUNNING.match(line.strip()), _DEVICE.match(line.strip())
        if running:
            test = running["test"]
        elif device:
            names[int(device["index"])] = (device["name"], device["bus"])
        elif test is not None and (row := _numbers(line.split())) is not None:
            matrices.setdefault(test, []).append(row)
        elif line.startswith("SUM"):
            test = None
    return _profile(matrices, names, _BUFFER_BYTES, known)


def _numbers(words: Sequence[str]) -> list[float | None] | None:
    """A row of a matrix: its number, then values; the line of column numbers is none."""
    if len(words) < 2 or not words[0].isdigit() or not any("." in word for word in words[1:]):
        return None
    try:
        return [None if word == "N/A" else float(word) for word in words[1:]]
    except ValueError:
        return None


def from_json(data: Mapping[str, Any], known: Known) -> tuple[Profile, ...]:
    """The profile of one node. Raises SpecError."""
    root = data["nvbandwidth"]
    try:
        cases = [case for case in root["testcases"] if case.get("bandwidth_matrix")]
        matrices = {
            str(case["name"]): [
                [None if value == "N/A" else float(value) for value in row]
                for row in case["bandwidth_matrix"]
            ]
            for case in cases
        }
        sizes = {int(case["bufferSize"]) * 2**20 for case in cases if "bufferSize" in case}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable(
            known.label,
            f"no nvbandwidth report: {error}",
            why="it has testcases, each with a name and a bandwidth_matrix",
            fix="write it with nvbandwidth -j",
        ) from None
    return _profile(matrices, {}, sizes.pop() if len(sizes) == 1 else _BUFFER_BYTES, known)


def _profile(
    matrices: Mapping[str, Matrix],
    names: Mapping[int, tuple[str, str | None]],
    nbytes: int,
    known: Known,
) -> tuple[Profile, ...]:
    copies = tuple(_copies(matrices, nbytes))
    links = tuple(_links(matrices, nbytes, known.node))
    if not copies and not links:
        raise unreadable(
            known.label,
            "no copy between a host and a device, or between two devices",
            why=f"these tests are read: {', '.join((*_HOST, *_PEER))}",
            fix="run nvbandwidth without -t, or with one of these",
        )
    count = max((1 + row.device for row in copies), default=0)
    count = max([count, *(1 + max(row.devices) for row in links)])
    unnamed = known.device or "unknown GPU"
    devices = [listed_device(index, *names.get(index, (unnamed, None))) for index in range(count)]
    profile = foreign_profile(
        known.node, "nvbandwidth", devices=devices, host_copy=copies, links=links
    )
    return (profile,)


def _copies(matrices: Mapping[str, Matrix], nbytes: int) -> list[HostCopyMeasurement]:
    return [
        HostCopyMeasurement(
            device=device,
            direction=direction,
            transferred_bytes=nbytes,
            seconds=once(nbytes / (rate * 1e9)),
            bytes_per_s=rate * 1e9,
        )
        for test, direction in _HOST.items()
        for device, rate in enumerate(matrices[test][0] if test in matrices else ())
        if rate
    ]


def _links(matrices: Mapping[str, Matrix], nbytes: int, node: str) -> list[LinkMeasurement]:
    """One row for each ordered pair; the faster of reading and writing, as a library chooses."""
    rates: dict[tuple[int, int], float] = {}
    for test, sender in _PEER.items():
        for row, values in enumerate(matrices.get(test, ())):
            for column, rate in enumerate(values):
                if rate and row != column:
                    pair = (row, column) if sender == "row" else (column, row)
                    rates[pair] = max(rates.get(pair, 0.0), rate * 1e9)
    return [
        LinkMeasurement(
            operation="send_recv",
            backend="unknown",
            scope="intra_node",
            nodes=(node,),
            devices=pair,
            ranks=2,
            message_bytes=nbytes,
            seconds=once(nbytes / rate),
            algbw_bytes_per_s=rate,
            busbw_bytes_per_s=rate,
            verified=True,
        )
        for pair, rate in sorted(rates.items())
    ]
