"""What the profiles of a cluster show to be wrong: named nodes, factors, likely causes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from hetcli.catalog.hardware import find_gpu
from hetcli.errors import UnknownNameError
from hetcli.probe.peers import slow_devices, typical
from hetcli.spec.finding import Finding
from hetcli.spec.hardware import LinkRates
from hetcli.spec.profile import ComputeDtype, LinkMeasurement, NicInventory, Profile
from hetcli.units import format_flops, format_rate

__all__ = ["examine", "slow_places"]

# Links of healthy equal nodes agree better than this; also the two directions of one link.
SLOW_LINK: Final = 1.25
# A link that reaches less of its interfaces than this is limited by something else.
NOMINAL: Final = 0.5


def examine(profiles: Sequence[Profile], links: Sequence[LinkRates]) -> tuple[Finding, ...]:
    """All findings, the most costly kinds first. `links` are the fits of the profiles' links."""
    return (
        *_wrong_values(profiles),
        *_above_peak(profiles),
        *slow_devices(profiles),
        *_slow_links(profiles, links),
        *_unlike_directions(profiles),
        *_below_nominal(profiles, links),
        *_downtrained(profiles),
        *_left_out(profiles),
        *_mixed(profiles),
    )


def slow_places(findings: Sequence[Finding]) -> frozenset[tuple[str, int]]:
    """The devices that do not speak for their type, as (node, index)."""
    return frozenset(
        (finding.nodes[0], index)
        for finding in findings
        if finding.kind in {"slow device", "slow memory"}
        for index in finding.devices
    )


def _wrong_values(profiles: Sequence[Profile]) -> list[Finding]:
    return [
        Finding(
            kind="wrong values",
            nodes=row.nodes,
            what=f"{row.operation} over {row.ranks} ranks gave wrong values",
            cause="NCCL chose unlike algorithms on unlike hosts, or a link corrupts data; "
            "try NCCL_ALGO=Ring NCCL_PROTO=Simple",
        )
        for profile in profiles
        for row in profile.links
        if not row.verified
    ]


def _above_peak(profiles: Sequence[Profile]) -> list[Finding]:
    """Devices faster than the dense peak of what they are called; the rates stay as measured."""
    made = []
    for profile in profiles:
        best: dict[tuple[int, ComputeDtype], float] = {}
        for row in profile.matmul:
            what = row.device, row.dtype
            best[what] = max(best.get(what, 0.0), row.flop_per_s)
        for device in profile.devices:
            try:
                peaks = find_gpu(device.name).peak_flops
            except UnknownNameError:  # Without a data sheet there is no peak to exceed.
                continue
            for dtype, peak in peaks.items():
                rate = best.get((device.index, dtype), 0.0)
                if rate > peak:
                    made.append(
                        Finding(
                            kind="above peak",
                            nodes=(profile.node,),
                            devices=(device.index,),
                            what=f"{device.name}: {dtype} products reach {format_flops(rate)}, "
                            f"{rate / peak:.0%} of its dense peak ({format_flops(peak)})",
                            cause="a clock above the one of the data sheet; far above the peak, "
                            "another card than its name says, or times that did not wait for it",
                        )
                    )
    return made


def _kind(profile: Profile) -> tuple[object, ...]:
    """What makes two nodes equal: their devices and their interfaces."""
    nics = sorted((nic.kind, nic.rate_bytes_per_s or 0.0) for nic in profile.nics)
    return tuple(device.name for device in profile.devices if device.usable), tuple(nics)


def _slow_links(profiles: Sequence[Profile], links: Sequence[LinkRates]) -> list[Finding]:
    """Nodes all of whose links are slow, then single pairs that are slower than both their ends."""
    rates = {link.between: link.bytes_per_s for link in links if len(set(link.between)) == 2}
    own: dict[str, list[float]] = defaultdict(list)
    for pair, rate in rates.items():
        for node in pair:
            own[node].append(rate)
    best = {node: max(found) for node, found in own.items()}
    kinds: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for profile in profiles:
        if profile.node in best:
            kinds[_kind(profile)].append(profile.node)
    made = []
    reference: dict[str, float] = {}
    for nodes in kinds.values():
        healthy = 1 / typical([1 / best[node] for node in nodes])
        for node in nodes:
            reference[node] = healthy
            # One slow pair does not tell which of its ends is slow.
            if len(own[node]) > 1 and healthy / best[node] >= SLOW_LINK:
                reference[node] = best[node]
                made.append(
                    Finding(
                        kind="slow node link",
                        nodes=(node,),
                        factor=round(healthy / best[node], 2),
                        what=f"its links reach {format_rate(best[node])} at most, those of its "
                        f"peers {format_rate(healthy)}",
                        cause="its interface, cable or switch port",
                    )
                )
    for pair, rate in sorted(rates.items()):
        expected = min(reference.get(node, rate) for node in pair)
        if expected / rate >= SLOW_LINK:
            made.append(
                Finding(
                    kind="slow pair",
                    nodes=pair,
                    factor=round(expected / rate, 2),
                    what=f"{format_rate(rate)} between them, where {format_rate(expected)} is "
                    "usual",
                    cause="the path between the two: a switch uplink or a wrong route",
                )
            )
    return made


