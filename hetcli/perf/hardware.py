"""The cluster as the performance model sees it: nodes, device types, link curves, with origins.

`resolve.py` builds it from the cluster file, the catalogue and what was measured.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from hetcli.catalog.efficiency import (
    Efficiency,
    EfficiencyTable,
    FrameworkCost,
    efficiency_from,
    efficiency_of,
)
from hetcli.catalog.gpu import Gpu
from hetcli.perf.configuration import DeviceId

if TYPE_CHECKING:
    from hetcli.perf.compute.measured import MeasuredLayers
from hetcli.spec.base import Origin

__all__ = ["DeviceType", "Hardware", "LinkCurve", "Node"]


@dataclass(frozen=True, slots=True)
class LinkCurve:
    """Time of one message over a link: latency + bytes / bandwidth(bytes).

    `points` are (message bytes, bytes/s) pairs of a measured curve, interpolated over log(bytes)
    and held constant outside; without points the bandwidth is `bytes_per_s` at every size. A
    `shared` link (a NIC, PCIe) is divided among the ranks that send at the same time.
    """

    name: str
    latency_s: float
    bytes_per_s: float
    origin: Origin
    shared: bool = False
    points: tuple[tuple[float, float], ...] = ()

    def bandwidth(self, nbytes: float) -> float:
        """Bytes per second that one message of `nbytes` reaches, latency apart."""
        if not self.points or nbytes <= 0:
            return self.bytes_per_s
        position = bisect.bisect_left(self.points, (nbytes, 0.0))
        if position == 0:
            return self.points[0][1]
        if position == len(self.points):
            return self.points[-1][1]
        (x0, y0), (x1, y1) = self.points[position - 1], self.points[position]
        share = math.log(nbytes / x0) / math.log(x1 / x0)
        return y0 + share * (y1 - y0)

    def seconds(self, nbytes: float, senders: int = 1) -> float:
        """Seconds for one message of `nbytes` when `senders` ranks share the link's rate."""
        sharing = senders if self.shared else 1
        return self.latency_s + nbytes * sharing / self.bandwidth(nbytes)


@dataclass(frozen=True, eq=False)
class DeviceType:
    """Equal devices: one catalogue entry, one health factor, one set of measured curves.

    `memory_bytes` is what a process may use (as probed where a profile exists, else nominal);
    `slowdown` multiplies every compute time. Compared by identity: resolve makes one a kind.
    """

    name: str
    gpu: Gpu
    memory_bytes: int
    memory_origin: Origin
    slowdown: float = 1.0
    profile: str | None = None
    # Shares of the data sheet fitted for this cluster; None: those that the catalogue ships.
    efficiency: Efficiency | None = None
    # What frameworks add, where that was fitted for this cluster too.
    frameworks: tuple[FrameworkCost, ...] = ()
    # Layer times of the model at hand that were measured on these devices.
    measured: MeasuredLayers | None = None

    @cached_property
    def shares(self) -> Efficiency:
        """The shares that hold: fitted ones, else those that the catalogue ships for the GPU."""
        return self.efficiency or efficiency_of(self.gpu)


@dataclass(frozen=True, eq=False)
class Node:
    """One node: `devices` are the local indices that may be used, all of type `device_type`.

    `intra` joins two of its devices; `nic` is what the whole node can send into its fabric (all
    NICs together); `nic_kind` decides who may form one collective group. Nodes of one `host` are
    the unlike devices of one machine.
    """

    name: str
    group: str
    device_type: DeviceType
    devices: tuple[int, ...]
    intra: LinkCurve
    nic: LinkCurve
    nic_kind: str
    nic_count: int
    fabric: str
    zone: str
    region: str
    vendor: str
    price_per_device_hour: float | None = None
    host: str = ""

    @property
    def machine(self) -> str:
        """The machine that the node is, or is a part of."""
        return self.host or self.name

    @cached_property
    def device_ids(self) -> tuple[DeviceId, ...]:
        """The usable devices."""
        return tuple(DeviceId(self.name, index) for index in self.devices)


@dataclass(frozen=True, eq=False)
class Hardware:
    """All usable nodes and how any two of them talk.

    `place_links` holds links between two places (fabric, zone, region or group names, sorted);
    `pair_links` measured links between two nodes (names sorted).
    """

    name: str
    nodes: tuple[Node, ...]
    place_links: Mapping[tuple[str, str], LinkCurve] = field(default_factory=dict)
    pair_links: Mapping[tuple[str, str], LinkCurve] = field(default_factory=dict)
    egress_per_byte: Mapping[tuple[str, str], float] = field(default_factory=dict)
    cross_vendor: LinkCurve | None = None
    assumptions: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def device_count(self) -> int:
        """Usable devices in all."""
        return sum(len(node.devices) for node in self.nodes)

    @cached_property
    def has_curves(self) -> bool:
        """Whether some link's bandwidth depends on the size of messages."""
        links = [link for node in self.nodes for link in (node.intra, node.nic)]
        links += [*self.place_links.values(), *self.pair_links.values()]
        return any(link.points for link in links)

    def node_of(self, device: DeviceId) -> Node:
        """The node that holds `device`."""
        return self.by_name[device.node]

    def between(self, one: Node, other: Node) -> LinkCurve:
        """The link between two nodes (or inside one): measured pair, then the most specific rule.

        Places are tried from the narrowest (group, fabric) to the widest (zone, region); without a
        rule the slower of the two nodes' NICs decides.
        """
        if one is other:
            return one.intra
        link = self.declared(one, other)
        if link is not None:
            return link
        if one.vendor != other.vendor and self.cross_vendor is not None:
            return self.cross_vendor
        return one.nic if one.nic.bytes_per_s <= other.nic.bytes_per_s else other.nic

    def declared(self, one: Node, other: Node) -> LinkCurve | None:
        """The link between two nodes that somebody measured or wrote down; None without one."""
        pair = (one.name, other.name) if one.name < other.name else (other.name, one.name)
        if pair in self.pair_links:
            return self.pair_links[pair]
        if self.place_links:
            for level in ("group", "fabric", "zone", "region"):
                a, b = sorted((getattr(one, level), getattr(other, level)))
                link = self.place_links.get((a, b))
                if link is not None:
                    return link
        return None


def with_efficiency(hardware: Hardware, table: EfficiencyTable) -> Hardware:
    """The same cluster, whose devices and frameworks reach what a table says."""
    types: dict[DeviceType, DeviceType] = {}
    for node in hardware.nodes:
        kind = node.device_type
        if kind not in types:
            types[kind] = replace(
                kind,
                efficiency=efficiency_from(kind.gpu, table.devices),
                frameworks=table.frameworks,
            )
    nodes = tuple(replace(node, device_type=types[node.device_type]) for node in hardware.nodes)
    return replace(hardware, nodes=nodes)
