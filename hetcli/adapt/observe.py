"""Logs of a run beside its plan: did the promise come true, and what is to be corrected?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import hetcli
from hetcli.adapt.logs import Iteration, Log
from hetcli.errors import SpecError
from hetcli.spec.base import Origin
from hetcli.spec.observation import Correction, Observation, ObservedLog, SlowRank
from hetcli.spec.plan import Plan
from hetcli.spec.trial import Compared

__all__ = ["Source", "observe", "seconds_of"]

# Iterations at the start that allocate and compile; left out where enough others follow.
_WARM_UP = 5
# An iteration this much over the median waited for something: a checkpoint, an evaluation.
_SLOW_ITERATION = 1.5
# A rank this much slower than the others of its stage is named (see hetcli.trial.compare).
_SLOW_RANK = 1.25
# Timers of a rank's own work; communication timers contain waiting for others.
_OWN_WORK = ("forward-compute", "backward-compute")

Source = tuple[str, Log]


def observe(logs: Sequence[Source], plan: Plan | None, *, tolerance: float) -> Observation:
    """The observation of one run from its logs, of which each has a name.

    The step time is the median over all iterations after the warm-up. Drift means that it, or the
    peak memory, is further from the plan than `tolerance` (a share). Raises SpecError when no log
    says how long an iteration takes.
    """
    described = [_described(name, log, plan) for name, log in logs]
    measured = [each.step_time_s for each in described if each.step_time_s is not None]
    if not measured:
        raise SpecError(
            f"{', '.join(name for name, _ in logs)}: no iteration time",
            why="; ".join(each.reason for each in described if each.reason),
            fix="give the plan of the run with --plan",
        )
    # Several logs are several ranks' or nodes' of the same run: the slowest decides.
    step_s = max(measured)
    predicted = None if plan is None else plan.predicted
    step = _compared(None if predicted is None else predicted.step_time_s, step_s)
    memory = _compared(
        None if plan is None else float(_peak(plan)),
        max((each.peak_memory_bytes or 0.0 for each in described), default=0.0) or None,
    )
    tokens = None if plan is None else _tokens(plan)
    ranks = tuple(_slow_ranks(logs, plan))
    return Observation(
        hetcli_version=hetcli.__version__,
        logs=tuple(described),
        step_time_s=step,
        tokens_per_s=_compared(
            None if predicted is None else predicted.tokens_per_s,
            None if tokens is None else tokens / step_s,
        ),
        peak_memory_bytes=memory,
        drift=any(
            pair.error is not None and abs(pair.error) > tolerance for pair in (step, memory)
        ),
        tolerance=tolerance,
        corrections=tuple(_corrections(logs, plan, step_s)),
        slow_ranks=ranks,
        notes=tuple(_notes(described)),
    )


def _compared(predicted: float | None, measured: float | None) -> Compared:
    error = None if predicted is None or not measured else predicted / measured - 1
    return Compared(predicted=predicted, measured=measured, error=error)


def _tokens(plan: Plan) -> int:
    """Tokens of one step."""
    work = plan.inputs.workload
    return work.global_batch * work.sequence


def _devices(plan: Plan) -> int:
    return sum(len(stage.devices) for stage in plan.stages)


def _peak(plan: Plan) -> int:
    return max(device.peak_memory_bytes for device in plan.predicted.devices)


def seconds_of(iteration: Iteration, plan: Plan | None) -> float | None:
    """Seconds of an iteration: as printed, else from a rate and the batch that the plan knows."""
    if iteration.seconds is not None:
        return iteration.seconds or None
    batch = iteration.global_batch or (plan and plan.inputs.workload.global_batch)
    if iteration.samples_per_s and batch:
        return batch / iteration.samples_per_s
    if iteration.tokens_per_s and plan is not None:
        return _tokens(plan) / (iteration.tokens_per_s * _devices(plan))
    return None


def _described(name: str, log: Log, plan: Plan | None) -> ObservedLog:
    timed = [
        (row.number, seconds)
        for row in log.iterations
        for seconds in [seconds_of(row, plan)]
        if seconds is not None
    ]
    skipped = _WARM_UP if len(timed) > 2 * _WARM_UP else min(1, max(0, len(timed) - 1))
    kept = timed[skipped:]
    times = sorted(seconds for _, seconds in kept)
    median = statistics.median(times) if times else None
    reason = ""
    if median is None:
        reason = f"{log.format} prints a rate here, and the batch it belongs to is not known"
    return ObservedLog(
        source=name,
        format=log.format,
        iterations=len(log.iterations),
        first_iteration=log.iterations[0].number,
        last_iteration=log.iterations[-1].number,
        skipped=skipped,
        step_time_s=median,
        step_p95_s=times[max(0, math.ceil(0.95 * len(times)) - 1)] if times else None,
        step_minimum_s=times[0] if times else None,
        slow_iterations=tuple(
            number for number, seconds in kept if median and seconds > _SLOW_ITERATION * median
        ),
        peak_memory_bytes=log.memory_bytes,
        reason=reason,
    )


def _stage_of_rank(plan: Plan) -> list[int]:
    """The stage of every rank, ranks counted stage by stage as hetcli exports them."""
    return [number for number, stage in enumerate(plan.stages) for _ in stage.devices]


def _work_of_ranks(logs: Sequence[Source]) -> dict[str, dict[int, float]]:
    """Median seconds of each rank's own work, timer by timer."""
    found: dict[str, dict[int, float]] = {}
    for _, log in logs:
        for (timer, rank), values in log.timers.items():
            if timer in _OWN_WORK:
                found.setdefault(timer, {})[rank] = statistics.median(values)
    return found


