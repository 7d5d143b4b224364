"""Latency and bandwidth of every measured link."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.fitting.robust import fit_seconds
from hetcli.spec.base import Origin
from hetcli.spec.hardware import CurvePoint, GroupRates, LinkRates
from hetcli.spec.profile import LinkMeasurement, Profile

__all__ = ["fit_groups", "fit_links"]

# A line through times of messages is believed when it is this close to them.
BELIEVED: Final = 0.20


@dataclass(frozen=True, slots=True)
class _Line:
    """Seconds of a message: latency + bytes / bytes_per_s.

    Messages of one size cannot tell the two apart: the rate is then what they reached, and latency
    and residual are not known.
    """

    latency_s: float | None
    bytes_per_s: float
    curve: tuple[CurvePoint, ...]
    rows: int
    residual: float | None


def _line(rows: Sequence[LinkMeasurement], volume: float = 1.0) -> _Line:
    """The line through the rows' times; `volume` is what the slowest edge carries a byte.

    Where no line fits (protocols change with the size), the largest message gives the rate and
    the smallest the latency.
    """
    rows = sorted(rows, key=lambda row: row.message_bytes)
    sizes = np.array([row.message_bytes * volume for row in rows])
    seconds = np.array([row.seconds.median for row in rows])
    if len(set(sizes)) == 1:
        return _Line(None, float(sizes[0] / np.median(seconds)), (), len(rows), None)
    fit = fit_seconds(np.column_stack([np.ones(len(rows)), sizes]), seconds)
    latency, per_byte = (float(value) for value in fit.coefficients)
    largest = float(sizes[-1] / seconds[-1])
    if fit.residual > BELIEVED or per_byte <= 0:
        latency, per_byte = float(min(seconds)), 1 / largest
    curve = _curve(rows, sizes, seconds, latency)
    return _Line(latency, 1 / per_byte, curve, len(rows), fit.residual)


def _longest(lines: Iterable[_Line]) -> float | None:
    return max((line.latency_s for line in lines if line.latency_s is not None), default=None)


def _by_hop(line: _Line, ranks: int) -> float | None:
    """The latency of one of the 2(n - 1) steps of a ring all-reduce among n ranks."""
    return None if line.latency_s is None else line.latency_s / (2 * (ranks - 1))


def _curve(
    rows: Sequence[LinkMeasurement],
    sizes: NDArray[np.float64],
    seconds: NDArray[np.float64],
    latency: float,
) -> tuple[CurvePoint, ...]:
    """Bandwidth by message size, for sizes whose time is more than latency."""
    return tuple(
        CurvePoint(
            message_bytes=float(row.message_bytes),
            bytes_per_s=float(size / (second - latency)),
        )
        for row, size, second in zip(rows, sizes, seconds, strict=True)
        # Below twice the latency the difference of two like numbers is noise.
        if second > 2 * latency
    )


def _usable(profiles: Iterable[Profile]) -> list[LinkMeasurement]:
    return [row for profile in profiles for row in profile.links if row.verified]


def fit_links(profiles: Sequence[Profile]) -> tuple[LinkRates, ...]:
    """Every pair of nodes that was measured, and the inside of every node, in sorted order."""
    rows = _usable(profiles)
    sources = {profile.node: profile.source for profile in profiles}
    nominal = {profile.node: _nominal(profile) for profile in profiles}
    between: dict[tuple[str, str], list[LinkMeasurement]] = defaultdict(list)
    inside: dict[str, list[LinkMeasurement]] = defaultdict(list)
    for row in rows:
        if row.scope == "intra_node":
            inside[row.nodes[0]].append(row)
        elif len(row.nodes) == 2:
            one, other = sorted(row.nodes)
            between[one, other].append(row)
    made = [_inside(node, own, sources.get(node, "")) for node, own in sorted(inside.items())]
    made += [
        _between(pair, own, nominal, sources.get(pair[0], ""))
        for pair, own in sorted(between.items())
    ]
    return tuple(each for each in made if each is not None)


def _nominal(profile: Profile) -> float | None:
    rates = [nic.rate_bytes_per_s for nic in profile.nics]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def _between(
    pair: tuple[str, str],
    rows: Sequence[LinkMeasurement],
    nominal: Mapping[str, float | None],
    source: str,
) -> LinkRates | None:
    directions: dict[tuple[str, ...], list[LinkMeasurement]] = defaultdict(list)
    together: list[LinkMeasurement] = []
    for row in rows:
        if row.operation == "send_recv" and row.ranks == 2:
            directions[row.nodes].append(row)
        elif row.operation == "send_recv":
            together.append(row)
    if directions:
        lines = [_line(own) for own in directions.values()]
        slower = min(lines, key=lambda line: line.bytes_per_s)
        flow = slower.bytes_per_s
        latency = _longest(lines)
    else:
        # Imported collectives of two nodes: their bus bandwidth is what the link carries.
        collectives = [row for row in rows if row.operation == "all_reduce"]
        if not collectives:
            return None
        ranks = collectives[0].ranks
        same = [row for row in collectives if row.ranks == ranks]
        slower = _line(same, 2 * (ranks - 1) / ranks)
        flow, latency = None, _by_hop(slower, ranks)
    rate = slower.bytes_per_s
    if together:
        senders = max(row.ranks for row in together) // 2
        most = [row for row in together if row.ranks == 2 * senders]
        rate = max(rate, _line(most, senders).bytes_per_s)
    rates = [nominal.get(node) for node in pair]
    known = [value for value in rates if value is not None]
    return LinkRates(
        between=pair,
        latency_s=latency,
        bytes_per_s=rate,
        flow_bytes_per_s=flow,
        curve=slower.curve,
        origin=Origin.FITTED,
        rows=len(rows),
        residual=slower.residual,
        versus_nominal=rate / min(known) if len(known) == 2 else None,
        source=source,
    )


def _inside(node: str, rows: Sequence[LinkMeasurement], source: str) -> LinkRates | None:
    """All-reduce over all ranks shows what a ring reaches; else the slowest pair."""
    reduced = [row for row in rows if row.operation == "all_reduce"]
    most = max((row.ranks for row in reduced), default=0)
    sent: dict[tuple[int, ...], list[LinkMeasurement]] = defaultdict(list)
    for row in rows:
        if row.operation == "send_recv" and row.ranks == 2:
            sent[row.devices].append(row)
    pairs = [_line(own) for own in sent.values()]
    if most:
        ring = _line([row for row in reduced if row.ranks == most], 2 * (most - 1) / most)
        latency = _longest(pairs) if pairs else _by_hop(ring, most)
    elif pairs:
        ring = min(pairs, key=lambda line: line.bytes_per_s)
        latency = ring.latency_s
    else:
        return None
    return LinkRates(
        between=(node, node),
        latency_s=latency,
        bytes_per_s=ring.bytes_per_s,
        flow_bytes_per_s=min((line.bytes_per_s for line in pairs), default=None),
        curve=ring.curve,
        origin=Origin.FITTED,
        rows=len(rows),
        residual=ring.residual,
        source=source,
    )


def fit_groups(profiles: Sequence[Profile], links: Sequence[LinkRates]) -> tuple[GroupRates, ...]:
    """Collectives over several nodes at their largest message, beside their slowest pair."""
    pairs = {link.between: link for link in links}
    largest: dict[tuple[object, ...], LinkMeasurement] = {}
    for row in _usable(profiles):
        if row.scope == "inter_node" and row.operation != "send_recv":
            key = (row.operation, row.nodes, row.ranks)
            if key not in largest or row.message_bytes > largest[key].message_bytes:
                largest[key] = row
    return tuple(_group(row, pairs) for row in largest.values())


def _group(row: LinkMeasurement, pairs: Mapping[tuple[str, str], LinkRates]) -> GroupRates:
    edges = [
        pairs[one, other].bytes_per_s
        for one, other in itertools.combinations(sorted(row.nodes), 2)
        if (one, other) in pairs
    ]
    slowest = min(edges, default=None)
    reaches = row.busbw_bytes_per_s
    return GroupRates(
        operation=row.operation,
        nodes=row.nodes,
        ranks=row.ranks,
        message_bytes=row.message_bytes,
        bus_bytes_per_s=reaches,
        versus_slowest_pair=reaches / slowest if slowest and reaches else None,
    )
