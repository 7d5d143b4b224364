"""nccl-tests: its printed table, and the JSON that `--output_file` writes.

Columns and keys: src/util.cu of NVIDIA/nccl-tests. The better of out-of-place and in-place counts,
as frameworks choose it; times are those of the slowest rank already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hetcli.probe.bus import bus_factor
from hetcli.probe.imports.foreign import Known, foreign_profile, listed_device, once, unreadable
from hetcli.spec.profile import LinkMeasurement, LinkOperation, Profile

__all__ = ["from_json", "from_text", "looks_like_json", "looks_like_text"]

_OPERATIONS: Final[Mapping[str, LinkOperation]] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
}
_PROGRAM: Final = re.compile(rf"({'|'.join(_OPERATIONS)})_perf")
_RANK: Final = re.compile(
    r"^#\s+Rank\s+(?P<rank>\d+) (?:Group\s+\d+ )?Pid\s+\d+ on\s+(?P<host>\S+) "
    r"device\s+(?P<device>\d+) \[(?P<place>[^\]]*)\] (?P<name>.+?)\s*$",
    re.MULTILINE,
)
_HEADER: Final = re.compile(r"^#\s+Using devices", re.MULTILINE)
_PROCESSES: Final = re.compile(r"\s-(?:np|n)\s+(\d+)")
# size, count, type, redop, root, then twice: time, algbw, busbw, #wrong.
_FIELDS: Final = 13
_VARIABLE: Final = re.compile(r"\b(NCCL_[A-Z0-9_]+)=(\S+)")


@dataclass(frozen=True)
class _Rank:
    host: str
    device: int
    place: str
    name: str


@dataclass(frozen=True)
class _Row:
    size: int
    seconds: float
    busbw: float
    algbw: float
    wrong: float | None


def looks_like_text(text: str) -> bool:
    """Whether this is the table that the tests print."""
    return "busbw" in text and ("#wrong" in text or "out-of-place" in text)


def looks_like_json(data: Mapping[str, Any]) -> bool:
    """Whether this is the JSON report of the tests."""
    return "results" in data and "nccl_version" in data


def from_text(text: str, known: Known) -> tuple[Profile, ...]:
    """The hosts of a printed table; the first holds the measurements. Raises SpecError."""
    ranks = [
        _Rank(found["host"], int(found["device"]), found["place"], found["name"])
        for found in _RANK.finditer(text)
    ]
    started = len(_HEADER.findall(text))
    processes = _PROCESSES.search(text)
    expected = known.ranks or max(started, int(processes[1]) if processes else 0)
    rows = [row for line in text.splitlines() if (row := _row(line.split())) is not None]
    alone = len(ranks) > 1 and started == len(ranks)
    program = _PROGRAM.search(text)
    return _profiles(
        ranks[:1] if alone else ranks,
        rows,
        program[1] if program else None,
        dict(_VARIABLE.findall(text)),
        expected,
        known,
    )


def _row(words: Sequence[str]) -> _Row | None:
    if len(words) < _FIELDS or not words[0].isdigit():
        return None
    try:
        halves = [words[5:9], words[9:13]]
        made = [
            _Row(
                int(words[0]),
                float(time) * 1e-6,
                float(bus) * 1e9,
                float(rate) * 1e9,
                None if wrong == "N/A" else float(wrong),
            )
            for time, rate, bus, wrong in halves
        ]
    except ValueError:
        return None
    return _better(made)


def _better(rows: Sequence[_Row]) -> _Row:
    """The faster half; wrong values of either count."""
    fastest = min(rows, key=lambda row: row.seconds)
    checked = [row.wrong for row in rows if row.wrong is not None]
    wrong = max(checked) if checked else None
    return _Row(fastest.size, fastest.seconds, fastest.busbw, fastest.algbw, wrong)


def from_json(data: Mapping[str, Any], known: Known) -> tuple[Profile, ...]:
    """The hosts of a JSON report; the first holds the measurements. Raises SpecError."""
    try:
        ranks = [
            _Rank(
                str(each["hostname"]),
                int(each.get("device", place)),
                str(each.get("device_hex", "")),
                str(each["device_info"]),
            )
            for place, each in enumerate(data.get("devices") or ())
        ]
        rows = [
            _better(
                [_json_row(int(each["size"]), each[half]) for half in _HALVES if each.get(half)]
            )
            for each in data["results"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(
            known.label,
            f"a report without {error}",
            why="the JSON of nccl-tests has devices, and results with size, time and bus_bw",
            fix="write it with --output_file of nccl-tests 2.16 or newer",
        ) from None
    program = _PROGRAM.search(json.dumps(data.get("args", ())))
    environment = dict(_VARIABLE.findall("\n".join(map(str, data.get("env") or ()))))
    config = data.get("config") or {}
    expected = known.ranks or int(config.get("ngpus", 0) or 0)
    return _profiles(ranks, rows, program[1] if program else None, environment, expected, known)


_HALVES: Final = ("out_of_place", "in_place")


def _json_row(size: int, half: Mapping[str, Any]) -> _Row:
    time = half.get("time", half.get("cpu_time"))
    wrong = half.get("nwrong")
    if time is None:
        raise KeyError("time")
    return _Row(
        size,
        float(time) * 1e-6,
        float(half["bus_bw"]) * 1e9,
        float(half["alg_bw"]) * 1e9,
        None if wrong is None else float(wrong),
    )


def _profiles(
    ranks: Sequence[_Rank],
    rows: Sequence[_Row],
    program: str | None,
    environment: Mapping[str, str],
    expected: int,
    known: Known,
) -> tuple[Profile, ...]:
    count = len(ranks) or known.ranks or 0
    if count < 2:
        raise unreadable(
            known.label,
            f"{count or 'no'} rank{'' if count == 1 else 's'} seen"
            + (f" where {expected} were expected" if expected > 1 else ""),
            why="one rank moves nothing between devices, so its 0 GB/s says nothing of the network",
            fix="build nccl-tests with MPI=1 and start it with mpirun or srun, or use -g for "
            "several devices of one process",
        )
    moved = [row for row in rows if row.seconds > 0 and row.algbw >= 0 and row.size > 0]
    if not moved:
        raise unreadable(
            known.label,
            "no row with a size and a time",
            why="nothing was measured",
            fix="keep the whole output of the test, tables included",
        )
    operation = _operation(program, moved, count, known)
    hosts = list(dict.fromkeys(rank.host for rank in ranks)) or [known.node]
    links = tuple(_link(row, operation, hosts, ranks, count) for row in moved)
    notes: tuple[str, ...] = ()
    if any(row.wrong is None for row in moved):
        notes = ("the values were not checked when this was measured (-c 0)",)
    return tuple(
        foreign_profile(
            host,
            "nccl-tests",
            devices=[
                listed_device(rank.device, rank.name, _bus_id(rank.place))
                for rank in ranks
                if rank.host == host
            ],
            environment=environment,
            links=links if host == hosts[0] else (),
            notes=notes,
        )
        for host in hosts
    )


def _bus_id(place: str) -> str | None:
    return place if ":" in place else None


def _operation(
    program: str | None, rows: Sequence[_Row], ranks: int, known: Known
) -> LinkOperation:
    """The operation by the program's name, else by the ratio of bus to algorithm bandwidth."""
    if program is not None:
        return _OPERATIONS[program]
    last = max(rows, key=lambda row: row.size)
    # With two ranks several operations share a ratio; a sum over all is then by far the usual one.
    if last.algbw and abs(last.busbw / last.algbw - bus_factor("all_reduce", ranks)) < 0.02:
        return "all_reduce"
    raise unreadable(
        known.label,
        "no word on which operation was measured",
        why="the bus bandwidth is not that of an all-reduce, and the program's name is not there",
        fix="keep the line with the command (all_gather_perf, ...) in the file",
    )


def _link(
    row: _Row,
    operation: LinkOperation,
    hosts: Sequence[str],
    ranks: Sequence[_Rank],
    count: int,
) -> LinkMeasurement:
    # sendrecv_perf sends in a ring: every rank sends and receives, so one pair is one rank's share.
    members = 2 if operation == "send_recv" else count
    algbw = row.size / row.seconds
    return LinkMeasurement(
        operation=operation,
        backend="nccl",
        scope="intra_node" if len(hosts) == 1 else "inter_node",
        nodes=tuple(hosts),
        devices=tuple(rank.device for rank in ranks)[:members] if len(hosts) == 1 else (),
        ranks=members,
        message_bytes=row.size,
        seconds=once(row.seconds),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * bus_factor(operation, members),
        verified=not row.wrong,
    )
