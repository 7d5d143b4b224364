"""Predict measured runs; equal runs are predicted once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hetcli.catalog.efficiency import EfficiencyTable, efficiency_from
from hetcli.errors import HetcliError
from hetcli.perf.hardware import DeviceType, Hardware
from hetcli.perf.step import predict
from hetcli.perf.validation.runs import Run, run_of
from hetcli.perf.validation.table import Row, SkippedRow

__all__ = ["Clusters", "RowResult", "predict_runs", "runs_of"]


@dataclass(frozen=True, slots=True)
class RowResult:
    """One run, measured and predicted: seconds of a step, bytes of the fullest device."""

    id: str
    source: str
    group: str
    gpu: str
    framework: str
    noisy: bool
    measured_s: float | None
    predicted_s: float | None
    measured_peak_bytes: float | None = None
    predicted_peak_bytes: float | None = None


def runs_of(rows: Iterable[Row]) -> tuple[list[Run], list[SkippedRow]]:
    """Runs that can be predicted, and why the other rows cannot."""
    runs: list[Run] = []
    skipped: list[SkippedRow] = []
    for row in rows:
        reason = row.unusable
        if reason is None:
            try:
                runs.append(run_of(row))
            except (ValueError, HetcliError) as error:
                reason = " ".join(str(error).split())
        if reason is not None:
            skipped.append(SkippedRow(row.id, row.source, reason))
    return runs, skipped


class Clusters:
    """Clusters whose devices reach what a table says; without a table, what is shipped."""

    def __init__(self, table: EfficiencyTable | None) -> None:
        self._table = table
        self._known: dict[Hardware, Hardware] = {}

    def __call__(self, hardware: Hardware) -> Hardware:
        """The same cluster under the table."""
        if self._table is None:
            return hardware
        if hardware not in self._known:
            self._known[hardware] = _with_efficiency(hardware, self._table)
        return self._known[hardware]


def _with_efficiency(hardware: Hardware, table: EfficiencyTable) -> Hardware:
    types: dict[DeviceType, DeviceType] = {}
    for node in hardware.nodes:
        kind = node.device_type
        if kind not in types:
            types[kind] = replace(
                kind,
                efficiency=efficiency_from(kind.gpu, table.devices),
                frameworks=table.frameworks,
            )
    nodes = tuple(replace(node, device_type=types[node.device_type]) for node in hardware.nodes)
    return replace(hardware, nodes=nodes)


def predict_runs(runs: Sequence[Run], table: EfficiencyTable | None = None) -> list[float]:
    """Predicted seconds of every run."""
    known: dict[object, float] = {}
    clusters = Clusters(table)
    found = []
    for run in runs:
        if run.key not in known:
            known[run.key] = predict(
                run.configuration,
                model=run.model,
                workload=run.workload,
                hardware=clusters(run.hardware),
            ).step_time_s
        found.append(known[run.key])
    return found
