"""Faults end in a clear report within the time limit, and no process is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tiny import cluster, configuration, devices, model, plan, stage

from hetcli.errors import EnvironmentFailure
from hetcli.spec.plan import PlanDevice
from hetcli.trial.compare import compare
from hetcli.trial.job import Job, Pacing
from hetcli.trial.launch import launch
from hetcli.trial.status import Status, read_status

pytest.importorskip("torch")

DEVICES = tuple(PlanDevice(node="n0", index=index) for index in range(3))
ENDLESS = 100_000
# What the works of a layer take on an emulated device that does this.
FLOP_PER_S = 5e7


def job(*, steps: int, stall_s: float = 60.0, slow: dict[int, float] | None = None) -> Job:
    stages = [
        stage([(0, 1)], [(devices(0, 1), 4)]),
        stage([(1, 2)], [(devices(1, 1), 4)]),
        stage([(3, 1)], [(devices(2, 1), 4)]),
    ]
    pacing = tuple(
        Pacing(device=device, flop_per_s=FLOP_PER_S / (slow or {}).get(device.index, 1.0))
        for device in DEVICES
    )
    made = plan(configuration(stages, batch=4), model(), cluster(devices=3))
    return Job(
        plans=(made,),
        devices=DEVICES,
        steps=steps,
        warm_up=1,
        stall_s=stall_s,
        pacing=pacing if slow is not None else (),
    )


def after_steps(folder: Path, act: Callable[[Sequence[int]], None]) -> Callable[..., None]:
    """Let `act` have the process ids once all ranks are in their third step."""

    def started(pids: Sequence[int]) -> None:
        def watch() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                found = [read_status(folder / f"rank-{rank}.status") for rank in range(len(pids))]
                if all(each is not None and each.step >= 2 for each in found):
                    act(pids)
                    return
                time.sleep(0.02)

        threading.Thread(target=watch, daemon=True).start()
        known.extend(pids)

    known: list[int] = []
    started.known = known  # type: ignore[attr-defined]
    return started


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_rank_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    started = after_steps(tmp_path, lambda pids: os.kill(pids[1], signal.SIGKILL))
    begun = time.monotonic()
    with pytest.raises(EnvironmentFailure) as caught:
        launch(job(steps=ENDLESS), time_limit_s=90, started=started, keep=tmp_path)
    assert time.monotonic() - begun < 60
    assert caught.value.what == "rank 1 (n0:1) was killed by SIGKILL"
    assert "rank 0 (n0:0): last" in caught.value.fix
    assert not any(alive(pid) for pid in started.known)  # type: ignore[attr-defined]


def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    started = after_steps(tmp_path, lambda pids: os.kill(pids[2], signal.SIGSTOP))
    with pytest.raises(EnvironmentFailure, match="no rank got on for 8 s") as caught:
        launch(job(steps=ENDLESS, stall_s=8.0), time_limit_s=90, started=started, keep=tmp_path)
    assert caught.value.why == "no sign of life from rank 2 (n0:2)"
    assert not any(alive(pid) for pid in started.known)  # type: ignore[attr-defined]


def test_the_time_limit_ends_a_trial_that_goes_on(tmp_path: Path) -> None:
    started = after_steps(tmp_path, lambda _: None)
    begun = time.monotonic()
    with pytest.raises(EnvironmentFailure, match="the time limit of 8 s is over"):
        launch(job(steps=ENDLESS), time_limit_s=8, started=started, keep=tmp_path)
    assert time.monotonic() - begun < 20
    assert not any(alive(pid) for pid in started.known)  # type: ignore[attr-defined]


def test_a_slow_device_is_named_with_its_factor() -> None:
    task = job(steps=3, slow={1: 3.0})
    [reports] = launch(task, time_limit_s=90)
    trial = compare(task.plans[0], task, reports)
    [note] = [each for each in trial.notes if each.startswith("stage ")]
    assert note.startswith("stage 1 computes ")
    factor = float(note.split()[3])
    assert factor == pytest.approx(3.0, rel=0.25)


def test_an_error_in_a_rank_arrives_with_its_three_parts(tmp_path: Path) -> None:
    given = configuration([stage([(0, 4)], [(devices(0, 1), 4)])], batch=4, zero_stage=3)
    task = Job(plans=(plan(given, model(), cluster()),), devices=DEVICES[:1])
    with pytest.raises(EnvironmentFailure, match="does not run ZeRO stage 3") as caught:
        launch(task, time_limit_s=60, keep=tmp_path)
    assert "weights are held whole" in caught.value.why


def test_the_last_word_of_a_process_is_read_from_its_file(tmp_path: Path) -> None:
    assert read_status(tmp_path / "none") is None
    status = Status(tmp_path / "rank-0.status")
    assert read_status(tmp_path / "rank-0.status") is None
    status.step = 4
    status.say("waiting for n0:1 " + "x" * 1000)
    status.say("short")
    doing = read_status(tmp_path / "rank-0.status")
    assert doing is not None
    assert (doing.text, doing.step) == ("short", 4)
    assert doing.age_s < 5
    assert doing.silent_s < 5
