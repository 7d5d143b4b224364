"""Put the fits of a cluster into one document, and let the performance model compute with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from hetcli import __version__
from hetcli.catalog.efficiency import Efficiency, MatmulCurve, Term
from hetcli.catalog.gpu import Dtype, Gpu
from hetcli.perf.fitting.compute import Slow, fit_layers, fit_matmul, fit_memory
from hetcli.perf.fitting.links import fit_groups, fit_links
from hetcli.perf.hardware import DeviceType, Hardware, LinkCurve, Node
from hetcli.spec.hardware import ComputeRates, HardwareFile, LinkRates, MemoryRates
from hetcli.spec.profile import Profile

__all__ = ["fit_profiles", "with_fitted"]

# Above this residual the measured points say more than the line through them.
STRAIGHT: Final = 0.05


def fit_profiles(
    profiles: Sequence[Profile], *, name: str, slow: Slow = frozenset()
) -> HardwareFile:
    """Every curve that the profiles support. Devices in `slow` do not speak for their type."""
    links = fit_links(profiles)
    return HardwareFile(
        name=name,
        hetcli_version=__version__,
        compute=fit_matmul(profiles, slow),
        memory=fit_memory(profiles, slow),
        layers=fit_layers(profiles, slow),
        links=links,
        groups=fit_groups(profiles, links),
    )


def with_fitted(hardware: Hardware, fitted: HardwareFile) -> Hardware:
    """The hardware with fitted numbers in the place of shipped ones, where there are any."""
    compute: dict[str, list[ComputeRates]] = {}
    for rates in fitted.compute:
        compute.setdefault(rates.device, []).append(rates)
    memory = {rates.device: rates for rates in fitted.memory}
    links = {link.between: link for link in fitted.links}
    types = {
        id(node.device_type): _fitted_type(node.device_type, compute, memory)
        for node in hardware.nodes
    }
    machines: dict[str, list[Node]] = {}
    for node in hardware.nodes:
        machines.setdefault(node.machine, []).append(node)
    pairs = {
        (a.name, b.name) if a.name < b.name else (b.name, a.name): _pair_curve(link, a, b, hardware)
        for (one, other), link in links.items()
        for a in machines.get(one, ())
        for b in machines.get(other, ())
        if a is not b
    }
    return replace(
        hardware,
        nodes=tuple(
            _fitted_node(node, types[id(node.device_type)], links) for node in hardware.nodes
        ),
        pair_links={**hardware.pair_links, **pairs},
    )


def _fitted_type(
    kind: DeviceType,
    compute: Mapping[str, Sequence[ComputeRates]],
    memory: Mapping[str, MemoryRates],
) -> DeviceType:
    rates, stream = compute.get(kind.gpu.name, ()), memory.get(kind.gpu.name)
    if not rates and stream is None:
        return kind
    shares = kind.shares
    matmul: dict[Dtype, MatmulCurve] = dict(shares.matmul)
    sustained = dict(shares.sustained)
    for each in rates:
        if kind.gpu.supports(each.dtype):
            matmul[each.dtype] = _matmul_curve(each, kind.gpu)
            # The probe measures until clocks are steady, so nothing is to be taken off.
            sustained[each.dtype] = Term(
                value=1.0, origin=each.origin, rows=each.rows, source=each.source
            )
    changed: dict[str, object] = {"matmul": matmul, "sustained": sustained}
    if stream is not None:
        changed["streaming"] = Term(
            value=stream.bytes_per_s / kind.gpu.memory_bytes_per_s,
            origin=stream.origin,
            rows=stream.rows,
            source=stream.source,
        )
    efficiency: Efficiency = shares.model_copy(update=changed)
    return replace(kind, efficiency=efficiency)


def _matmul_curve(rates: ComputeRates, gpu: Gpu) -> MatmulCurve:
    peak = gpu.usable_flops.get(rates.dtype, gpu.peak_flops[rates.dtype])
    return MatmulCurve(
        compute=rates.flop_per_s / peak,
        left=rates.left_s * gpu.memory_bytes_per_s,
        right=rates.right_s * gpu.memory_bytes_per_s,
        output=rates.output_s * gpu.memory_bytes_per_s,
        launch_s=rates.launch_s,
        residual=rates.residual,
        rows=rates.rows,
        origin=rates.origin,
        source=rates.source,
    )


def _fitted_node(node: Node, kind: DeviceType, links: Mapping[tuple[str, str], LinkRates]) -> Node:
    inside = links.get((node.machine, node.machine))
    if inside is None:
        return replace(node, device_type=kind)
    intra = _curve(inside, node.intra)
    return replace(node, device_type=kind, intra=intra)


def _pair_curve(link: LinkRates, one: Node, other: Node, hardware: Hardware) -> LinkCurve:
    stated = replace(hardware.between(one, other), name="-".join(link.between), shared=True)
    return _curve(link, stated)


def _curve(link: LinkRates, stated: LinkCurve) -> LinkCurve:
    """A line where one fits, else the measured points, raised to what all ranks reach together.

    What was not measured, as the latency where all messages had one size, stays as it is `stated`.
    """
    straight = link.residual is None or link.residual <= STRAIGHT
    together = link.bytes_per_s / (link.flow_bytes_per_s or link.bytes_per_s)
    return replace(
        stated,
        latency_s=stated.latency_s if link.latency_s is None else link.latency_s,
        bytes_per_s=link.bytes_per_s,
        origin=link.origin,
        points=()
        if straight
        else tuple((point.message_bytes, point.bytes_per_s * together) for point in link.curve),
    )
