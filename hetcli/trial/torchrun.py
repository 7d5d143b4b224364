"""Run a plan in processes that torchrun (or any launcher with its variables) has started."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from hetcli.errors import EnvironmentFailure, ExitCode
from hetcli.spec.plan import Plan, PlanDevice
from hetcli.trial.job import Job, RankReport
from hetcli.trial.status import Status

__all__ = ["launched", "place", "run_launched"]

# Which of the plan's nodes a process is on, where its host name does not say.
NODE_VARIABLE = "HETCLI_NODE"


def launched(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of a launcher's."""
    return {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"} <= environment.keys()


def run_launched(
    plan: Plan,
    *,
    steps: int,
    warm_up: int,
    processor: Literal["cuda", "cpu"],
    time_limit_s: float,
    stall_s: float,
) -> tuple[Job, list[RankReport]]:
    """Take part in the trial of a plan; rank 0 gets all reports, the others none.

    When the time is up the process says what it did last and ends with exit code 3. Raises
    EnvironmentFailure when the processes are not those that the plan needs, or lose each other.
    """
    import torch.distributed as dist

    from hetcli.trial.worker import join, run_job

    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    status = Status()
    own = (os.environ.get(NODE_VARIABLE), socket.gethostname(), local)
    name = f"rank {rank} ({own[0] or own[1]}, local rank {local})"
    alarm = threading.Timer(time_limit_s, _too_late, (name, time_limit_s, status))
    alarm.daemon = True
    alarm.start()
    try:
        join(processor, local, stall_s, status)
        everyone: list[tuple[str | None, str, int]] = [own] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        job = Job(
            plans=(plan,),
            devices=place(plan, everyone),
            steps=steps,
            warm_up=warm_up,
            processor=processor,
            stall_s=stall_s,
        )
        reports = run_job(job, Path(), rank, status)
        dist.destroy_process_group()
    except RuntimeError as error:
        # A peer that died, or that did not answer within stall_s.
        raise EnvironmentFailure(
            f"{name} lost the others: {status.doing}",
            why=str(error).splitlines()[0],
            fix="look at the rank that it names, or that the launcher says failed first",
        ) from error
    finally:
        alarm.cancel()
    return job, reports[0] if reports else []


def _too_late(name: str, limit_s: float, status: Status) -> None:
    sys.stderr.write(f"error: the time limit of {limit_s:g} s is over\n  {name}: {status.doing}\n")
    sys.stderr.flush()
    # The main thread may wait for a message that never comes.
    os._exit(int(ExitCode.ENVIRONMENT))


def place(plan: Plan, ranks: Sequence[tuple[str | None, str, int]]) -> tuple[PlanDevice, ...]:
    """The plan's device of every rank, from (name given, host name, local rank) of all.

    A node goes by its given name, else by its host name if the plan knows that, else by its order:
    the n-th node that starts ranks is the n-th node of the plan. Local rank k is the k-th device
    that the plan uses there.
    """
    planned: dict[str, list[int]] = {}
    for stage in plan.stages:
        for device in stage.devices:
            planned.setdefault(device.node, []).append(device.index)
    names = list(planned)
    hosts = list(dict.fromkeys((given, host) for given, host, _ in ranks))
    known = {
        key: next(
            (name for name in (key[0], key[1], key[1].split(".")[0]) if name in planned), None
        )
        for key in hosts
    }
    if None in known.values():
        known = dict(zip(hosts, names, strict=False))
    found: list[PlanDevice] = []
    for given, host, local in ranks:
        name = known.get((given, host))
        devices = sorted(planned.get(name or "", ()))
        if name is None or local >= len(devices):
            raise EnvironmentFailure(
                f"rank {len(found)} on {given or host} has nothing to do in this plan",
                why=f"the plan uses {', '.join(f'{n} x {len(d)}' for n, d in planned.items())}",
                fix="start that many processes on each of these nodes; "
                f"{NODE_VARIABLE}=NAME says which node a host is",
            )
        found.append(PlanDevice(node=name, index=devices[local]))
    missing = sum(map(len, planned.values())) - len(found)
    if missing:
        raise EnvironmentFailure(
            f"{missing} devices of the plan have no process",
            why=f"{len(found)} processes were started",
            fix=f"start {', '.join(f'{len(d)} on {n}' for n, d in planned.items())}",
        )
    return tuple(found)
