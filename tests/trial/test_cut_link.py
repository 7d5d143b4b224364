"""A link that is cut in the middle of a trial."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny import cluster, configuration, devices, model, plan, stage

from hetcli.errors import EnvironmentFailure
from hetcli.spec.plan import PlanDevice
from hetcli.trial.job import Job
from hetcli.trial.launch import launch
from hetcli.trial.status import read_status

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from testbed.network import Network, available


def test_a_cut_link_ends_in_a_report_of_who_waits_for_whom(tmp_path: Path) -> None:
    reason = available()
    if reason is not None:
        pytest.skip(f"no network namespaces here: {reason}")
    given = configuration(
        [
            stage([(0, 2)], [(devices(0, 1, "n-0"), 4)]),
            stage([(2, 2)], [(devices(0, 1, "n-1"), 4)]),
        ],
        batch=4,
    )
    where = cluster(nodes=2)
    job = Job(
        plans=(plan(given, model(), where),),
        devices=(PlanDevice(node="n-0", index=0), PlanDevice(node="n-1", index=0)),
        steps=100_000,
        stall_s=8.0,
    )
    with Network({"n-0": 1e7, "n-1": 1e7}) as network:

        def started(_: Sequence[int]) -> None:
            threading.Thread(target=cut, daemon=True).start()

        def cut() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                doing = read_status(tmp_path / "rank-1.status")
                if doing is not None and doing.step >= 2:
                    network.cut("n-1")
                    return
                time.sleep(0.02)

        with pytest.raises(EnvironmentFailure) as caught:
            launch(
                job,
                time_limit_s=90,
                placements=network.placements(),
                started=started,
                keep=tmp_path,
            )
    report = str(caught.value)
    assert "n-0:0" in report
    assert "n-1:0" in report
    assert "no sign of life" not in report
    assert any(word in report for word in ("waiting for", "sending to", "adding up", "agreeing"))
