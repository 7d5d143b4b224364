"""Findings of a merge and fits of measurements, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report.tables import heading, indented, table
from hetcli.spec.cluster import Cluster
from hetcli.spec.finding import Finding
from hetcli.spec.hardware import HardwareFile
from hetcli.units import format_duration, format_flops, format_rate

__all__ = ["hardware_view", "merge_view"]


def merge_view(cluster: Cluster, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """The groups of the cluster, then what was found."""
    made = table("group", "nodes", "devices", "kind", numbers=("nodes", "devices"))
    for group in cluster.nodes:
        kind = group.gpu if isinstance(group.gpu, str) else f"{group.gpu.name} (as measured)"
        used = str(len(group.devices)) + (f" of {group.gpus}" if group.use else "")
        made.add_row(Text(group.name), str(group.node_count), used, Text(kind))
    machines = len({name for group in cluster.nodes for name in group.machine_names})
    yield heading(f"{cluster.name}: {machines} nodes, {len(cluster.pairs)} measured pairs")
    yield indented(made)
    yield heading("Findings")
    if not findings:
        yield indented(Text("none: equal hardware gave equal results"))
        return
    yield indented(_findings(findings))


def _findings(findings: Sequence[Finding]) -> Table:
    made = table("where", "factor", "what", "likely cause", numbers=("factor",))
    for finding in findings:
        where = ", ".join(finding.nodes)
        if finding.devices:
            where += f":{','.join(map(str, finding.devices))}"
        factor = "" if finding.factor is None else f"{finding.factor:.2f}x"
        made.add_row(Text(where), factor, Text(finding.what), Text(finding.cause))
    return made


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def hardware_view(hardware: HardwareFile) -> Iterator[RenderableType]:
    """Curves with their residuals and their distance from what would be assumed."""
    if hardware.compute:
        made = table(
            "device", "dtype", "rate", "launch", "rows", "residual", "vs shipped",
            numbers=("rate", "launch", "rows", "residual", "vs shipped"),
        )  # fmt: skip
        for rates in hardware.compute:
            made.add_row(
                Text(rates.device),
                rates.dtype,
                format_flops(rates.flop_per_s),
                format_duration(rates.launch_s),
                str(rates.rows),
                _percent(rates.residual),
                "-" if rates.versus_shipped is None else f"{rates.versus_shipped:.2f}x",
            )
        yield heading("Matrix products")
        yield indented(made)
    if hardware.memory:
        made = table("device", "rate", "rows", "of data sheet", numbers=("rate", "rows"))
        for memory in hardware.memory:
            share = _percent(memory.versus_datasheet)
            made.add_row(
                Text(memory.device), format_rate(memory.bytes_per_s), str(memory.rows), share
            )
        yield heading("Memory")
        yield indented(made)
    if hardware.links:
        yield heading("Links")
        yield indented(_links(hardware))
    if hardware.groups:
        made = table("operation", "ranks", "nodes", "busbw", "of slowest pair", numbers=("ranks",))
        for group in hardware.groups:
            made.add_row(
                group.operation,
                str(group.ranks),
                Text(", ".join(group.nodes)),
                format_rate(group.bus_bytes_per_s),
                _percent(group.versus_slowest_pair),
            )
        yield heading("Groups")
        yield indented(made)


def _links(hardware: HardwareFile) -> Table:
    made = table(
        "between", "latency", "rate", "one rank", "rows", "residual", "of nominal",
        numbers=("latency", "rate", "one rank", "rows", "residual", "of nominal"),
    )  # fmt: skip
    for link in hardware.links:
        one, other = link.between
        flow = link.flow_bytes_per_s
        made.add_row(
            Text(f"inside {one}" if one == other else f"{one}, {other}"),
            "-" if link.latency_s is None else format_duration(link.latency_s),
            format_rate(link.bytes_per_s),
            "-" if flow is None else format_rate(flow),
            str(link.rows),
            _percent(link.residual),
            _percent(link.versus_nominal),
        )
    return made
