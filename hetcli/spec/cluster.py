"""The cluster file: groups of nodes, their GPUs and NICs, and the links between places."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import ByteSize, Document, Duration, Name, Rate, Record

__all__ = [
    "Cluster",
    "CrossVendorBackend",
    "CustomGpu",
    "Health",
    "IntraLink",
    "Link",
    "Nic",
    "NodeGroup",
    "PairLink",
]

Number = Annotated[int, Field(gt=0, le=1_000_000)]
NicKind = Literal["infiniband", "roce", "ethernet", "slingshot", "efa", "gpudirect-tcpx", "hccn"]


class Nic(Record):
    """`count` equal network interfaces of one node; the rate is that of one."""

    kind: NicKind
    rate: Rate
    count: Number = 1
    interface: Name | None = None
    latency: Duration | None = None


class IntraLink(Record):
    """The link between two devices of a node when it is not a catalogue entry."""

    kind: Name = "custom"
    rate: Rate
    latency: Duration | None = None


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


class Health(Record):
    """A device, or a whole node, that is down or slow (`slowdown` 1.4: takes 1.4 times as long)."""

    node: Name
    devices: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    state: Literal["down", "slow"]
    slowdown: float = Field(default=1.0, ge=1.0, le=1000.0)
    reason: str = ""


class NodeGroup(Record):
    """Equal nodes. `name` is a host-name range: `a100-[00-15]` is sixteen nodes.

    `gpu` is a catalogue name or a description of its own. `price_per_hour` is for one device.
    Nodes of one `fabric` reach each other at their NIC rate; it defaults to NIC kind and zone.
    `use` lists the local device indices that may be used (default: all).
    """

    name: Name
    count: Number | None = None
    gpu: Name | CustomGpu
    gpus: Number
    use: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    free_memory: ByteSize | None = None
    intra_link: Name | IntraLink | None = None
    nics: tuple[Nic, ...] = ()
    memory: ByteSize | None = None
    cores: Number | None = None
    cpu_vendor: Name | None = None
    vendor: Name | None = None
    price_per_hour: float | None = Field(default=None, ge=0)
    zone: Name | None = None
    region: Name | None = None
    fabric: Name | None = None
    profile: Name | None = None


class Link(Record):
    """The link between two places: fabrics, zones, regions or node groups, named in `between`.

    The rate is that of one node's share, one direction. Two equal names describe the inside.
    """

    between: tuple[Name, Name]
    rate: Rate
    latency: Duration | None = None
    # What leaving traffic costs, in dollars a gigabyte (1e9 bytes).
    egress_per_gb: float = Field(default=0.0, ge=0)
    measured: bool = False


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


class Cluster(Document):
    """Everything that hetcli knows of a cluster before it measures."""

    name: Name
    description: str = ""
    source: str = ""
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1, max_length=100_000)]
    links: tuple[Link, ...] = ()
    pairs: tuple[PairLink, ...] = ()
    health: tuple[Health, ...] = ()
    cross_vendor_backend: CrossVendorBackend | None = None