def _slow_ranks(logs: Sequence[Source], plan: Plan | None) -> Iterator[SlowRank]:
    """Ranks beside those of the same stage, which do the same; without a plan, beside all."""
    for timer, seconds in _work_of_ranks(logs).items():
        for stage, ranks in _by_stage(seconds, plan).items():
            usual = statistics.median_low(seconds[rank] for rank in ranks)
            for rank in ranks:
                if usual > 0 and seconds[rank] >= _SLOW_RANK * usual:
                    yield SlowRank(
                        rank=rank, stage=stage, timer=timer, slowness=seconds[rank] / usual
                    )


def _by_stage(seconds: Mapping[int, float], plan: Plan | None) -> dict[int, list[int]]:
    stages = [] if plan is None else _stage_of_rank(plan)
    found: dict[int, list[int]] = {}
    for rank in sorted(seconds):
        found.setdefault(stages[rank] if rank < len(stages) else 0, []).append(rank)
    return found


def _corrections(logs: Sequence[Source], plan: Plan | None, step_s: float) -> Iterator[Correction]:
    """Factors of compute time by device type.

    From the ranks' own timers where a log has them. Otherwise all computing is held responsible for
    what the step took beyond its predicted communication and waiting.
    """
    if plan is None:
        return
    rows = sum(len(log.iterations) for _, log in logs)
    timed = _timed_factors(logs, plan)
    if timed:
        for device, factors in sorted(timed.items()):
            yield Correction(
                device=device,
                factor=statistics.median(factors),
                origin=Origin.MEASURED,
                rows=len(factors),
            )
        return
    parts = plan.predicted.breakdown_s
    compute = parts["compute"]
    # A pipeline's bubble is other stages' computing: it grows and shrinks with it.
    scaling = compute + parts["pipeline_bubble"]
    left = step_s - (plan.predicted.step_time_s - scaling)
    if scaling > 0 and left > 0:
        for device in sorted({stage.gpu for stage in plan.stages}):
            yield Correction(
                device=device, factor=left / scaling, origin=Origin.MEASURED, rows=rows
            )


def _timed_factors(logs: Sequence[Source], plan: Plan) -> dict[str, list[float]]:
    """Measured over predicted work of every rank that has timers, by device type."""
    stages = _stage_of_rank(plan)
    found: dict[str, list[float]] = {}
    for timer, seconds in _work_of_ranks(logs).items():
        for rank, value in seconds.items():
            if rank >= len(stages):
                continue
            predicted = plan.predicted.stages[stages[rank]]
            one = predicted.forward_s if timer == "forward-compute" else predicted.backward_s
            batches = plan.parallelism.gradient_accumulation
            if one > 0:
                device = plan.stages[stages[rank]].gpu
                found.setdefault(device, []).append(value / (one * batches))
    return found


def _notes(logs: Sequence[ObservedLog]) -> Iterator[str]:
    for log in logs:
        if log.slow_iterations:
            yield (
                f"{log.source}: {len(log.slow_iterations)} iterations took more than "
                f"{_SLOW_ITERATION:g} times the median, the first of them "
                f"{log.slow_iterations[0]}: checkpoints, evaluations, or a fault that passes"
            )
