"""Where the numbers of a plan come from: the entries of the catalogue and of the cluster file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from hetcli.report.places import drawn_links
from hetcli.spec.base import Origin
from hetcli.spec.plan import Plan
from hetcli.units import format_bytes, format_duration, format_flops, format_rate

if TYPE_CHECKING:
    from hetcli.perf.hardware import DeviceType, Hardware

__all__ = ["Source", "sources"]


_LINK_SOURCE = "rate: the cluster file, a data sheet; share of it and latency: the link catalogue"


@dataclass(frozen=True, slots=True)
class Source:
    """A number, or several of one kind, and where it was found."""

    what: str
    value: str
    origin: Origin
    source: str


def sources(plan: Plan, hardware: Hardware) -> list[Source]:
    """One line for every number that the prediction rests on."""
    used = {device.gpu for device in plan.predicted.devices}
    kinds: dict[str, DeviceType] = {}
    for node in hardware.nodes:
        if node.device_type.name in used:
            kinds.setdefault(node.device_type.name, node.device_type)
    found: list[Source] = []
    for name, kind in kinds.items():
        found += _device(name, kind, plan.parallelism.precision)
    for link in drawn_links(hardware):
        value = f"{format_rate(link.bytes_per_s)}, {format_duration(link.latency_s)} latency"
        found.append(Source(f"{link.kind}: {link.joins}", value, link.origin, _LINK_SOURCE))
    for name, origin in _memory_origins(plan).items():
        found.append(Source(f"memory: {name}", "per device above", origin, "the memory model"))
    return found


def _device(name: str, kind: DeviceType, precision: str) -> Iterator[Source]:
    gpu = kind.gpu
    peak = gpu.peak_flops.get(precision)  # type: ignore[call-overload]
    rates = f"{format_rate(gpu.memory_bytes_per_s)} HBM"
    if peak is not None:
        rates = f"{format_flops(peak)} dense {precision}, {rates}"
    yield Source(f"{name}: peaks", rates, gpu.origin, gpu.source)
    memory = format_bytes(kind.memory_bytes)
    yield Source(f"{name}: memory", memory, kind.memory_origin, gpu.source)
    for path, record in _with_sources(kind.shares, ""):
        dtype = path.rpartition(" ")[2]
        if dtype in gpu.peak_flops and dtype != precision:
            continue
        rows = f"{record.rows} measurements" if record.rows else "no measurement of its own"
        yield Source(f"{name}: {path}", rows, record.origin, record.source)


def _with_sources(record: BaseModel, path: str) -> Iterator[tuple[str, Any]]:
    """The records inside one that say where they come from."""
    for field in type(record).model_fields:
        value = getattr(record, field)
        entries = value.items() if isinstance(value, dict) else [("", value)]
        for key, entry in entries:
            if isinstance(entry, BaseModel) and "source" in type(entry).model_fields:
                yield f"{path}{field} {key}".replace("_", " ").strip(), entry


def _memory_origins(plan: Plan) -> dict[str, Origin]:
    """The weakest origin of each memory item over all devices."""
    found: dict[str, Origin] = {}
    for device in plan.predicted.devices:
        for item in device.items:
            if item.memory_bytes:
                known = found.get(item.name, item.origin)
                found[item.name] = known.weakest(item.origin)
    return {name.replace("_", " "): origin for name, origin in found.items()}
