"""The cluster file: groups of nodes, their GPUs and NICs, and the links between their places."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from hetcli.spec.base import (
    ByteSize,
    Document,
    Duration,
    Name,
    Origin,
    Rate,
    Record,
    Text,
    broken_rule,
)
from hetcli.spec.efficiency import EfficiencyTable
from hetcli.spec.hardware import HardwareFile
from hetcli.spec.hosts import MAX_HOSTS, count_hosts, expand_hosts

__all__ = [
    "PLACE_KINDS",
    "Cluster",
    "CrossVendorBackend",
    "CustomGpu",
    "Health",
    "IntraLink",
    "Link",
    "Nic",
    "NodeGroup",
    "PairLink",
    "PlaceKind",
]

Number = Annotated[int, Field(gt=0, le=1_000_000)]
NicKind = Literal["infiniband", "roce", "ethernet", "slingshot", "efa", "gpudirect-tcpx", "hccn"]
PlaceKind = Literal["group", "fabric", "zone", "region"]

# The kinds of place that a link can join, from the narrowest to the widest.
PLACE_KINDS: Final[tuple[PlaceKind, ...]] = ("group", "fabric", "zone", "region")
# More than any cluster has, and few enough to enumerate.
MAX_DEVICES: Final = 1_000_000


def _is_pattern(name: str) -> str:
    count_hosts(name)
    return name


HostRange = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1_000_000,
        description="host names",
        examples=["a100-[00-15]", "n[1-3,7]"],
    ),
    AfterValidator(_is_pattern),
]
# A group's name may be a long range, so this is longer than a Name; that it exists is checked.
PlaceName = Annotated[str, Field(min_length=1, max_length=1_000_000)]


class Nic(Record):
    """`count` equal network interfaces of one node; the rate is that of one, one direction."""

    kind: NicKind
    rate: Rate
    count: Number = 1
    interface: Name | None = None
    latency: Duration | None = None
    origin: Origin = Origin.DATASHEET


class IntraLink(Record):
    """The link between two devices of a node when it is not a catalogue entry."""

    kind: Name = "custom"
    rate: Rate
    latency: Duration | None = None
    origin: Origin = Origin.DATASHEET


class CustomGpu(Record):
    """A device that the catalogue does not hold; dense peaks."""

    name: Name
    vendor: Name = "unknown"
    memory: ByteSize
    memory_rate: Rate
    fp32_tflops: float | None = Field(default=None, gt=0)
    fp16_tflops: float | None = Field(default=None, gt=0)
    bf16_tflops: float | None = Field(default=None, gt=0)
    fp8_tflops: float | None = Field(default=None, gt=0)
    flash_attention: bool = True
    origin: Origin = Origin.DATASHEET

    @model_validator(mode="after")
    def _computes(self) -> CustomGpu:
        if not (self.fp32_tflops or self.fp16_tflops or self.bf16_tflops or self.fp8_tflops):
            raise broken_rule(
                f"{self.name} has no compute rate", "give fp32_tflops, fp16_tflops or bf16_tflops"
            )
        return self


class Health(Record):
    """A device, or a whole node, that is down or slow (`slowdown` 1.4: takes 1.4 times as long)."""

    node: Name
    devices: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    state: Literal["down", "slow"]
    slowdown: float = Field(default=1.0, ge=1.0, le=1000.0)
    reason: Text = ""

    @model_validator(mode="after")
    def _slow_is_slower(self) -> Health:
        if self.state == "slow" and self.slowdown == 1.0:
            raise broken_rule(f"{self.node} is slow by a factor of 1", "give slowdown: 1.4 or so")
        if self.state == "down" and self.slowdown != 1.0:
            raise broken_rule(
                f"{self.node} is down, so it has no slowdown",
                "remove slowdown, or write state: slow",
                "slowdown",
            )
        return self


class NodeGroup(Record):
    """Equal nodes. `name` is a host-name range: `a100-[00-15]` is sixteen nodes.

    A plain name with a `count` of more than one stands for `name-0`, `name-1` and so on. `gpu` is a
    catalogue name or a description of its own. `price_per_hour` is for one device. Nodes of one
    `fabric` reach each other at their NIC rate (the first of `nics`); it defaults to NIC kind and
    zone. `use` lists the local device indices that may be used (default: all).

    A machine with unlike devices is several nodes, one for each kind: `host` names the machines
    that the nodes are on (default: their own names), and every group lists its devices in `use`.
    """

    name: HostRange
    host: HostRange | None = None
    count: Annotated[int, Field(gt=0, le=MAX_HOSTS)] | None = None
    gpu: Name | CustomGpu
    gpus: Number
    use: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    free_memory: ByteSize | None = None
    intra_link: Name | IntraLink | None = None
    nics: Annotated[tuple[Nic, ...], Field(max_length=1000)] = ()
    memory: ByteSize | None = None
    cores: Number | None = None
    cpu_vendor: Name | None = None
    vendor: Name | None = None
    price_per_hour: float | None = Field(default=None, ge=0)
    zone: Name | None = None
    region: Name | None = None
    fabric: Name | None = None
    profile: Name | None = None

    @model_validator(mode="after")
    def _counts_agree(self) -> NodeGroup:
        named = count_hosts(self.name)
        if self.count is not None and named not in (1, self.count):
            raise broken_rule(
                f"count {self.count} is not the {named} hosts of {self.name}",
                f"remove count, or write count: {named}",
                "count",
            )
        if self.host is not None and count_hosts(self.host) != self.node_count:
            raise broken_rule(
                f"{self.host} is not one machine for each of the {self.node_count} nodes",
                "name as many machines as nodes, or remove host",
                "host",
            )
        for position, device in enumerate(self.use or ()):
            if device >= self.gpus:
                raise broken_rule(
                    f"a node of {self.gpus} GPUs has no device {device}",
                    f"use indices from 0 to {self.gpus - 1}",
                    *("use", position),
                )
        if self.use is not None and len(set(self.use)) < len(self.use):
            raise broken_rule("a device is listed twice", "list every index once", "use")
        return self

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes in order."""
        names = expand_hosts(self.name)
        if self.node_count == len(names):
            return names
        return tuple(f"{self.name}-{index}" for index in range(self.node_count))

    @cached_property
    def machine_names(self) -> tuple[str, ...]:
        """The machines that the nodes are on, in the order of the nodes."""
        return self.node_names if self.host is None else expand_hosts(self.host)

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return self.count or count_hosts(self.name)

    @property
    def devices(self) -> tuple[int, ...]:
        """The local indices of a node's usable devices."""
        return self.use if self.use is not None else tuple(range(self.gpus))

    @property
    def fabric_name(self) -> str:
        """The named fabric, or NIC kind and zone (or region); without a NIC the group itself."""
        if self.fabric is not None:
            return self.fabric
        if not self.nics:
            return self.name
        place = self.zone or self.region
        return f"{self.nics[0].kind}@{place}" if place else self.nics[0].kind

    def place(self, kind: PlaceKind) -> str | None:
        """The group's own name, its fabric, zone or region; None where the file names none."""
        if kind == "group":
            return self.name
        if kind == "fabric":
            return self.fabric_name
        return self.zone if kind == "zone" else self.region


