"""Start the processes of a trial on this machine, watch them, and leave none behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hetcli.errors import EnvironmentFailure
from hetcli.spec.plan import PlanDevice
from hetcli.trial.job import Job, RankReport
from hetcli.trial.status import BEAT_S, Doing, read_status

__all__ = ["Placement", "launch", "run_processes"]

_POLL_S = 0.05
# After one rank failed the others may still say why; then they are ended.
_LAST_WORDS_S = 1.0
_TERMINATE_S = 2.0
_TAIL = 2000
# A process that gave no sign of life for this long is stopped, not just slow.
_SILENT_S = 6 * BEAT_S
_NOTHING = Doing("", -1, 0.0, 0.0)


@dataclass(frozen=True)
class Placement:
    """How a node's processes are started: a command in front of them, and variables for them.

    `address` is where rank 0 of that node can be reached by the others.
    """

    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"


@dataclass
class _Rank:
    number: int
    name: str
    process: subprocess.Popen[bytes]
    status: Path
    error: Path
    output: Path

    @property
    def doing(self) -> Doing | None:
        return read_status(self.status)


def launch(
    job: Job,
    *,
    time_limit_s: float,
    placements: Mapping[str, Placement] | None = None,
    started: Callable[[Sequence[int]], None] | None = None,
    keep: Path | None = None,
) -> list[list[RankReport]]:
    """Run a job with one process for each of its devices; returns the reports, plan by plan.

    `placements` says per node how to start there (default: here, over loopback); `started` gets
    the process ids, rank by rank; what the processes write goes to the empty folder `keep`, if one
    is given. Raises EnvironmentFailure, with what each rank did last, when a process dies, when
    nobody gets on, or when the time is up. No process is left behind.
    """
    with tempfile.TemporaryDirectory(prefix="hetcli-trial-") as folder:
        directory = keep or Path(folder)
        task = directory / "job.json"
        task.write_text(job.model_dump_json())
        command = [sys.executable, "-m", "hetcli.trial.worker", str(task), str(directory)]
        run_processes(
            command,
            job.devices,
            directory,
            time_limit_s=time_limit_s,
            stall_s=job.stall_s,
            placements=placements or {},
            started=started,
        )
        return _reports(directory)


def run_processes(
    command: Sequence[str],
    devices: Sequence[PlanDevice],
    directory: Path,
    *,
    time_limit_s: float,
    stall_s: float,
    placements: Mapping[str, Placement],
    started: Callable[[Sequence[int]], None] | None = None,
) -> None:
    """Run `command` as a process for each device, with torchrun's variables; see `launch`.

    Processes say what they do in `directory`/rank-N.status, and why they fail in rank-N.error.
    """
    ranks = _start(command, devices, directory, placements)
    try:
        if started is not None:
            started([rank.process.pid for rank in ranks])
        _watch(ranks, time.monotonic() + time_limit_s, time_limit_s, stall_s)
    finally:
        _end(ranks)


def _reports(directory: Path) -> list[list[RankReport]]:
    plans = json.loads((directory / "reports.json").read_text())
    return [
        [RankReport.model_validate_json(json.dumps(report)) for report in plan] for plan in plans
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(
    command: Sequence[str],
    devices: Sequence[PlanDevice],
    directory: Path,
    placements: Mapping[str, Placement],
) -> list[_Rank]:
    first = placements.get(devices[0].node, Placement())
    common = {
        "WORLD_SIZE": str(len(devices)),
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
    }
    if not placements:
        common["GLOO_SOCKET_IFNAME"] = "lo"
    ranks: list[_Rank] = []
    for number, device in enumerate(devices):
        place = placements.get(device.node, Placement())
        output = directory / f"rank-{number}.output"
        environment = {
            **os.environ,
            **common,
            **place.environment,
            "RANK": str(number),
            "LOCAL_RANK": str(device.index),
        }
        try:
            with output.open("wb") as stream:
                process = subprocess.Popen(
                    [*place.prefix, *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            _end(ranks)
            raise EnvironmentFailure(
                f"cannot start a process for {device.node}:{device.index}", why=str(error)
            ) from error
        ranks.append(
            _Rank(
                number,
                f"{device.node}:{device.index}",
                process,
                directory / f"rank-{number}.status",
                directory / f"rank-{number}.error",
                output,
            )
        )
    return ranks


def _watch(ranks: Sequence[_Rank], end: float, limit_s: float, stall_s: float) -> None:
    """Return when all processes ended well."""
    while True:
        codes = [rank.process.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return
        if any(code not in (None, 0) for code in codes):
            time.sleep(_LAST_WORDS_S)
            raise _failure(ranks)
        doing = [rank.doing for rank in ranks]
        if all(each is not None and each.age_s > stall_s for each in doing):
            raise _stuck(ranks, f"no rank got on for {stall_s:g} s")
        if time.monotonic() > end:
            raise _stuck(ranks, f"the time limit of {limit_s:g} s is over")
        time.sleep(_POLL_S)


def _failure(ranks: Sequence[_Rank]) -> EnvironmentFailure:
    """The rank that died first is the cause; that others lost their connection follows from it."""
    dead = [rank for rank in ranks if rank.process.poll() not in (None, 0)]
    killed = [rank for rank in dead if (rank.process.poll() or 0) < 0]
    silent = [rank for rank in dead if not rank.error.exists()]
    # A process that could not even say why is the cause; then the one whose error has a cure.
    cause = (killed or silent or sorted(dead, key=_fault_order))[0]
    what, why, fix = _words(cause)
    others = _lines(rank for rank in ranks if rank is not cause)
    return EnvironmentFailure(
        f"rank {cause.number} ({cause.name}) {what}",
        why="; ".join(part for part in (why, _last(cause)) if part),
        fix=f"{fix or 'look at that device and its node'}\n{others}",
    )


def _fault_order(rank: _Rank) -> tuple[bool, int]:
    """Lost connections and time-outs last: they are what the others' end looks like."""
    text = rank.error.read_text() if rank.error.exists() else ""
    follows = "onnection" in text or "imed out" in text or "imeout" in text
    return follows, rank.number


