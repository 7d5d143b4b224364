"""The cluster as it is drawn: places, nodes, what each device does, and the links by speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetcli.spec.base import Origin
from hetcli.spec.cluster import NodeGroup
from hetcli.spec.plan import Plan

if TYPE_CHECKING:
    from hetcli.perf.hardware import Hardware, LinkCurve

__all__ = ["DrawnLink", "DrawnNode", "DrawnPlace", "drawn_links", "drawn_places"]


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node; `stages` has, for every device in order, its stage, `idle`, or `out` (not usable)."""

    name: str
    stages: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class DrawnPlace:
    """Nodes of one group: the same GPU, fabric, zone and region."""

    label: str
    gpu: str
    nodes: tuple[DrawnNode, ...]


@dataclass(frozen=True, slots=True)
class DrawnLink:
    """A kind of link, large messages of one sender, one direction."""

    joins: str
    kind: str
    bytes_per_s: float
    latency_s: float
    origin: Origin


def drawn_places(plan: Plan, hardware: Hardware) -> list[DrawnPlace]:
    """The groups of the cluster file in its order."""
    stage_of = {
        (device.node, device.index): number
        for number, stage in enumerate(plan.stages)
        for device in stage.devices
    }
    usable = {(each.node, each.index) for node in hardware.nodes for each in node.device_ids}

    def does(node: str, index: int) -> int | str:
        return stage_of.get((node, index), "idle" if (node, index) in usable else "out")

    return [
        DrawnPlace(
            label=_label(group),
            gpu=group.gpu if isinstance(group.gpu, str) else group.gpu.name,
            nodes=tuple(
                DrawnNode(name, tuple(does(name, index) for index in range(group.gpus)))
                for name in group.node_names
            ),
        )
        for group in plan.inputs.cluster.nodes
    ]


def _label(group: NodeGroup) -> str:
    """Where the group's nodes are."""
    places = (group.region, group.zone, f"fabric {group.fabric_name}")
    return ", ".join(place for place in places if place)


def drawn_links(hardware: Hardware) -> list[DrawnLink]:
    """Every kind of link that the prediction used or could have used, the fastest first."""
    found: dict[tuple[str, str], DrawnLink] = {}

    def add(joins: str, curve: LinkCurve) -> None:
        link = DrawnLink(joins, curve.name, curve.bytes_per_s, curve.latency_s, curve.origin)
        found.setdefault((joins, curve.name), link)

    for node in hardware.nodes:
        if len(node.devices) > 1:
            add(f"devices of a node of {node.group}", node.intra)
        if len(hardware.nodes) > 1:
            nics = f"its {node.nic_count} NICs" if node.nic_count > 1 else "its NIC"
            add(f"a node of {node.group} and others, through {nics}", node.nic)
    for (one, other), curve in hardware.place_links.items():
        add(f"inside {one}" if one == other else f"{one} and {other}", curve)
    for (one, other), curve in hardware.pair_links.items():
        add(f"{one} and {other}", curve)
    if hardware.cross_vendor is not None:
        add("devices of unlike vendors", hardware.cross_vendor)
    return sorted(found.values(), key=lambda each: (-each.bytes_per_s, each.joins))