class Link(Record):
    """The link between two places of one kind: two groups, fabrics, zones or regions.

    The rate is what one node gets of it, one direction. Two equal names describe the inside.
    """

    between: tuple[PlaceName, PlaceName]
    rate: Rate
    latency: Duration | None = None
    # What leaving traffic costs, in dollars a gigabyte (1e9 bytes).
    egress_per_gb: float = Field(default=0.0, ge=0)
    origin: Origin = Origin.DATASHEET

    @property
    def measured(self) -> bool:
        """Whether somebody measured the rate."""
        return self.origin is Origin.MEASURED


class PairLink(Record):
    """A measured link between two named nodes; it overrides every other rule."""

    nodes: tuple[Name, Name]
    rate: Rate
    latency: Duration | None = None


class CrossVendorBackend(Record):
    """A collective library that joins devices of several vendors (HetCCL, FlagCX, gloo)."""

    name: Name
    rate: Rate | None = None
    latency: Duration | None = None
    origin: Origin = Origin.DATASHEET


class Cluster(Document):
    """Everything that hetcli knows of a cluster before it measures."""

    name: Name
    description: Text = ""
    source: Text = ""
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1, max_length=MAX_HOSTS)]
    links: Annotated[tuple[Link, ...], Field(max_length=100_000)] = ()
    pairs: Annotated[tuple[PairLink, ...], Field(max_length=1_000_000)] = ()
    health: Annotated[tuple[Health, ...], Field(max_length=MAX_DEVICES)] = ()
    cross_vendor_backend: CrossVendorBackend | None = None
    # Rates and links that `hetcli fit` or `hetcli observe` found; they replace the shipped ones.
    hardware: HardwareFile | None = None
    # Shares of data sheets that `hetcli fit` found in a table of runs, instead of the shipped ones.
    efficiency: EfficiencyTable | None = None

    @cached_property
    def group_of(self) -> Mapping[str, NodeGroup]:
        """The group of every node, by node name, in the order of the file."""
        return {node: group for group in self.nodes for node in group.node_names}

    @property
    def node_count(self) -> int:
        """Number of nodes, whatever their health."""
        return sum(group.node_count for group in self.nodes)

    @property
    def device_count(self) -> int:
        """Number of devices that may be used, whatever their health."""
        return sum(group.node_count * len(group.devices) for group in self.nodes)

    def places(self, kind: PlaceKind) -> frozenset[str]:
        """The names of all places of one kind."""
        names = (group.place(kind) for group in self.nodes)
        return frozenset(name for name in names if name is not None)

    @model_validator(mode="after")
    def _is_consistent(self) -> Cluster:
        self._check_nodes()
        self._check_machines()
        self._check_links()
        self._check_pairs()
        self._check_health()
        return self

    def _check_nodes(self) -> None:
        first: dict[str, int] = {}
        region_of: dict[str, str | None] = {}
        nodes = devices = 0
        for index, group in enumerate(self.nodes):
            nodes += group.node_count
            devices += group.node_count * group.gpus
            if nodes > MAX_HOSTS or devices > MAX_DEVICES:
                raise broken_rule(
                    f"the groups up to here have {nodes} nodes and {devices} devices",
                    f"at most {MAX_HOSTS} nodes and {MAX_DEVICES} devices are read",
                    *("nodes", index),
                )
            for node in group.node_names:
                if first.setdefault(node, index) != index:
                    raise broken_rule(
                        f"node {node} also belongs to nodes[{first[node]}]",
                        "name every node once",
                        *("nodes", index, "name"),
                    )
            if group.zone and region_of.setdefault(group.zone, group.region) != group.region:
                raise broken_rule(
                    f"zone {group.zone} lies in {region_of[group.zone] or 'no region'} elsewhere",
                    "give a zone one region in all groups",
                    *("nodes", index, "region" if group.region else "zone"),
                )

    def _check_machines(self) -> None:
        """Groups on one machine have devices of their own, of as many as the machine has."""
        shared = {
            machine
            for group in self.nodes
            if group.host is not None
            for machine in group.machine_names
        }
        taken: dict[tuple[str, int], int] = {}
        holds: dict[str, int] = {}
        for index, group in enumerate(self.nodes if shared else ()):
            for machine in (name for name in group.machine_names if name in shared):
                if holds.setdefault(machine, group.gpus) != group.gpus:
                    raise broken_rule(
                        f"{machine} has {holds[machine]} GPUs in one group and {group.gpus} here",
                        "give the GPUs of the whole machine, and list those of a group in use",
                        *("nodes", index, "gpus"),
                    )
                for device in group.devices:
                    if taken.setdefault((machine, device), index) != index:
                        raise broken_rule(
                            f"device {device} of {machine} also belongs to "
                            f"nodes[{taken[machine, device]}]",
                            "list in use the devices of each group",
                            *("nodes", index, "use"),
                        )

    def _check_links(self) -> None:
        places = {kind: self.places(kind) for kind in PLACE_KINDS}
        known = frozenset[str]().union(*places.values())
        seen: set[tuple[str, ...]] = set()
        for index, link in enumerate(self.links):
            for end, name in enumerate(link.between):
                if name not in known:
                    raise broken_rule(
                        f"no group, fabric, zone or region is called {name}",
                        f"the places of this cluster are {_listed(known)}",
                        *("links", index, "between", end),
                    )
            if not any(set(link.between) <= names for names in places.values()):
                raise broken_rule(
                    f"{link.between[0]} and {link.between[1]} are places of different kinds",
                    "join two groups, two fabrics, two zones or two regions",
                    *("links", index, "between"),
                )
            if (ends := tuple(sorted(link.between))) in seen:
                raise broken_rule(
                    f"the link between {link.between[0]} and {link.between[1]} is given twice",
                    "give one rate for both directions",
                    *("links", index, "between"),
                )
            seen.add(ends)

    def _check_pairs(self) -> None:
        seen: set[tuple[str, ...]] = set()
        for index, pair in enumerate(self.pairs):
            for end, node in enumerate(pair.nodes):
                self._check_node(node, "pairs", index, "nodes", end)
            ends = tuple(sorted(pair.nodes))
            if ends[0] == ends[1] or ends in seen:
                raise broken_rule(
                    f"the pair {pair.nodes[0]}, {pair.nodes[1]} is given twice or is one node",
                    "give every pair of two nodes once",
                    *("pairs", index, "nodes"),
                )
            seen.add(ends)

    def _check_health(self) -> None:
        seen: set[tuple[str, int]] = set()
        for index, entry in enumerate(self.health):
            self._check_node(entry.node, "health", index, "node")
            gpus = self.group_of[entry.node].gpus
            for device in range(gpus) if entry.devices is None else entry.devices:
                if device >= gpus:
                    raise broken_rule(
                        f"{entry.node} has {gpus} GPUs, so no device {device}",
                        f"name devices from 0 to {gpus - 1}",
                        *("health", index, "devices"),
                    )
                if (entry.node, device) in seen:
                    raise broken_rule(
                        f"device {device} of {entry.node} has a state already",
                        "give every device one state",
                        *("health", index),
                    )
                seen.add((entry.node, device))

    def _check_node(self, name: str, *place: str | int) -> None:
        if name not in self.group_of:
            raise broken_rule(
                f"no node is called {name}",
                f"the nodes are {_listed(self.group_of)}",
                *place,
            )


def _listed(names: Iterable[str]) -> str:
    """The first names, sorted, for a message."""
    ordered = sorted(names)
    shown = ", ".join(itertools.islice(ordered, 12))
    return f"{shown} and {len(ordered) - 12} more" if len(ordered) > 12 else shown
