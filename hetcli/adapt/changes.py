"""What happened to a cluster: devices that failed or slowed down, nodes that came or went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hetcli.errors import UnknownNameError, UsageError
from hetcli.spec.cluster import Cluster, Health

__all__ = ["Changes", "changed", "read_changes"]


@dataclass(frozen=True, slots=True)
class Changes:
    """`failed` and `slow` name a node and the devices there (None: all of them).

    `slow` has the share of its speed that is left; `added` a new node and the one it is equal to,
    itself for a node of the cluster that works again.
    """

    failed: tuple[tuple[str, tuple[int, ...] | None], ...] = ()
    slow: tuple[tuple[str, tuple[int, ...] | None, float], ...] = ()
    added: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.failed or self.slow or self.added)


def read_changes(
    *,
    fail: Sequence[str] = (),
    slow: Sequence[str] = (),
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
) -> Changes:
    """Changes as they stand on the command line.

    `fail` are NODE or NODE:DEVICE, `slow` NODE:SPEED or NODE:DEVICE:SPEED, `add` NODE or
    NEW=LIKE, `remove` NODE. Raises UsageError for anything else.
    """
    return Changes(
        failed=(*map(_place, fail), *((node, None) for node in remove)),
        slow=tuple(map(_slow, slow)),
        added=tuple(map(_added, add)),
    )


def _place(text: str) -> tuple[str, tuple[int, ...] | None]:
    node, colon, devices = text.rpartition(":")
    if not colon:
        return text, None
    try:
        return node, tuple(int(device) for device in devices.split(","))
    except ValueError as error:
        raise UsageError(
            f"{text!r} names no device",
            why="after the colon stand device indices",
            fix="write NODE, NODE:2 or NODE:2,3",
        ) from error


def _slow(text: str) -> tuple[str, tuple[int, ...] | None, float]:
    place, colon, speed = text.rpartition(":")
    try:
        share = float(speed)
    except ValueError:
        share = 0.0
    if not colon or not 0 < share < 1:
        raise UsageError(
            f"{text!r} says no speed",
            why="a slow device keeps a share of its speed, more than 0 and less than 1",
            fix="write NODE:0.7 or NODE:2:0.7; a device that is down belongs to --fail",
        )
    return *_place(place), share


def _added(text: str) -> tuple[str, str]:
    name, equal, like = text.partition("=")
    if not name or (equal and not like):
        raise UsageError(
            f"{text!r} names no node, or does not say what it is like",
            why="the GPUs, NICs and place of a new node must be known",
            fix="write NEW=OLD with a node of the plan's cluster, or OLD where it works again",
        )
    return name, like or name


def changed(cluster: Cluster, changes: Changes) -> Cluster:
    """The cluster after the changes; health that it had before stays.

    Raises UnknownNameError for a node that it does not have, UsageError for a device that does not
    exist, a new node whose name is taken, or one that works again though nothing was wrong with it.
    """
    names = [node for node, _ in changes.failed]
    names += [node for node, _, _ in changes.slow] + [like for _, like in changes.added]
    for name in names:
        if name not in cluster.group_of:
            raise UnknownNameError(
                f"no node is called {name}",
                why=f"{cluster.name} does not have it",
                fix=f"its nodes are {', '.join(list(cluster.group_of)[:12])}",
            )
    groups = list(cluster.nodes)
    ill = {entry.node for entry in cluster.health}
    back = {name for name, like in changes.added if name == like and name in ill}
    for name, like in changes.added:
        if name in back:
            continue
        if name in cluster.group_of:
            raise UsageError(
                f"node {name} is there already",
                why="names are unique, and nothing is known to be wrong with it",
                fix="choose another name",
            )
        groups.append(
            cluster.group_of[like].model_copy(update={"name": name, "count": None, "host": None})
        )
    worse = [
        *(Health(node=node, devices=devices, state="down") for node, devices in changes.failed),
        *(
            Health(node=node, devices=devices, state="slow", slowdown=1 / speed)
            for node, devices, speed in changes.slow
        ),
    ]
    known = [entry for entry in cluster.health if entry.node not in back]
    health = (*_kept(known, worse, cluster), *worse)
    data = cluster.model_dump()
    data["nodes"] = [group.model_dump() for group in groups]
    data["health"] = [entry.model_dump() for entry in health]
    try:
        return Cluster.model_validate(data, strict=False)
    except ValueError as error:
        raise UsageError(f"the changes don't fit {cluster.name}", why=str(error)) from error


def _kept(before: Iterable[Health], worse: Sequence[Health], cluster: Cluster) -> Iterable[Health]:
    """What was known of devices of which nothing new is said."""
    told: dict[str, set[int]] = {}
    for entry in worse:
        told.setdefault(entry.node, set()).update(_devices(entry, cluster))
    for entry in before:
        left = sorted(_devices(entry, cluster) - told.get(entry.node, set()))
        if left:
            yield entry.model_copy(update={"devices": tuple(left)})


def _devices(entry: Health, cluster: Cluster) -> set[int]:
    every = range(cluster.group_of[entry.node].gpus)
    return set(every if entry.devices is None else entry.devices)