def _words(rank: _Rank) -> tuple[str, str, str]:
    code = rank.process.poll() or 0
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}", "", ""
    if rank.error.exists():
        error = json.loads(rank.error.read_text())
        return f"failed: {error['what'].splitlines()[0]}", error["why"], error["fix"]
    tail = rank.output.read_text(errors="replace")[-_TAIL:].strip()
    return f"ended with exit code {code}", tail, ""


def _stuck(ranks: Sequence[_Rank], what: str) -> EnvironmentFailure:
    """Stopped processes are named; without any, it is a link, or work that takes long."""
    stopped = [rank for rank in ranks if (rank.doing or _NOTHING).silent_s > _SILENT_S]
    names = ", ".join(f"rank {rank.number} ({rank.name})" for rank in stopped)
    return EnvironmentFailure(
        what,
        why=f"no sign of life from {names}"
        if stopped
        else "every process is alive: a link between two that wait does not carry, or work is slow",
        fix=f"what each of them did last:\n{_lines(ranks)}",
    )


def _lines(ranks: object) -> str:
    assert hasattr(ranks, "__iter__")
    return "\n".join(f"  rank {rank.number} ({rank.name}): {_last(rank)}" for rank in ranks)


def _last(rank: _Rank) -> str:
    return str(rank.doing or "said nothing yet")


def _end(ranks: Sequence[_Rank]) -> None:
    """End every process with its children; they lead sessions of their own."""
    for sign, patience in ((signal.SIGTERM, _TERMINATE_S), (signal.SIGKILL, _TERMINATE_S)):
        alive = [rank for rank in ranks if rank.process.poll() is None]
        for rank in alive:
            try:
                os.killpg(rank.process.pid, sign)
            except ProcessLookupError:
                continue
        end = time.monotonic() + patience
        for rank in alive:
            try:
                rank.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
