"""One process of a trial: joins the others, runs the plans of the job, reports.

Started as `python -m hetcli.trial.worker JOB DIRECTORY` with the environment that torchrun sets.
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from hetcli.errors import HetcliError
from hetcli.perf.configuration import DeviceId
from hetcli.trial.build import build
from hetcli.trial.clock import Clock, clock_for
from hetcli.trial.execute import StepMarks
from hetcli.trial.groups import Groups
from hetcli.trial.job import Job, RankReport, RankStep, RankWork
from hetcli.trial.pace import Pace
from hetcli.trial.status import Status

__all__ = ["join", "main", "run_job"]

# For all processes to start; the trial's own time limit is usually shorter.
_JOIN_S = 600.0


def run_job(job: Job, directory: Path, rank: int, status: Status) -> list[list[RankReport]]:
    """Run all plans of a job in an initialised process group.

    Rank 0 gets the reports of all ranks, plan by plan; the others an empty list.
    """
    device = torch.device("cpu")
    if job.processor == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    devices = {DeviceId(each.node, each.index): at for at, each in enumerate(job.devices)}
    rates = {(each.device.node, each.device.index): each.flop_per_s for each in job.pacing}
    here = job.devices[rank]
    pace = Pace(rates.get((here.node, here.index)))
    groups = Groups(rank, pace)
    reports = []
    for number in range(len(job.plans)):
        report = _run_plan(job, number, devices, rank, groups, device, pace, status, directory)
        status.say("collecting reports")
        gathered: list[Any] | None = [None] * dist.get_world_size() if rank == 0 else None
        dist.gather_object(report, gathered)
        if gathered is not None:
            reports.append([each for each in gathered if each is not None])
    status.say("leaving")
    dist.barrier()
    return reports


def join(processor: Literal["cuda", "cpu"], local: int, stall_s: float, status: Status) -> None:
    """Meet the other processes; `local` is the index of this one's accelerator in its node."""
    status.say("joining the others")
    backend = "gloo"
    if processor == "cuda":
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    else:
        torch.set_num_threads(1)
    # Processes start at their own pace; only after they have met is a wait a failure.
    meeting = dist.rendezvous("env://", timeout=datetime.timedelta(seconds=_JOIN_S))
    store, rank, world_size = next(iter(meeting))
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=stall_s),
    )


def _run_plan(
    job: Job,
    number: int,
    devices: Mapping[DeviceId, int],
    rank: int,
    groups: Groups,
    device: torch.device,
    pace: Pace,
    status: Status,
    directory: Path,
) -> RankReport | None:
    steps = job.warm_up + job.steps
    status.say(f"building plan {number}")
    station = build(
        job.plans[number],
        devices,
        rank,
        groups,
        device=device,
        pace=pace,
        seed=job.seed,
        steps=steps,
        doing=status.say,
    )
    if station is None:
        return None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    clock = clock_for(device)
    measured = []
    for step in range(steps):
        status.step = step
        marks = station.executor.step(step)
        if step >= job.warm_up:
            measured.append(_times(marks, clock))
    if job.keep_gradients:
        torch.save(station.synchronisation.summed(), directory / f"gradients-{number}-{rank}.pt")
    seat = station.program.seat
    return RankReport(
        device=job.devices[rank],
        pipeline=seat.pipeline,
        stage=seat.stage,
        replica=seat.replica,
        steps=tuple(measured),
        peak_memory_bytes=torch.cuda.max_memory_allocated(device)
        if device.type == "cuda"
        else None,
    )


def _times(marks: StepMarks, clock: Clock) -> RankStep:
    def seconds(mark: Any) -> float:
        return clock.between(marks.start, mark)

    return RankStep(
        works=tuple(
            RankWork(
                kind=action.kind,
                micro_batch=action.micro_batch,
                chunk=action.chunk,
                start_s=seconds(start),
                end_s=seconds(end),
                sent_s=seconds(sent),
            )
            for action, start, end, sent in marks.works
        ),
        pipeline_s=seconds(marks.pipeline_end),
        reduced_s=seconds(marks.reduced),
        agreed_s=seconds(marks.agreed),
        step_s=seconds(marks.end),
        loss=marks.loss,
    )


def main() -> None:
    """The process; exits 0 when its reports are delivered, 3 after any failure."""
    faulthandler.enable()
    job = Job.model_validate_json(Path(sys.argv[1]).read_bytes())
    directory = Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    status = Status(directory / f"rank-{rank}.status")
    try:
        join(job.processor, int(os.environ["LOCAL_RANK"]), job.stall_s, status)
        reports = run_job(job, directory, rank, status)
    except HetcliError as error:
        _fail(directory, rank, {"what": error.what, "why": error.why, "fix": error.fix})
    except Exception as error:
        _fail(directory, rank, {"what": f"{type(error).__name__}: {error}", "why": "", "fix": ""})
    if reports:
        text = json.dumps([[each.model_dump() for each in plan] for plan in reports])
        (directory / "reports.json").write_text(text)
    sys.stdout.flush()
    # What is to be said is said; the interpreter's teardown could still trip over gloo's threads.
    os._exit(0)


def _fail(directory: Path, rank: int, error: dict[str, str]) -> None:
    import traceback

    (directory / f"rank-{rank}.error").write_text(json.dumps(error))
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(3)


if __name__ == "__main__":
    main()