def _unlike_directions(profiles: Sequence[Profile]) -> list[Finding]:
    rates: dict[tuple[str, ...], LinkMeasurement] = {}
    for profile in profiles:
        for row in profile.links:
            single = row.operation == "send_recv" and row.ranks == 2 and len(row.nodes) == 2
            larger = row.nodes not in rates or row.message_bytes > rates[row.nodes].message_bytes
            if single and row.verified and larger:
                rates[row.nodes] = row
    made = []
    for (one, other), row in sorted(rates.items()):
        back = rates.get((other, one))
        if back is None or one > other:
            continue
        fast, slow = row.algbw_bytes_per_s, back.algbw_bytes_per_s
        if max(fast, slow) / min(fast, slow) >= SLOW_LINK:
            made.append(
                Finding(
                    kind="unlike directions",
                    nodes=(one, other),
                    factor=round(max(fast, slow) / min(fast, slow), 2),
                    what=f"{format_rate(fast)} from {one} to {other}, {format_rate(slow)} back; "
                    "the slower one is used",
                )
            )
    return made


def _below_nominal(profiles: Sequence[Profile], links: Sequence[LinkRates]) -> list[Finding]:
    """Nodes whose best link is far below what their interfaces could carry."""
    by_node = {profile.node: profile for profile in profiles}
    best: dict[str, float] = {}
    for link in links:
        if len(set(link.between)) == 2:
            for node in link.between:
                best[node] = max(best.get(node, 0.0), link.bytes_per_s)
    made = []
    for node, rate in sorted(best.items()):
        profile = by_node.get(node)
        nics = [nic for nic in profile.nics if nic.rate_bytes_per_s] if profile else []
        total = sum(nic.rate_bytes_per_s or 0.0 for nic in nics)
        if profile is None or not nics or rate >= NOMINAL * total:
            continue
        one = max(nic.rate_bytes_per_s or 0.0 for nic in nics)
        share = f"{rate / one:.0%} of one interface ({format_rate(one)})"
        if len(nics) > 1:
            share += f", {rate / total:.1%} of all {len(nics)} ({format_rate(total)})"
        made.append(
            Finding(
                kind="below nominal",
                nodes=(node,),
                factor=round(total / rate, 2),
                what=f"{format_rate(rate)} is {share}",
                cause=_network_cause(profile.host.environment, nics, rate, one),
            )
        )
    return made


def _network_cause(
    environment: Mapping[str, str], nics: Sequence[NicInventory], rate: float, one: float
) -> str:
    adapters = environment.get("NCCL_IB_HCA", "")
    names = [name for name in re.split(r"[,^=]+", adapters) if name]
    if adapters and not adapters.startswith("^") and len(names) < len(nics):
        return f"NCCL_IB_HCA={adapters} names {len(names)} of {len(nics)} interfaces"
    if environment.get("NCCL_IB_DISABLE") == "1":
        return "NCCL_IB_DISABLE=1: everything goes through sockets"
    if len(nics) > 1 and rate <= 1.05 * one:
        return f"as if one interface of {len(nics)} were used"
    if any(nic.kind in {"infiniband", "roce"} for nic in nics):
        return "as if sockets were used instead of RDMA: NCCL_DEBUG=INFO shows NET/Socket then"
    return "a slower switch port or path, or a driver that states a rate it does not have"


def _downtrained(profiles: Sequence[Profile]) -> list[Finding]:
    made = []
    for profile in profiles:
        for device in profile.devices:
            width, widest = device.pcie_width, device.pcie_width_max
            if width and widest and width < widest and not device.unified_memory:
                made.append(
                    Finding(
                        kind="downtrained",
                        nodes=(profile.node,),
                        devices=(device.index,),
                        factor=round(widest / width, 2),
                        what=f"{device.name}: PCIe trained to x{width} of x{widest}",
                        cause="the seat of the card, its riser, or a slot with fewer lanes",
                    )
                )
    return made


def _left_out(profiles: Sequence[Profile]) -> list[Finding]:
    return [
        Finding(
            kind="left out",
            nodes=(profile.node,),
            devices=(device.index,),
            what=f"{device.name} is not used",
            cause=device.notes[-1] if device.notes else "",
        )
        for profile in profiles
        for device in profile.devices
        if not device.usable
    ]


def _mixed(profiles: Sequence[Profile]) -> list[Finding]:
    """Hosts whose NCCL may choose unlike algorithms (NVIDIA/nccl issues 1136, 1184, 1110)."""
    with_gpus = [
        profile for profile in profiles if any(device.kind == "gpu" for device in profile.devices)
    ]
    processors = dict.fromkeys(
        profile.host.cpu_vendor for profile in with_gpus if profile.host.cpu_vendor
    )
    capabilities = dict.fromkeys(
        device.compute_capability
        for profile in with_gpus
        for device in profile.devices
        if device.usable and device.compute_capability
    )
    mixes = []
    if len(processors) > 1:
        mixes.append(f"processors of {' and '.join(sorted(processors))}")
    if len(capabilities) > 1:
        mixes.append(f"compute capabilities {' and '.join(sorted(capabilities))}")
    if not mixes:
        return []
    return [
        Finding(
            kind="mixed",
            nodes=tuple(profile.node for profile in with_gpus),
            what=f"the cluster mixes {' and '.join(mixes)}",
            cause="NCCL tunes itself on each host; where hosts choose unlike algorithms it hangs: "
            "set NCCL_ALGO=Ring NCCL_PROTO=Simple for groups that span the mix",
        )
    ]
