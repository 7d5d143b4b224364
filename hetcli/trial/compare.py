"""Put what the devices report beside what the plan predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import hetcli
from hetcli.spec.plan import Plan, PredictedDevice
from hetcli.spec.trial import Compared, Trial, TrialDevice, TrialStage
from hetcli.trial.job import Job, RankReport, RankStep

__all__ = ["compare", "compared"]

# A device this much slower than its peers is named. Ordinary cards of one type differ by a few per
# cent (arXiv 2208.11035 finds 8 % on average and up to 22 % within one cluster's type).
_SLOW = 1.25


def compare(plan: Plan, job: Job, reports: Sequence[RankReport]) -> Trial:
    """The trial of `plan`, from the reports of all its devices."""
    step_times = [
        max(report.steps[number].step_s for report in reports) for number in range(job.steps)
    ]
    devices = tuple(_device(plan, report, reports) for report in _in_order(reports))
    stages = tuple(
        _stage(plan, number, [each for each in reports if _number(plan, each) == number])
        for number in range(len(plan.stages))
    )
    return Trial(
        hetcli_version=hetcli.__version__,
        model=plan.inputs.model.name,
        cluster=plan.inputs.cluster.name,
        processor=job.processor,
        steps=job.steps,
        warm_up=job.warm_up,
        step_time_s=compared(plan.predicted.step_time_s, statistics.median(step_times)),
        step_p95_s=_percentile(step_times, 0.95),
        step_minimum_s=min(step_times),
        stages=stages,
        devices=devices,
        losses=tuple(step.loss for step in reports[0].steps),
        notes=(*_slow_devices(devices), *_slow_stages(stages)),
    )


def compared(predicted: float | None, measured: float | None) -> Compared:
    """Both, with the error where there is one."""
    known = predicted is not None and measured
    error = predicted / measured - 1 if known and predicted is not None and measured else None
    return Compared(predicted=predicted, measured=measured, error=error)


def _in_order(reports: Iterable[RankReport]) -> list[RankReport]:
    return sorted(
        reports,
        key=lambda each: (
            each.pipeline,
            each.stage,
            each.replica,
            each.device.node,
            each.device.index,
        ),
    )


def _number(plan: Plan, report: RankReport) -> int:
    """The position of a report's stage among all stages of the plan."""
    before = sum(stage.pipeline < report.pipeline for stage in plan.stages)
    return before + report.stage


def _median(reports: Iterable[RankReport], value: Callable[[RankStep], float]) -> float:
    """Over the steps of each device; of several devices the slowest."""
    return max(statistics.median(value(step) for step in report.steps) for report in reports)


def _per_micro_batch(step: RankStep, *, forward: bool) -> float:
    """Seconds of a micro-batch in all chunks, the median over the step's micro-batches."""
    sums: dict[int, float] = {}
    for work in step.works:
        if (work.kind == "forward") == forward:
            before = sums.get(work.micro_batch, 0.0)
            sums[work.micro_batch] = before + work.end_s - work.start_s
    return statistics.median(sums.values())


def _forward(step: RankStep) -> float:
    return _per_micro_batch(step, forward=True)


def _backward(step: RankStep) -> float:
    return _per_micro_batch(step, forward=False)


def _busy(step: RankStep) -> float:
    return math.fsum(work.end_s - work.start_s for work in step.works)


def _sending(step: RankStep) -> float:
    return math.fsum(work.sent_s - work.end_s for work in step.works)


def _waiting(step: RankStep) -> float:
    return step.pipeline_s - _busy(step) - _sending(step)


def _stage(plan: Plan, number: int, reports: Sequence[RankReport]) -> TrialStage:
    predicted = plan.predicted.stages[number]
    parts = predicted.breakdown_s
    return TrialStage(
        stage=number,
        layers=plan.stages[number].layers,
        forward_s=compared(predicted.forward_s, _median(reports, _forward)),
        backward_s=compared(predicted.backward_s, _median(reports, _backward)),
        sending_s=compared(parts["pipeline_p2p"], _median(reports, _sending)),
        waiting_s=compared(parts["pipeline_bubble"], _median(reports, _waiting)),
        synchronisation_s=compared(
            parts["data_parallel"], _median(reports, lambda step: step.reduced_s - step.pipeline_s)
        ),
        optimizer_s=compared(
            predicted.optimizer_s, _median(reports, lambda step: step.step_s - step.agreed_s)
        ),
    )


def _device(plan: Plan, report: RankReport, reports: Sequence[RankReport]) -> TrialDevice:
    peers = [
        each for each in reports if (each.pipeline, each.stage) == (report.pipeline, report.stage)
    ]
    own = _pace(report)
    return TrialDevice(
        device=report.device,
        stage=_number(plan, report),
        replica=report.replica,
        forward_s=_median([report], _forward),
        backward_s=_median([report], _backward),
        busy_s=_median([report], _busy),
        waiting_s=max(0.0, _median([report], _waiting)),
        slowness=own / statistics.median(_pace(each) for each in peers),
        peak_memory_bytes=compared(_booked(plan, report), report.peak_memory_bytes),
    )


def _pace(report: RankReport) -> float:
    return _median([report], lambda step: _forward(step) + _backward(step))


def _booked(plan: Plan, report: RankReport) -> int | None:
    """What the plan books for the device."""
    found: list[PredictedDevice] = [
        each
        for each in plan.predicted.devices
        if (each.node, each.index) == (report.device.node, report.device.index)
    ]
    return found[0].peak_memory_bytes if found else None


def _percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _slow_devices(devices: Iterable[TrialDevice]) -> Iterable[str]:
    """Devices that are slower than those that do the same."""
    for each in devices:
        if each.slowness >= _SLOW:
            yield (
                f"{each.device.node}:{each.device.index} takes {each.slowness:.2f} times as long "
                "as the other devices of its stage"
            )


def _slow_stages(stages: Sequence[TrialStage]) -> Iterable[str]:
    """Stages whose work takes longer than predicted, compared with how the others came out."""
    ratios = [_over_prediction(stage) for stage in stages]
    usual = statistics.median_low(ratios)
    for stage, ratio in zip(stages, ratios, strict=True):
        if ratio >= _SLOW * usual:
            yield (
                f"stage {stage.stage} computes {ratio / usual:.2f} times as long as predicted, "
                "measured by how the other stages came out"
            )


def _over_prediction(stage: TrialStage) -> float:
    both = (stage.forward_s, stage.backward_s)
    predicted = math.fsum(each.predicted or 0.0 for each in both)
    measured = math.fsum(each.measured or 0.0 for each in both)
    return measured / predicted if predicted else 1.0
