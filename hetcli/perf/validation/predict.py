"""Predict measured runs; equal runs are predicted once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hetcli.catalog.efficiency import EfficiencyTable, efficiency_from
from hetcli.errors import HetcliError
from hetcli.perf.hardware import DeviceType, Hardware
from hetcli.perf.memory import allocated_bytes, stage_memory
from hetcli.perf.step import predict
from hetcli.perf.validation.runs import Run, run_of
from hetcli.perf.validation.table import Row, SkippedRow

__all__ = ["Clusters", "RowResult", "predict_rows", "predict_runs", "runs_of"]


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

    @property
    def time_error(self) -> float | None:
        """Predicted over measured seconds, less one; None when either is unknown."""
        if self.measured_s is None or self.predicted_s is None:
            return None
        return self.predicted_s / self.measured_s - 1


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


def predict_rows(runs: Sequence[Run], table: EfficiencyTable | None = None) -> list[RowResult]:
    """Predicted seconds and bytes of every run.

    Bytes are those of the fullest device, as the run's source counted them.
    """
    found = []
    for run, seconds in zip(runs, predict_runs(runs, table), strict=True):
        peak = _peak_bytes(run) if run.measured_peak_bytes is not None else None
        found.append(
            RowResult(
                id=run.id,
                source=run.source,
                group=run.group,
                gpu=run.gpu,
                framework=run.framework,
                noisy=run.noisy,
                measured_s=run.measured_s,
                predicted_s=seconds,
                measured_peak_bytes=run.measured_peak_bytes,
                predicted_peak_bytes=peak,
            )
        )
    return found


def _peak_bytes(run: Run) -> float:
    """Bytes of the fullest device; equal replicas of a stage are asked once."""
    configuration = run.memory_configuration
    found = []
    for at, pipeline in enumerate(configuration.pipelines):
        for stage, held in enumerate(pipeline.stages):
            kinds: dict[object, int] = {}
            for position, replica in enumerate(held.replicas):
                kind = run.hardware.node_of(replica.devices[0]).device_type
                kinds.setdefault((kind, replica.micro_batch_size, replica.micro_batches), position)
            for position in kinds.values():
                where = (configuration, run.model, run.hardware, at, stage, position)
                if run.memory_of_device:
                    found.append(sum(item.nbytes for item in stage_memory(*where)))
                else:
                    found.append(allocated_bytes(*where))
    return float(max(found))


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
