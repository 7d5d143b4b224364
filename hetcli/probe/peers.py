"""Equal devices that measured unequal results: who is slower than its peers, and by how much."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from hetcli.spec.finding import Finding, FindingKind
from hetcli.spec.profile import DeviceInventory, LoadObservation, Profile

__all__ = ["SLOW", "slow_devices", "typical"]

# Repeated runs of one measurement on healthy hardware differ by up to 14 % (published repeats of
# one configuration); what is slower than that is not noise.
SLOW: Final = 1.15

Place = tuple[str, int]


def typical(values: Sequence[float]) -> float:
    """The median of the better (smaller) half: what healthy members of a set reach."""
    ordered = sorted(values)
    return statistics.median(ordered[: max(1, (len(ordered) + 1) // 2)])


def slow_devices(profiles: Sequence[Profile]) -> tuple[Finding, ...]:
    """Devices slower than others of their name, each kind of work by itself."""
    made: list[Finding] = []
    kinds: tuple[tuple[FindingKind, str], ...] = (
        ("slow device", "computes"),
        ("slow memory", "copies in its memory"),
        ("slow host link", "copies to and from the host"),
    )
    for kind, does in kinds:
        for (node, index), factor in sorted(_factors(profiles, kind).items()):
            if factor >= SLOW:
                profile = next(each for each in profiles if each.node == node)
                device = _device(profile, index)
                made.append(
                    Finding(
                        kind=kind,
                        nodes=(node,),
                        devices=(index,),
                        factor=round(factor, 2),
                        what=f"{device.name} {does} {factor:.2f} times as slowly as its peers",
                        cause=_cause(profile, device, profiles),
                    )
                )
    return tuple(made)


def _device(profile: Profile, index: int) -> DeviceInventory:
    return next(device for device in profile.devices if device.index == index)


def _rows(profile: Profile, kind: FindingKind) -> Iterator[tuple[int, tuple[object, ...], float]]:
    """Device, what was done, and its seconds."""
    if kind == "slow device":
        for row in profile.matmul:
            yield row.device, ("matmul", row.dtype, row.m, row.n, row.k), row.seconds.median
        for layer in profile.layers:
            shape = (layer.tensor_parallel, layer.micro_batch_size, layer.sequence)
            both = layer.forward_s.median + layer.backward_s.median
            yield layer.device, ("layer", layer.model, layer.dtype, *shape), both
    elif kind == "slow memory":
        for copy in profile.memory_bandwidth:
            yield copy.device, ("copy", copy.transferred_bytes), copy.seconds.median
    else:
        for there in profile.host_copy:
            what = (there.direction, there.transferred_bytes)
            yield there.device, what, there.seconds.median


def _factors(profiles: Sequence[Profile], kind: FindingKind) -> dict[Place, float]:
    """How many times as long each device takes as its peers; the median over all it did."""
    seconds: dict[tuple[object, ...], dict[Place, float]] = defaultdict(dict)
    for profile in profiles:
        for index, what, took in _rows(profile, kind):
            name = _device(profile, index).name
            seconds[name, *what][profile.node, index] = took
    ratios: dict[Place, list[float]] = defaultdict(list)
    for times in seconds.values():
        if len(times) > 1:
            healthy = typical(list(times.values()))
            for place, took in times.items():
                ratios[place].append(took / healthy)
    return {place: statistics.median(own) for place, own in ratios.items()}


def _cause(profile: Profile, device: DeviceInventory, profiles: Sequence[Profile]) -> str:
    """What the driver said that explains it."""
    looks = [look for look in profile.under_load if look.device == device.index]
    reasons = dict.fromkeys(reason for look in looks for reason in look.throttling)
    if reasons:
        hottest = max((look.temperature_c or 0 for look in looks), default=0)
        at = f" at {hottest:.0f} °C" if hottest else ""
        return f"the driver held its clock back: {', '.join(reasons)}{at}"
    peers = [
        (other, each)
        for other in profiles
        for each in other.devices
        if each.name == device.name and (other.node, each.index) != (profile.node, device.index)
    ]
    limits = [each.power_limit_w for _, each in peers if each.power_limit_w]
    if device.power_limit_w and limits and device.power_limit_w < 0.95 * max(limits):
        return f"its power limit is {device.power_limit_w:g} W, its peers' {max(limits):g} W"
    clock = _clock(looks)
    others = [
        found
        for other, each in peers
        if (found := _clock([look for look in other.under_load if look.device == each.index]))
    ]
    if clock and others and clock < 0.95 * max(others):
        return f"it ran at {clock / 1e6:.0f} MHz, its peers at up to {max(others) / 1e6:.0f} MHz"
    width, widest = device.pcie_width, device.pcie_width_max
    if width and widest and width < widest:
        return f"PCIe trained to x{width} of x{widest}"
    if device.utilization and device.utilization > 0.1:
        return f"something else used it ({device.utilization:.0%} busy)"
    return "no reason is known: compare clocks, cooling and other processes"


def _clock(looks: Sequence[LoadObservation]) -> float | None:
    clocks = [look.clock_sm_hz for look in looks if look.clock_sm_hz]
    return max(clocks, default=None)
