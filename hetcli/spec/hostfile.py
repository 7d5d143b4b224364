"""Import the hostfile of DeepSpeed or Open MPI: lines of `host slots=8`, and `#` comments.

Format: docs/_tutorials/getting-started.md of DeepSpeed, "Resource configuration (multi-node)";
`slots` is what a host has, not what a job uses. Open MPI's `max_slots` is read and left aside.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from hetcli.errors import SpecError
from hetcli.spec.cluster import Cluster, NodeGroup
from hetcli.spec.complaint import first_reason
from hetcli.spec.hosts import check_host, fold_hosts
from hetcli.spec.quick import ASSUMED_NIC
from hetcli.spec.source import read_text, shown_path

__all__ = ["Host", "cluster_from_hostfile", "read_hostfile"]

_SLOTS: Final = re.compile(r"slots=(?P<slots>[0-9]{1,6})")
_ITEM: Final = re.compile(r"[A-Za-z_-]+\s*=\s*(?P<value>[0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Host:
    """One line: a host and its number of devices."""

    name: str
    slots: int


def read_hostfile(argument: str | os.PathLike[str]) -> tuple[Host, ...]:
    """The hosts of a hostfile (`-`: standard input) in order. Raises SpecError with the line."""
    text, label = read_text(argument)
    lines: dict[str, int] = {}
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host = _host(words, f"{label}:{number}")
        if (before := lines.setdefault(host.name, number)) != number:
            raise SpecError(
                f"{label}:{number}: {host.name!r} stands in line {before} already",
                why="a host is one node, with all its devices",
                fix="keep one of the two lines",
            )
        hosts.append(host)
    if not hosts:
        raise SpecError(
            f"{label}: no host in it",
            why="every line is empty or a comment",
            fix="write one line a node, such as: worker-0 slots=8",
        )
    return tuple(hosts)


def _host(words: list[str], where: str) -> Host:
    """The host of one line's words."""
    name, *settings = words
    if len(name) > 200:
        name = f"{name[:57]}..."
    try:
        fold_hosts([check_host(name)])
    except ValueError as error:
        why, _, fix = str(error).partition("; ")
        raise SpecError(f"{where}: {name!r}", why=why, fix=fix) from None
    slots = None
    for setting in settings:
        if found := _SLOTS.fullmatch(setting):
            slots = int(found["slots"])
        elif not setting.startswith(("max_slots=", "max-slots=")):
            guess = _ITEM.fullmatch(setting)
            raise SpecError(
                f"{where}: {setting[:60]!r}",
                why="a line is a host and slots=N, the number of its devices",
                fix=f"write slots={guess['value'] if guess else '8'}",
            )
    if not slots:
        raise SpecError(
            f"{where}: {name!r} without devices",
            why="slots=N says how many devices a host has",
            fix=f"write: {name} slots=8, or remove the line",
        )
    return Host(name, slots)


def cluster_from_hostfile(
    argument: str | os.PathLike[str], *, gpu: str, name: str = "imported"
) -> Cluster:
    """The cluster of a hostfile whose devices are all of the kind `gpu`.

    Neighbouring hosts with the same number of devices become one group. The NIC is assumed, and the
    description says so. Raises SpecError.
    """
    hosts = read_hostfile(argument)
    try:
        groups = tuple(
            NodeGroup(
                name=fold_hosts(host.name for host in equal),
                gpu=gpu,
                gpus=slots,
                nics=(ASSUMED_NIC,),
            )
            for slots, equal in itertools.groupby(hosts, key=lambda host: host.slots)
        )
        return Cluster(
            name=name,
            description=(
                f"Imported from a hostfile. Assumed: every device is {gpu}, and every node has one "
                "100 Gb/s Ethernet interface. Correct what is different."
            ),
            nodes=groups,
        )
    except ValidationError as error:
        raise SpecError(
            f"{shown_path(os.fspath(argument))}: {len(hosts)} hosts with devices {gpu[:60]!r}",
            why=first_reason(error),
            fix="name a GPU of the catalogue (`hetcli gpus`) and at most 100,000 hosts",
        ) from None
