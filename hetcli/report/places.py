"""The cluster as it is drawn: places, nodes, what each device does, and the links by speed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hetcli.spec.base import Origin
from hetcli.spec.cluster import NodeGroup
from hetcli.spec.hosts import fold_hosts
from hetcli.spec.plan import Plan

if TYPE_CHECKING:
    from hetcli.perf.hardware import Hardware, LinkCurve

__all__ = ["DrawnLink", "DrawnNode", "DrawnPlace", "drawn_links", "drawn_places"]

# More nodes of a group than these are drawn by what they do, not one by one.
MAX_DRAWN_NODES: Final = 16


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node, or `count` nodes whose devices do the same.

    `stages` has, for every device in order, its stage, `idle`, or `out` (not usable).
    """

    name: str
    stages: tuple[int | str, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class DrawnLink:
    """A kind of link, large messages of one sender, one direction."""

    joins: str
    kind: str
    bytes_per_s: float
    latency_s: float
    origin: Origin

    @property
    def thickness(self) -> float:
        """Of the line that is drawn for it, in pixels: twice for four times the rate."""
        return max(1.0, round(0.5 * math.sqrt(self.bytes_per_s / 1e9), 1))


@dataclass(frozen=True, slots=True)
class DrawnPlace:
    """Nodes of one group: the same GPU, fabric, zone and region.

    `inside` joins the devices of one of its nodes, `outside` one of its nodes and others; None
    where there is nothing to join.
    """

    label: str
    gpu: str
    nodes: tuple[DrawnNode, ...]
    inside: DrawnLink | None
    outside: DrawnLink | None

    @property
    def node_count(self) -> int:
        """How many nodes there are, however few are drawn."""
        return sum(node.count for node in self.nodes)


def drawn_places(plan: Plan, hardware: Hardware) -> list[DrawnPlace]:
    """The groups of the cluster file in its order."""
    stage_of = {
        (device.node, device.index): number
        for number, stage in enumerate(plan.stages)
        for device in stage.devices
    }
    usable = {(each.node, each.index) for node in hardware.nodes for each in node.device_ids}

    inside, outside = dict(_inside(hardware)), dict(_outside(hardware))

    def does(node: str, index: int) -> int | str:
        return stage_of.get((node, index), "idle" if (node, index) in usable else "out")

    return [
        DrawnPlace(
            label=_label(group),
            gpu=group.gpu if isinstance(group.gpu, str) else group.gpu.name,
            nodes=_folded(
                [
                    DrawnNode(name, tuple(does(name, index) for index in range(group.gpus)))
                    for name in group.node_names
                ]
            ),
            inside=inside.get(group.name),
            outside=outside.get(group.name),
        )
        for group in plan.inputs.cluster.nodes
    ]


def _folded(nodes: list[DrawnNode]) -> tuple[DrawnNode, ...]:
    """The nodes as they are, or those that do the same together where they are many."""
    if len(nodes) <= MAX_DRAWN_NODES:
        return tuple(nodes)
    alike: dict[tuple[int | str, ...], list[str]] = {}
    for node in nodes:
        alike.setdefault(node.stages, []).append(node.name)
    return tuple(
        DrawnNode(fold_hosts(names), stages, len(names)) for stages, names in alike.items()
    )


def _label(group: NodeGroup) -> str:
    """Where the group's nodes are."""
    places = (group.region, group.zone, f"fabric {group.fabric_name}")
    return ", ".join(place for place in places if place)


def drawn_links(hardware: Hardware) -> list[DrawnLink]:
    """Every kind of link that the prediction used or could have used, the fastest first."""
    links = [
        *(link for _, link in _inside(hardware)),
        *(link for _, link in _outside(hardware)),
        *_between(hardware),
    ]
    found = {(link.joins, link.kind): link for link in reversed(links)}
    return sorted(found.values(), key=lambda each: (-each.bytes_per_s, each.joins))


def _inside(hardware: Hardware) -> Iterator[tuple[str, DrawnLink]]:
    for node in hardware.nodes:
        if len(node.devices) > 1:
            yield node.group, _link(f"devices of a node of {node.group}", node.intra)


def _outside(hardware: Hardware) -> Iterator[tuple[str, DrawnLink]]:
    if len(hardware.nodes) > 1:
        for node in hardware.nodes:
            nics = f"its {node.nic_count} NICs" if node.nic_count > 1 else "its NIC"
            joins = f"a node of {node.group} and others, through {nics}"
            yield node.group, _link(joins, node.nic)


def _between(hardware: Hardware) -> Iterator[DrawnLink]:
    for (one, other), curve in hardware.place_links.items():
        yield _link(f"inside {one}" if one == other else f"{one} and {other}", curve)
    for (one, other), curve in hardware.pair_links.items():
        yield _link(f"{one} and {other}", curve)
    if hardware.cross_vendor is not None:
        yield _link("devices of unlike vendors", hardware.cross_vendor)


def _link(joins: str, curve: LinkCurve) -> DrawnLink:
    return DrawnLink(joins, curve.name, curve.bytes_per_s, curve.latency_s, curve.origin)
