"""From the profiles of nodes to a cluster file: equal nodes become groups, measured links pairs."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hetcli.catalog.gpu import Gpu
from hetcli.catalog.hardware import find_gpu
from hetcli.errors import UnknownNameError, UsageError
from hetcli.spec.base import Origin
from hetcli.spec.cluster import (
    Cluster,
    CustomGpu,
    Health,
    IntraLink,
    Nic,
    NodeGroup,
    PairLink,
)
from hetcli.spec.finding import Finding
from hetcli.spec.hardware import LinkRates
from hetcli.spec.hosts import fold_hosts
from hetcli.spec.profile import DeviceInventory, Profile
from hetcli.units import format_bytes_exact, format_duration_exact, format_rate_exact

__all__ = ["kinds_of_devices", "merge_profiles"]

# Interfaces that reach less of their stated rate than this are described by what was measured.
NOMINAL: Final = 0.5
# What a kind's name cannot bring into the name of a node.
_UNNAMED: Final = re.compile(r"[^A-Za-z0-9.]+")


def kinds_of_devices(profile: Profile) -> tuple[tuple[DeviceInventory, ...], ...]:
    """The usable devices of a node that can work together, equal ones together.

    The kind with the most memory in all comes first. MIG instances talk to nobody in their machine,
    so where nothing else can be used, one of them is all there is.
    """
    usable = [device for device in profile.devices if device.usable]
    whole = [device for device in usable if device.kind != "mig"]
    memory: Counter[str] = Counter()
    for device in whole:
        memory[device.name] += device.memory_total_bytes or 0
    kinds = (
        tuple(device for device in whole if device.name == name) for name, _ in memory.most_common()
    )
    largest = max(usable, key=lambda device: device.memory_total_bytes or 0, default=None)
    return tuple(kinds) if whole or largest is None else ((largest,),)


@dataclass(frozen=True)
class _Described:
    """The equal devices of a machine, a node of the cluster file.

    The first kind of a machine has the machine's name. Nodes with the same `key` form a group.
    """

    profile: Profile
    first: bool
    devices: tuple[DeviceInventory, ...]
    gpu: Gpu | None
    nics: tuple[tuple[str, float, int], ...]

    @property
    def name(self) -> str:
        machine = self.profile.node
        kind = self.gpu.name if self.gpu is not None else self.devices[0].name
        return machine if self.first else f"{_UNNAMED.sub('-', kind)}-{machine}"

    @property
    def paths(self) -> Counter[tuple[str, int | None]]:
        """How many pairs of the devices are joined how."""
        indices = {device.index for device in self.devices}
        return Counter(
            (link.path, link.nvlinks)
            for link in self.profile.device_links
            if indices.issuperset(link.devices)
        )

    @property
    def key(self) -> tuple[object, ...]:
        host = self.profile.host
        return (
            self.devices[0].name,
            self.first,
            tuple(device.index for device in self.devices),
            len(self.profile.devices),
            self.nics,
            host.cpu_vendor,
            host.cores,
            tuple(sorted(self.paths.items(), key=str)),
        )


def merge_profiles(
    profiles: Sequence[Profile],
    *,
    name: str,
    links: Sequence[LinkRates] = (),
    findings: Sequence[Finding] = (),
    files: Mapping[str, str] | None = None,
) -> tuple[Cluster, tuple[Finding, ...]]:
    """The cluster of these nodes, and what could not be expressed in it.

    `links` are the fits of the measured links, `findings` what is known to be slow, `files` where
    the profile of each node lies. Raises UsageError for nodes of one name, and for a device that
    neither the catalogue nor a measurement describes.
    """
    _distinct(profiles)
    fitted = {link.between: link for link in links}
    described = [each for profile in profiles for each in _described(profile)]
    if not described:
        raise UsageError(
            "no node has a device that can be used",
            why="; ".join(note for p in profiles for d in p.devices for note in d.notes)[:500],
            fix="`hetcli profile show` tells each device's reasons",
        )
    groups: dict[tuple[object, ...], list[_Described]] = defaultdict(list)
    for each in described:
        groups[each.key].append(each)
    measured = tuple(pair for link in links for pair in _pairs(link, described))
    cluster = Cluster(
        name=name,
        description=_description(profiles),
        nodes=tuple(_group(members, fitted, files or {}) for members in groups.values()),
        pairs=measured,
        health=_health(findings, described),
    )
    return cluster, tuple(_not_expressed(described))


# More digits than a measurement has say nothing.
_DIGITS: Final = 4


def _rate(value: float) -> str:
    return format_rate_exact(float(f"{value:.{_DIGITS}g}"))


def _latency(link: LinkRates) -> str | None:
    if link.latency_s is None:
        return None
    return format_duration_exact(float(f"{link.latency_s:.{_DIGITS}g}"))


def _pairs(link: LinkRates, described: Sequence[_Described]) -> Iterator[PairLink]:
    """The link between two machines, or inside one, for every two nodes that they are."""
    one, other = (
        [each.name for each in described if each.profile.node == end] for end in link.between
    )
    same = link.between[0] == link.between[1]
    for nodes in itertools.combinations(one, 2) if same else itertools.product(one, other):
        yield PairLink.model_validate(
            {"nodes": nodes, "rate": _rate(link.bytes_per_s), "latency": _latency(link)}
        )


def _distinct(profiles: Sequence[Profile]) -> None:
    counts = Counter(profile.node for profile in profiles)
    node, count = counts.most_common(1)[0] if counts else ("", 0)
    if count > 1:
        raise UsageError(
            f"{count} profiles of node {node}",
            why="a node has one profile",
            fix="leave the older one out, or profile with --name",
        )


def _description(profiles: Sequence[Profile]) -> str:
    sources = ", ".join(dict.fromkeys(profile.source for profile in profiles))
    last = max(profile.created for profile in profiles)
    return f"Made from {len(profiles)} profiles ({sources}) of {last}."


def _described(profile: Profile) -> Iterator[_Described]:
    for place, devices in enumerate(kinds_of_devices(profile)):
        try:
            gpu = find_gpu(devices[0].name)
        except UnknownNameError:
            gpu = None
        yield _Described(profile, place == 0, devices, gpu, _nics(profile))


def _nics(profile: Profile) -> tuple[tuple[str, float, int], ...]:
    """Kind, rate and count of interfaces whose rate is known, fastest first."""
    counts = Counter(
        ("ethernet" if nic.kind == "unknown" else nic.kind, nic.rate_bytes_per_s)
        for nic in profile.nics
        if nic.rate_bytes_per_s is not None
    )
    known = [(kind, rate, count) for (kind, rate), count in counts.items() if rate is not None]
    return tuple(sorted(known, key=lambda nic: -nic[1] * nic[2]))


def _group(
    members: Sequence[_Described],
    links: Mapping[tuple[str, str], LinkRates],
    files: Mapping[str, str],
) -> NodeGroup:
    first = members[0]
    profiles = [each.profile for each in members]
    host = first.profile.host
    indices = tuple(device.index for device in first.devices)
    total = len(first.profile.devices)
    free = [
        device.memory_free_bytes
        for each in members
        for device in each.devices
        if device.memory_free_bytes is not None
    ]
    return NodeGroup.model_validate(
        {
            "name": fold_hosts(each.name for each in members),
            "host": None if first.first else fold_hosts(profile.node for profile in profiles),
            "gpu": first.gpu.name if first.gpu is not None else _custom(members),
            "gpus": total,
            "use": indices if len(indices) < total else None,
            "free_memory": format_bytes_exact(least) if (least := min(free, default=0)) else None,
            "intra_link": _intra(members, links) if len(indices) > 1 else None,
            "nics": _group_nics(members, links),
            "memory": None if host.memory_bytes is None else format_bytes_exact(host.memory_bytes),
            "cores": host.cores,
            "cpu_vendor": host.cpu_vendor,
            "profile": files.get(first.profile.node),
        }
    )


def _custom(members: Sequence[_Described]) -> CustomGpu:
    """A device that the catalogue does not hold, as it was measured."""
    device = members[0].devices[0]
    best: dict[str, list[float]] = defaultdict(list)
    memory: list[float] = []
    for each in members:
        chosen = {device.index for device in each.devices}
        own: dict[str, float] = {}
        for row in each.profile.matmul:
            if row.device in chosen:
                own[row.dtype] = max(own.get(row.dtype, 0.0), row.flop_per_s)
        for dtype, rate in own.items():
            best[dtype].append(rate)
        memory += [row.bytes_per_s for row in each.profile.memory_bandwidth if row.device in chosen]
    total = device.memory_total_bytes
    if not best or not memory or not total:
        raise UsageError(
            f"device {device.name!r}",
            why="the catalogue does not hold it, and its rates were not measured",
            fix="run hetcli profile without --no-measure, or describe it in the cluster file",
        )

    def tflops(dtype: str) -> float | None:
        return float(f"{statistics.median(best[dtype]) / 1e12:.4g}") if dtype in best else None

    return CustomGpu.model_validate(
        {
            "name": device.name,
            "vendor": device.vendor,
            "memory": format_bytes_exact(total),
            "memory_rate": _rate(statistics.median(memory)),
            **{f"{dtype}_tflops": tflops(dtype) for dtype in ("fp32", "fp16", "bf16", "fp8")},
            "flash_attention": any(
                row.attention == "flash" for each in members for row in each.profile.layers
            ),
            "origin": Origin.MEASURED,
        }
    )


def _intra(
    members: Sequence[_Described], links: Mapping[tuple[str, str], LinkRates]
) -> IntraLink | str | None:
    """What was measured inside the nodes, the slowest of them; else the nominal NVLink or slot."""
    kind = "nvlink" if any(path == "nvlink" for path, _ in members[0].paths) else "pcie"
    own = [
        links[each.profile.node, each.profile.node]
        for each in members
        if (each.profile.node, each.profile.node) in links
    ]
    if own:
        slowest = min(own, key=lambda link: link.bytes_per_s)
        return IntraLink.model_validate(
            {
                "kind": kind,
                "rate": _rate(slowest.bytes_per_s),
                "latency": _latency(slowest),
                "origin": Origin.MEASURED,
            }
        )
    if members[0].gpu is not None:
        return None
    rates = [device.pcie_bytes_per_s for device in members[0].devices]
    known = [rate for rate in rates if rate is not None]
    return IntraLink.model_validate({"kind": "pcie", "rate": _rate(min(known))}) if known else None


def _group_nics(
    members: Sequence[_Described], links: Mapping[tuple[str, str], LinkRates]
) -> tuple[Nic, ...]:
    """The stated interfaces; where they were measured to reach far less, what was measured."""
    nodes = {each.profile.node for each in members}
    reached = [
        link.bytes_per_s
        for pair, link in links.items()
        if len(set(pair)) == 2 and nodes & set(pair)
    ]
    stated = members[0].nics
    if reached:
        kind, rate, count = stated[0] if stated else ("ethernet", 0.0, 1)
        if max(reached) < NOMINAL * rate * count or not stated:
            measured = {"rate": _rate(max(reached)), "origin": Origin.MEASURED}
            return (Nic.model_validate({"kind": kind, **measured}),)
    return tuple(
        Nic.model_validate({"kind": kind, "rate": _rate(rate), "count": count})
        for kind, rate, count in stated
    )


def _health(findings: Sequence[Finding], described: Sequence[_Described]) -> tuple[Health, ...]:
    chosen = {(each.profile.node, device.index) for each in described for device in each.devices}
    return tuple(
        Health(
            node=finding.nodes[0],
            devices=finding.devices,
            state="slow",
            slowdown=finding.factor,
            reason=finding.cause,
        )
        for finding in findings
        if finding.kind == "slow device"
        and finding.factor is not None
        and (finding.nodes[0], finding.devices[0]) in chosen
    )


def _not_expressed(described: Sequence[_Described]) -> list[Finding]:
    """The MIG instances that have nobody to work with."""
    used = {(each.profile.node, device.index) for each in described for device in each.devices}
    return [
        Finding(
            kind="left out",
            nodes=(each.profile.node,),
            devices=(device.index,),
            what=f"{device.name} is not in the cluster file",
            cause="MIG instances talk to nobody in their machine: "
            f"{each.devices[0].name} is used alone",
        )
        for each in described
        if each.first
        for device in each.profile.devices
        if device.usable and (each.profile.node, device.index) not in used
    ]
