"""Where the numbers of a plan come from: the entries of the catalogue and of the cluster file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from hetcli.catalog.efficiency import FrameworkCost, MatmulCurve, Term
from hetcli.perf.compute.rates import framework_of
from hetcli.perf.configuration import Framework
from hetcli.report.places import drawn_links
from hetcli.spec.base import Origin
from hetcli.spec.plan import Plan
from hetcli.units import format_bytes, format_duration, format_flops, format_rate

if TYPE_CHECKING:
    from hetcli.perf.hardware import DeviceType, Hardware

__all__ = ["Source", "sources"]


# What the shares of `catalog.efficiency.Efficiency` are shares of.
_WHOLES: Final = {
    "sustained": "the rate of a short benchmark",
    "attention": "the 16-bit peak, on the causal half",
    "grouped": "the rate of dense products",
    "streaming": "the memory rate",
}

# What the terms of `catalog.efficiency.FrameworkCost` say.
_ADDED: Final[dict[str, Callable[[float], str]]] = {
    "elementwise": "{:g} times the traffic of fused kernels".format,
    "weight bytes": "{:g} B a weight and micro-batch".format,
    "host layer s": lambda seconds: f"{format_duration(seconds)} to launch a layer",
    "tensor exposed": "{:.0%} of overlapped collectives stay visible".format,
    "attention after ampere": "{:.0%} of the rate of the vendor's kernel".format,
    "gather": "{:.0%} of a link's rate".format,
    "gather exposed": "{:.0%} of the gathers delay the computation".format,
    "routed": "{:g} times what experts' kernels take".format,
}

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
    # What a framework adds was fitted for the framework, not for a card: one kind shows it.
    for kind in list(kinds.values())[:1]:
        framework: Framework = "deepspeed" if plan.target == "deepspeed" else "megatron"
        found += _framework(framework_of(kind, framework))
    for link in drawn_links(hardware):
        value = f"{format_rate(link.bytes_per_s)}, {format_duration(link.latency_s)} latency"
        found.append(Source(f"{link.kind}: {link.joins}", value, link.origin, _LINK_SOURCE))
    for name, origin in _memory_origins(plan).items():
        found.append(Source(f"memory: {name}", "per device above", origin, "the memory model"))
    return found


def _device(name: str, kind: DeviceType, precision: str) -> Iterator[Source]:
    gpu = kind.gpu
    peak = gpu.peak_flops.get(precision)  # type: ignore[call-overload]
    rates = f"{format_rate(gpu.memory_bytes_per_s)} of memory"
    if peak is not None:
        rates = f"{format_flops(peak)} dense {precision}, {rates}"
    yield Source(f"{name}: peaks", rates, gpu.origin, gpu.source)
    memory = format_bytes(kind.memory_bytes)
    yield Source(f"{name}: memory", memory, kind.memory_origin, gpu.source)
    for path, record in _with_sources(kind.shares):
        dtype = path.rpartition(" ")[2]
        if dtype in gpu.peak_flops and dtype != precision:
            continue
        yield Source(f"{name}: {path}", _share(path, record), record.origin, record.source)


def _framework(cost: FrameworkCost) -> Iterator[Source]:
    for path, show in _ADDED.items():
        term: Term = getattr(cost, path.replace(" ", "_"))
        yield Source(f"{cost.name}: {path}", show(term.value), term.origin, term.source)


def _share(path: str, record: MatmulCurve | Term) -> str:
    """The number itself, of what it is a share, and what stands behind it."""
    if isinstance(record, MatmulCurve):
        shown = f"{record.compute:.0%} of the peak at large sizes"
    else:
        shown = f"{record.value:.0%} of {_WHOLES[path.split(maxsplit=1)[0]]}"
    if not record.rows:
        return shown
    error = ""
    if isinstance(record, MatmulCurve) and record.residual is not None:
        error = f", median error {record.residual:.1%}"
    return f"{shown}; {record.rows} measurements{error}"


def _with_sources(record: BaseModel) -> Iterator[tuple[str, MatmulCurve | Term]]:
    """The records inside one that say where they come from, by what they are of."""
    for field in type(record).model_fields:
        value = getattr(record, field)
        entries = value.items() if isinstance(value, dict) else [("", value)]
        for key, entry in entries:
            if isinstance(entry, (MatmulCurve, Term)):
                yield f"{field} {key}".replace("_", " ").strip(), entry


def _memory_origins(plan: Plan) -> dict[str, Origin]:
    """The weakest origin of each memory item over all devices."""
    found: dict[str, Origin] = {}
    for device in plan.predicted.devices:
        for item in device.items:
            if item.memory_bytes:
                known = found.get(item.name, item.origin)
                found[item.name] = known.weakest(item.origin)
    return {name.replace("_", " "): origin for name, origin in found.items()}
