"""A node's profile in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report.tables import heading, indented, table
from hetcli.spec.profile import Profile
from hetcli.units import format_bytes, format_duration, format_flops, format_rate

__all__ = ["profile_view"]


def profile_view(profile: Profile) -> Iterator[RenderableType]:
    """Devices, interfaces, and the best that was measured of each kind."""
    host = profile.host
    yield heading(
        f"{host.hostname}: {host.cpu}, {host.cores} cores, {format_bytes(host.memory_bytes)}"
    )
    yield indented(_devices(profile))
    if profile.nics:
        yield heading("Network interfaces")
        yield indented(_nics(profile))
    if profile.matmul or profile.memory_bandwidth:
        yield heading("Measured")
        yield indented(_measured(profile))
    notes = [f"{d.name}: {note}" for d in profile.devices for note in d.notes]
    if notes:
        yield heading("Notes")
        yield indented(Text("\n".join(f"- {note}" for note in notes)))


def _devices(profile: Profile) -> Table:
    made = table("#", "device", "memory", "free", "PCIe", "", numbers=("#", "memory", "free"))
    for device in profile.devices:
        link = "unknown"
        if device.pcie_generation_max is not None and device.pcie_width_max is not None:
            link = f"gen {device.pcie_generation_max} x{device.pcie_width_max}"
        made.add_row(
            str(device.index),
            Text(device.name),
            _size(device.memory_total_bytes),
            _size(device.memory_free_bytes),
            link if device.kind == "gpu" else "-",
            "" if device.usable else "left out",
        )
    return made


def _size(value: int | None) -> str:
    return "unknown" if value is None else format_bytes(value)


def _nics(profile: Profile) -> Table:
    made = table("interface", "kind", "rate", numbers=("rate",))
    for nic in profile.nics:
        rate = "unknown" if nic.rate_bytes_per_s is None else format_rate(nic.rate_bytes_per_s)
        made.add_row(Text(nic.interface), nic.kind, rate)
    return made


def _measured(profile: Profile) -> Table:
    made = table("#", "what", "shape", "median", "rate", numbers=("#", "median", "rate"))
    for copy in profile.memory_bandwidth:
        made.add_row(
            str(copy.device),
            "memory copy",
            format_bytes(copy.transferred_bytes),
            format_duration(copy.seconds.median),
            format_rate(copy.bytes_per_s),
        )
    for product in profile.matmul:
        made.add_row(
            str(product.device),
            f"matmul {product.dtype}",
            f"{product.m} x {product.k} x {product.n}",
            format_duration(product.seconds.median),
            format_flops(product.flop_per_s),
        )
    return made
