"""Predict measured runs; equal runs are predicted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from hetcli.catalog.efficiency import EfficiencyTable
from hetcli.errors import HetcliError
from hetcli.perf.hardware import Hardware, with_efficiency
from hetcli.perf.memory import allocated_bytes, stage_memory
from hetcli.perf.step import predict
from hetcli.perf.validation.runs import Run, run_of
from hetcli.perf.validation.table import Row, SkippedRow

__all__ = ["Clusters", "RowResult", "fits", "predict_rows", "predict_runs", "runs_of"]


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
    # Whether the run died for want of memory, and whether the prediction says that it fits.
    out_of_memory: bool = False
    predicted_fits: bool | None = None

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
                reason = _reason(error)
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
            self._known[hardware] = with_efficiency(hardware, self._table)
        return self._known[hardware]


def predict_rows(
    runs: Sequence[Run], table: EfficiencyTable | None = None
) -> tuple[list[RowResult], list[SkippedRow]]:
    """Predicted seconds and bytes of every run, and why some could not be predicted.

    Bytes are those of the fullest device, as the run's source counted them.
    """
    found: list[RowResult] = []
    skipped: list[SkippedRow] = []
    seconds = _Seconds(table)
    for run in runs:
        try:
            found.append(_result(run, seconds))
        except (ValueError, HetcliError) as error:
            skipped.append(SkippedRow(run.id, run.source, _reason(error)))
    return found, skipped


def _reason(error: ValueError | HetcliError) -> str:
    """One line: of a value that a schema refuses, which one and why."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return ": ".join(
            part for part in (where, first["msg"].removeprefix("Value error, ")) if part
        )
    return " ".join(str(error).split())


def fits(run: Run) -> bool:
    """Whether every device has room for all that the prediction says it holds."""
    return all(peak <= room for peak, room in _peaks(replace(run, memory_of_device=True)))


def _result(run: Run, seconds: _Seconds) -> RowResult:
    remembered = run.measured_peak_bytes is not None or run.out_of_memory
    peaks = list(_peaks(run)) if remembered else []
    return RowResult(
        id=run.id,
        source=run.source,
        group=run.group,
        gpu=run.gpu,
        framework=run.framework,
        noisy=run.noisy,
        measured_s=run.measured_s,
        predicted_s=seconds(run) if run.measured_s is not None else None,
        measured_peak_bytes=run.measured_peak_bytes,
        predicted_peak_bytes=max((peak for peak, _ in peaks), default=None),
        out_of_memory=run.out_of_memory,
        predicted_fits=all(peak <= capacity for peak, capacity in peaks) if peaks else None,
    )


def _peaks(run: Run) -> Iterator[tuple[float, float]]:
    """Bytes and capacity of each kind of device; equal replicas of a stage are asked once."""
    configuration = run.memory_configuration
    for at, pipeline in enumerate(configuration.pipelines):
        last = len(pipeline.stages) - 1
        for stage in [last] if run.memory_of_last_stage else range(last + 1):
            known = set()
            for position, replica in enumerate(pipeline.stages[stage].replicas):
                kind = run.hardware.node_of(replica.devices[0]).device_type
                key = (kind, replica.micro_batch_size, replica.micro_batches)
                if key in known:
                    continue
                known.add(key)
                where = (configuration, run.model, run.hardware, at, stage, position)
                if run.memory_of_device:
                    yield sum(item.nbytes for item in stage_memory(*where)), kind.memory_bytes
                else:
                    yield allocated_bytes(*where), kind.memory_bytes


class _Seconds:
    """Predicted seconds of runs; equal runs are predicted once."""

    def __init__(self, table: EfficiencyTable | None) -> None:
        self._clusters = Clusters(table)
        self._known: dict[object, float] = {}

    def __call__(self, run: Run) -> float:
        if run.key not in self._known:
            self._known[run.key] = predict(
                run.configuration,
                model=run.model,
                workload=run.workload,
                hardware=self._clusters(run.hardware),
            ).step_time_s
        return self._known[run.key]


def predict_runs(runs: Sequence[Run], table: EfficiencyTable | None = None) -> list[float]:
    """Predicted seconds of every run."""
    seconds = _Seconds(table)
    return [seconds(run) for run in runs]
