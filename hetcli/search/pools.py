"""Equal nodes as one pool: the search counts pools, not devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations

from hetcli.perf.configuration import DeviceId
from hetcli.perf.hardware import DeviceType, Hardware, Node

__all__ = ["Orders", "Pool", "orders", "pools"]


@dataclass(frozen=True, eq=False)
class Pool:
    """Nodes that the search cannot tell apart: one device type, shape, fabric, zone and vendor."""

    index: int
    nodes: tuple[Node, ...]

    @cached_property
    def node(self) -> Node:
        """One of them, for everything that they share."""
        return self.nodes[0]

    @property
    def device_type(self) -> DeviceType:
        """The type of all devices."""
        return self.node.device_type

    @cached_property
    def devices_per_node(self) -> int:
        """Usable devices of each node."""
        return len(self.node.devices)

    @cached_property
    def device_count(self) -> int:
        """Usable devices in all."""
        return sum(len(node.devices) for node in self.nodes)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all nodes are of one kind; `estimate` also lays stages over unlike nodes."""
        return all(
            node.device_type is self.device_type and len(node.devices) == self.devices_per_node
            for node in self.nodes
        )

    def groups_per_node(self, width: int) -> int:
        """Groups of `width` devices that fit into one node; none spans two nodes."""
        return self.devices_per_node // width

    def group_count(self, width: int) -> int:
        """Groups of `width` devices in the whole pool."""
        if self.is_uniform:
            return self.groups_per_node(width) * len(self.nodes)
        return sum(len(node.devices) // width for node in self.nodes)

    def groups(self, width: int) -> Iterator[tuple[DeviceId, ...]]:
        """The groups in placement order: a node is filled before the next."""
        for node in self.nodes:
            ids = node.device_ids
            for start in range(0, len(ids) // width * width, width):
                yield ids[start : start + width]


def pools(hardware: Hardware) -> tuple[Pool, ...]:
    """The pools of a cluster in the order of their first node."""
    named = {place for pair in hardware.place_links for place in pair}
    found: dict[tuple[object, ...], list[Node]] = {}
    for node in hardware.nodes:
        found.setdefault(_kind(node, named), []).append(node)
    return tuple(
        Pool(index, _by_measured_links(hardware, members))
        for index, members in enumerate(found.values())
    )


def _kind(node: Node, named: set[str]) -> tuple[object, ...]:
    """Equal for nodes that may be exchanged; a group counts only where a link rule names it."""
    kind = node.device_type
    return (
        kind.gpu.name,
        kind.memory_bytes,
        kind.slowdown,
        kind.profile,
        len(node.devices),
        node.intra,
        node.nic,
        node.nic_kind,
        node.nic_count,
        node.group if node.group in named else "",
        node.fabric,
        node.zone,
        node.region,
        node.vendor,
        node.price_per_device_hour,
    )


def _by_measured_links(hardware: Hardware, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Nodes in an order whose neighbours have the fastest measured links: a greedy chain.

    The chain starts at the faster end of the fastest pair; of two links that are equally fast the
    one that was measured counts more. Without measurements the order stays.
    """
    names = {node.name for node in nodes}
    if not any(a in names and b in names for a, b in hardware.pair_links):
        return tuple(nodes)
    left = list(nodes)

    def rate(one: Node, other: Node) -> tuple[float, bool]:
        return hardware.between(one, other).bytes_per_s, hardware.declared(one, other) is not None

    start = max(
        left, key=lambda node: max(rate(node, other) for other in left if other is not node)
    )
    chain = [start]
    left.remove(start)
    while left:
        following = max(left, key=lambda node: rate(chain[-1], node))
        chain.append(following)
        left.remove(following)
    return tuple(chain)


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders along the pipeline, as pool indices; `complete` unless they are too many to list."""

    orders: tuple[tuple[int, ...], ...]
    complete: bool


# Orders that are listed: all of six places.
MOST_ORDERS = 720


def orders(found: Sequence[Pool], seconds: Callable[[Pool, Pool], float]) -> Orders:
    """Orders of the pools along the pipeline.

    Pools of one region, zone and fabric stay together, so that a slow edge between two places is
    crossed once: the boundary is cut by the pipeline, and only there. Beyond `MOST_ORDERS` only
    short paths are listed, one from each pool and its reverse, `seconds` being the distance.
    """
    if _number(found, 0) <= MOST_ORDERS:
        every = tuple(tuple(pool.index for pool in order) for order in _nested(list(found), 0))
        return Orders(every, complete=True)
    paths = [_short_path(found, start, seconds) for start in found]
    both = [tuple(pool.index for pool in way) for path in paths for way in (path, path[::-1])]
    return Orders(tuple(dict.fromkeys(both)), complete=False)


def _short_path(
    found: Sequence[Pool], start: Pool, seconds: Callable[[Pool, Pool], float]
) -> list[Pool]:
    """A path from pool to nearest pool, parts of it turned round while that makes it shorter."""
    path, left = [start], [pool for pool in found if pool is not start]
    while left:
        nearest = min(left, key=lambda pool: seconds(path[-1], pool))
        path.append(nearest)
        left.remove(nearest)

    def length(one: Sequence[Pool]) -> float:
        return sum(seconds(a, b) for a, b in pairwise(one))

    better = True
    while better:
        better = False
        for first in range(1, len(path) - 1):
            for last in range(first + 1, len(path)):
                turned = path[:first] + path[first : last + 1][::-1] + path[last + 1 :]
                if length(turned) < length(path) * (1 - 1e-12):
                    path, better = turned, True
    return path


_LEVELS = ("region", "zone", "fabric")


def _places(members: Sequence[Pool], level: int) -> dict[str, list[Pool]]:
    places: dict[str, list[Pool]] = {}
    for pool in members:
        places.setdefault(getattr(pool.node, _LEVELS[level]), []).append(pool)
    return places


def _number(members: Sequence[Pool], level: int) -> int:
    """How many orders `_nested` lists."""
    if level == len(_LEVELS):
        return math.factorial(len(members))
    places = _places(members, level)
    inside = math.prod(_number(each, level + 1) for each in places.values())
    return math.factorial(len(places)) * inside


def _nested(members: list[Pool], level: int) -> list[list[Pool]]:
    if level == len(_LEVELS):
        return [list(order) for order in permutations(members)]
    places = _places(members, level)
    inner = {place: _nested(inside, level + 1) for place, inside in places.items()}
    result: list[list[Pool]] = []
    for order in permutations(places):
        combined: list[list[Pool]] = [[]]
        for place in order:
            combined = [before + after for before in combined for after in inner[place]]
        result += combined
    return result
