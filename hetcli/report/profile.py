"""Profiles of nodes in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report.tables import heading, indented, table
from hetcli.spec.profile import Profile
from hetcli.units import format_bytes, format_duration, format_flops, format_rate

__all__ = ["profiles_view"]


def profiles_view(profiles: Sequence[Profile]) -> Iterator[RenderableType]:
    """Of every node: devices, interfaces, what was measured, and what is missing."""
    for profile in profiles:
        yield from _profile(profile)


def _profile(profile: Profile) -> Iterator[RenderableType]:
    host = profile.host
    facts = [profile.node, host.cpu, None if host.cores is None else f"{host.cores} cores"]
    if host.memory_bytes is not None:
        facts.append(format_bytes(host.memory_bytes))
    yield heading(", ".join(fact for fact in facts if fact))
    yield indented(_devices(profile))
    if profile.nics:
        yield heading("Network interfaces")
        yield indented(_nics(profile))
    rows = list(_measured(profile))
    if rows:
        yield heading("Measured")
        made = table(
            "#", "what", "shape", "median", "spread", "rate", numbers=("#", "median", "rate")
        )
        for row in rows:
            made.add_row(*row)
        yield indented(made)
    if profile.links:
        yield heading("Links")
        yield indented(_links(profile))
    if profile.missing:
        yield heading("Missing")
        lines = [f"- {each.step}: {each.why}" for each in profile.missing]
        yield indented(Text("\n".join(lines)))
    notes = [f"{d.name}: {note}" for d in profile.devices for note in d.notes]
    if notes:
        yield heading("Notes")
        yield indented(Text("\n".join(f"- {note}" for note in notes)))


def _devices(profile: Profile) -> Table:
    made = table("#", "device", "memory", "free", "PCIe", "", numbers=("#", "memory", "free"))
    for device in profile.devices:
        link = "unknown" if device.kind == "gpu" else "-"
        if device.pcie_generation_max is not None and device.pcie_bytes_per_s is not None:
            width = device.pcie_width or device.pcie_width_max
            link = f"gen {device.pcie_generation_max} x{width}"
        made.add_row(
            str(device.index),
            Text(device.name),
            _size(device.memory_total_bytes),
            _size(device.memory_free_bytes),
            link,
            "" if device.usable else "left out",
        )
    return made


def _size(value: int | None) -> str:
    return "unknown" if value is None else format_bytes(value)


def _nics(profile: Profile) -> Table:
    made = table("interface", "device", "kind", "rate", numbers=("rate",))
    for nic in profile.nics:
        rate = "unknown" if nic.rate_bytes_per_s is None else format_rate(nic.rate_bytes_per_s)
        made.add_row(Text(nic.interface), Text(nic.device or "-"), nic.kind, rate)
    return made


def _spread(median: float, p95: float) -> str:
    """How much longer the slowest of twenty repeats takes than the median."""
    return f"+{p95 / median - 1:.0%}" if median else "-"


def _measured(profile: Profile) -> Iterator[tuple[str, ...]]:
    for copy in profile.memory_bandwidth:
        yield (
            str(copy.device),
            "memory copy",
            format_bytes(copy.transferred_bytes),
            format_duration(copy.seconds.median),
            _spread(copy.seconds.median, copy.seconds.p95),
            format_rate(copy.bytes_per_s),
        )
    for there in profile.host_copy:
        yield (
            str(there.device),
            f"copy {there.direction.replace('_', ' ')}",
            format_bytes(there.transferred_bytes),
            format_duration(there.seconds.median),
            _spread(there.seconds.median, there.seconds.p95),
            format_rate(there.bytes_per_s),
        )
    for product in profile.matmul:
        yield (
            str(product.device),
            f"matmul {product.dtype}",
            f"{product.m} x {product.k} x {product.n}",
            format_duration(product.seconds.median),
            _spread(product.seconds.median, product.seconds.p95),
            format_flops(product.flop_per_s),
        )
    for layer in profile.layers:
        shape = f"tp {layer.tensor_parallel} mbs {layer.micro_batch_size} seq {layer.sequence}"
        for half, seconds in (("forward", layer.forward_s), ("backward", layer.backward_s)):
            yield (
                str(layer.device),
                f"{layer.model} layer {layer.dtype} {half}",
                shape,
                format_duration(seconds.median),
                _spread(seconds.median, seconds.p95),
                "",
            )
    for step in profile.optimizer:
        yield (
            str(step.device),
            f"{step.optimizer} step",
            f"{step.parameters:,} parameters",
            format_duration(step.seconds.median),
            _spread(step.seconds.median, step.seconds.p95),
            "",
        )


def _links(profile: Profile) -> Table:
    """The largest message of every operation and group."""
    made = table(
        "operation",
        "ranks",
        "between",
        "message",
        "algbw",
        "busbw",
        "",
        numbers=("ranks", "message", "algbw", "busbw"),
    )
    last = {
        (row.operation, row.nodes, row.ranks, row.devices): row
        for row in sorted(profile.links, key=lambda row: row.message_bytes)
    }
    for row in last.values():
        between = ", ".join(row.nodes)
        if row.scope == "intra_node" and row.devices and len(set(row.devices)) > 1:
            between = f"devices {', '.join(map(str, row.devices))}"
        made.add_row(
            row.operation,
            str(row.ranks),
            Text(between),
            format_bytes(row.message_bytes),
            format_rate(row.algbw_bytes_per_s),
            format_rate(row.busbw_bytes_per_s),
            "" if row.verified else "wrong values",
        )
    return made
