"""What a profile adds to a report: the bandwidth between pairs, and the roofline of its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hetcli.catalog.gpu import Dtype
from hetcli.catalog.hardware import find_gpu
from hetcli.errors import UnknownNameError
from hetcli.perf.roofline import matmul_intensity, roof
from hetcli.report.drawing import Axis, log_axis
from hetcli.spec.profile import LinkMeasurement, Profile

__all__ = ["MeasuredNode", "PairMatrix", "Roofline", "RooflinePoint", "measured_node"]

_SIZE = (640.0, 260.0)


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Bytes per second from a row's member to a column's, None where it was not measured."""

    title: str
    names: tuple[str, ...]
    rates: tuple[tuple[float | None, ...], ...]
    fastest: float


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One product as it ran, and where it is drawn."""

    shape: str
    intensity: float
    flop_per_s: float
    share: float
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The products of one device and type; `peak_is_known` says that the catalogue has a peak."""

    device: str
    dtype: Dtype
    peak_flops: float
    peak_is_known: bool
    memory_bytes_per_s: float
    across: Axis
    up: Axis
    line: str
    points: tuple[RooflinePoint, ...]


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """What one profile shows."""

    profile: Profile
    matrices: tuple[PairMatrix, ...]
    rooflines: tuple[Roofline, ...]


def measured_node(profile: Profile) -> MeasuredNode:
    """The drawings that the measurements of a profile allow."""
    pairs = [
        _matrix(profile, "devices of this node", "intra_node", lambda link: map(str, link.devices)),
        _matrix(profile, "nodes", "inter_node", lambda link: link.nodes),
    ]
    return MeasuredNode(
        profile=profile,
        matrices=tuple(each for each in pairs if each is not None),
        rooflines=tuple(_rooflines(profile)),
    )


def _matrix(
    profile: Profile,
    title: str,
    scope: str,
    ends: Callable[[LinkMeasurement], Iterable[str]],
) -> PairMatrix | None:
    """The best rate of every pair over all message sizes; None without a measured pair."""
    rates: dict[tuple[str, str], float] = {}
    for link in profile.links:
        members = tuple(ends(link))
        if link.scope == scope and link.operation == "send_recv" and len(members) == 2:
            pair = (members[0], members[1])
            rates[pair] = max(rates.get(pair, 0.0), link.algbw_bytes_per_s)
    if not rates:
        return None
    names = tuple(dict.fromkeys(name for pair in rates for name in pair))
    rows = tuple(tuple(rates.get((one, other)) for other in names) for one in names)
    return PairMatrix(title, names, rows, max(rates.values()))


def _rooflines(profile: Profile) -> list[Roofline]:
    found = []
    for device, dtype in dict.fromkeys((each.device, each.dtype) for each in profile.matmul):
        memory = [each.bytes_per_s for each in profile.memory_bandwidth if each.device == device]
        if memory:
            found.append(_roofline(profile, device, dtype, max(memory)))
    return found


def _roofline(profile: Profile, device: int, dtype: Dtype, memory: float) -> Roofline:
    products = [each for each in profile.matmul if each.device == device and each.dtype == dtype]
    name = next((each.name for each in profile.devices if each.index == device), str(device))
    best = max(each.flop_per_s for each in products)
    peak = _peak(name, dtype)
    ceiling = max(peak or 0.0, best)
    intensities = [matmul_intensity(each.m, each.n, each.k, dtype) for each in products]
    width, height = _SIZE
    ridge = ceiling / memory
    across = log_axis([*intensities, ridge], width)
    floor = min(each.flop_per_s for each in products)
    up = log_axis([floor, ceiling, roof(across.low, memory, ceiling)], height)

    def place(intensity: float, rate: float) -> tuple[float, float]:
        return across.at(intensity), round(height - up.at(rate), 2)

    corners = [(x, roof(x, memory, ceiling)) for x in (across.low, ridge, across.high)]
    return Roofline(
        device=f"{device}: {name}",
        dtype=dtype,
        peak_flops=ceiling,
        peak_is_known=peak is not None,
        memory_bytes_per_s=memory,
        across=across,
        up=up,
        line=" ".join(f"{x},{y}" for x, y in (place(*corner) for corner in corners)),
        points=tuple(
            RooflinePoint(
                f"{each.m} x {each.k} x {each.n}",
                intensity,
                each.flop_per_s,
                each.flop_per_s / roof(intensity, memory, ceiling),
                *place(intensity, each.flop_per_s),
            )
            for each, intensity in zip(products, intensities, strict=True)
        ),
    )


def _peak(name: str, dtype: Dtype) -> float | None:
    """The catalogue's dense peak, None for a device that it does not hold."""
    try:
        return find_gpu(name).peak_flops.get(dtype)
    except UnknownNameError:
        return None
