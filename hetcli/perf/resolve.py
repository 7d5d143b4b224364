"""From what a user wrote to what the model computes with: cluster file + catalogue -> Hardware."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

from hetcli.catalog.gpu import Dtype, Gpu
from hetcli.catalog.hardware import find_gpu, find_link, load_links
from hetcli.catalog.link import LinkKind
from hetcli.errors import InfeasibleError, SpecError
from hetcli.perf.fitting.hardware import with_fitted
from hetcli.perf.hardware import DeviceType, Hardware, LinkCurve, Node, with_efficiency
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster, CustomGpu, Health, IntraLink, NodeGroup

__all__ = ["resolve"]

Vendor = Literal["nvidia", "amd", "huawei", "intel", "cpu", "unknown"]

BYTES_PER_GB = 1e9
TFLOPS = 1e12
# What is assumed of a node that names no NIC; said in the hardware's assumptions.
DEFAULT_NIC_KIND = "ethernet"
DEFAULT_NIC_BYTES_PER_S = 12.5e9
VENDORS: Mapping[str, Vendor] = {
    "nvidia": "nvidia",
    "amd": "amd",
    "huawei": "huawei",
    "intel": "intel",
    "cpu": "cpu",
}


def resolve(cluster: Cluster) -> Hardware:
    """Nodes, device types and links of `cluster`, with its own rates where it has any.

    Devices that are down are left out; a node with a slow device gets a device type of its own.
    Raises UnknownNameError for a GPU or link that the catalogue does not hold, InfeasibleError when
    no device is left.
    """
    assumptions: list[str] = []
    types: dict[tuple[int, float], DeviceType] = {}
    nodes: list[Node] = []
    for position, group in enumerate(cluster.nodes):
        gpu = group.gpu if isinstance(group.gpu, str) else _custom_gpu(group.gpu)
        gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
        intra = _intra_link(group, gpu)
        nic, kind, count = _nic(group, assumptions)
        memory, origin = (
            (gpu.memory_bytes, gpu.origin)
            if group.free_memory is None
            else (group.free_memory, Origin.MEASURED)
        )
        for name, machine in zip(group.node_names, group.machine_names, strict=True):
            devices, slowdown = _health({name, machine}, group, cluster.health, assumptions)
            if not devices:
                continue
            key = (position, slowdown)
            if key not in types:
                label = gpu.name if slowdown == 1 else f"{gpu.name} (slow x{slowdown:g})"
                types[key] = DeviceType(label, gpu, memory, origin, slowdown, group.profile)
            nodes.append(
                Node(
                    name=name,
                    group=group.name,
                    device_type=types[key],
                    devices=devices,
                    intra=intra,
                    nic=nic,
                    nic_kind=kind,
                    nic_count=count,
                    fabric=group.fabric_name,
                    zone=group.zone or "",
                    region=group.region or "",
                    vendor=group.vendor or gpu.vendor,
                    price_per_device_hour=group.price_per_hour
                    if group.price_per_hour is not None
                    else gpu.price_per_hour,
                    host=machine if machine != name else "",
                )
            )
    if not nodes:
        raise InfeasibleError(
            f"cluster {cluster.name} has no usable device",
            why="every device is down",
            fix="correct `health` in the cluster file",
        )
    hardware = Hardware(
        name=cluster.name,
        nodes=tuple(nodes),
        place_links=_place_links(cluster),
        pair_links={**_inside_machines(nodes), **_pair_links(cluster)},
        egress_per_byte={
            _pair(link.between): link.egress_per_gb / BYTES_PER_GB
            for link in cluster.links
            if link.egress_per_gb
        },
        cross_vendor=_cross_vendor(cluster, nodes),
        assumptions=tuple(dict.fromkeys(assumptions)),
    )
    if cluster.efficiency is not None:
        hardware = with_efficiency(hardware, cluster.efficiency)
    return hardware if cluster.hardware is None else with_fitted(hardware, cluster.hardware)


def _custom_gpu(custom: CustomGpu) -> Gpu:
    rates: Mapping[Dtype, float | None] = {
        "fp32": custom.fp32_tflops,
        "fp16": custom.fp16_tflops,
        "bf16": custom.bf16_tflops,
        "fp8": custom.fp8_tflops,
    }
    return Gpu(
        name=custom.name,
        vendor=VENDORS.get(custom.vendor, "unknown"),
        architecture="custom",
        memory_bytes=custom.memory,
        memory_bytes_per_s=custom.memory_rate,
        peak_flops={dtype: rate * TFLOPS for dtype, rate in rates.items() if rate},
        intra_link="custom",
        flash_attention=custom.flash_attention,
        origin=custom.origin,
        source="cluster file",
    )


def _health(
    names: Collection[str], group: NodeGroup, reports: Sequence[Health], assumptions: list[str]
) -> tuple[tuple[int, ...], float]:
    """Usable devices of a node and the slowdown of the slowest of them.

    `names` are the node's own and its machine's: what is said of a machine holds for its nodes.
    """
    devices = list(group.devices)
    slowdown = 1.0
    for report in reports:
        if report.node not in names:
            continue
        touched = devices if report.devices is None else report.devices
        if report.state == "down":
            devices = [device for device in devices if device not in touched]
        elif set(touched) & set(devices):
            slowdown = max(slowdown, report.slowdown)
            if report.devices is not None:
                assumptions.append(f"{report.node} works at the pace of its slowest device")
    return tuple(devices), slowdown


def _curve(kind: LinkKind, rate: float, latency: float | None, origin: Origin) -> LinkCurve:
    """A link of this kind: what messages reach of a stated rate, all of a measured one."""
    return LinkCurve(
        name=kind.name,
        latency_s=kind.latency_s if latency is None else latency,
        bytes_per_s=rate if origin is Origin.MEASURED else rate * kind.efficiency,
        origin=origin,
        shared=kind.shared,
    )


def _intra_link(group: NodeGroup, gpu: Gpu) -> LinkCurve:
    custom = group.intra_link
    if isinstance(custom, IntraLink):
        # A catalogue kind of another rate is still that kind: its slots share a bridge as well.
        base = load_links().get(custom.kind)
        latency = (base or find_link("pcie4")).latency_s
        return LinkCurve(
            custom.kind,
            latency if custom.latency is None else custom.latency,
            custom.rate,
            custom.origin,
            shared=base is not None and base.shared,
        )
    kind = find_link(custom or ("pcie4" if gpu.intra_link == "custom" else gpu.intra_link))
    if kind.bytes_per_s is None:
        raise SpecError(
            f"group {group.name}: intra_link {kind.name} has no rate of its own",
            why="the catalogue knows the kind, not the speed",
            fix="write intra_link: {kind: ..., rate: 50GB/s}",
        )
    return _curve(kind, kind.bytes_per_s, None, kind.origin)


def _nic(group: NodeGroup, assumptions: list[str]) -> tuple[LinkCurve, str, int]:
    """What the whole node can send, the kind of its NICs, and how many there are."""
    if not group.nics:
        if group.node_count > 1:
            assumptions.append(f"{group.name} names no NIC: 100 Gb/s Ethernet")
        kind = find_link(DEFAULT_NIC_KIND)
        return (
            _curve(kind, DEFAULT_NIC_BYTES_PER_S, None, Origin.ASSUMED),
            DEFAULT_NIC_KIND,
            1,
        )
    first = group.nics[0]
    same = [nic for nic in group.nics if nic.kind == first.kind]
    kind = find_link(first.kind)
    rate = sum(nic.rate * nic.count for nic in same)
    return (
        _curve(kind, rate, first.latency, first.origin),
        first.kind,
        sum(nic.count for nic in same),
    )


def _pair(names: tuple[str, str]) -> tuple[str, str]:
    one, other = sorted(names)
    return one, other


def _place_links(cluster: Cluster) -> dict[tuple[str, str], LinkCurve]:
    latency = find_link(DEFAULT_NIC_KIND).latency_s
    return {
        _pair(link.between): LinkCurve(
            "-".join(link.between),
            latency if link.latency is None else link.latency,
            link.rate,
            link.origin,
            shared=True,
        )
        for link in cluster.links
    }


def _pair_links(cluster: Cluster) -> dict[tuple[str, str], LinkCurve]:
    latency = find_link(DEFAULT_NIC_KIND).latency_s
    return {
        _pair(link.nodes): LinkCurve(
            "-".join(link.nodes),
            latency if link.latency is None else link.latency,
            link.rate,
            Origin.MEASURED,
            shared=True,
        )
        for link in cluster.pairs
    }


def _inside_machines(nodes: Sequence[Node]) -> dict[tuple[str, str], LinkCurve]:
    """The links between unlike devices of one machine: the slower of their PCIe slots.

    NVLink joins equal devices only.
    """
    kind = find_link("pcie4")
    machines: dict[str, list[Node]] = {}
    for node in nodes:
        machines.setdefault(node.machine, []).append(node)
    found = {}
    for members in machines.values():
        for one, other in combinations(members, 2):
            slots = [link for link in (one.intra, other.intra) if link.name.startswith("pcie")]
            if not slots and kind.bytes_per_s is not None:
                slots = [_curve(kind, kind.bytes_per_s, None, Origin.ASSUMED)]
            slot = min(slots, key=lambda link: link.bytes_per_s)
            found[_pair((one.name, other.name))] = replace(slot, shared=True)
    return found


def _cross_vendor(cluster: Cluster, nodes: Sequence[Node]) -> LinkCurve | None:
    backend = cluster.cross_vendor_backend
    if backend is None:
        return None
    slowest = min((node.nic for node in nodes), key=lambda link: link.bytes_per_s)
    return LinkCurve(
        backend.name,
        slowest.latency_s if backend.latency is None else backend.latency,
        slowest.bytes_per_s if backend.rate is None else backend.rate,
        Origin.ASSUMED if backend.rate is None else backend.origin,
        shared=True,
    )
