"""The page, the trace, plain data and the simulator tell one and the same step."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from report_plans import estimated, make_report

from hetcli.perf.chains import chains
from hetcli.perf.filling import chain_timeline
from hetcli.perf.pipeline.timeline import Timeline
from hetcli.perf.stage import Costs
from hetcli.report import steps
from hetcli.report.forms import Report
from hetcli.report.page import MAX_DRAWN_WORKS
from hetcli.report.steps import KINDS, step_data
from hetcli.search import configuration_of

Work = tuple[str, int, int, int, int]


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="step">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def works(stage: dict[str, Any]) -> list[Work]:
    return [
        (KINDS[kind], *rest)
        for kind, *rest in zip(
            stage["kinds"],
            stage["micro_batches"],
            stage["chunks"],
            stage["starts"],
            stage["ends"],
            strict=True,
        )
    ]


def simulated(report: Report) -> list[Timeline]:
    """The chains of a plan, run by the simulator apart from the report's own way to it."""
    configuration = configuration_of(report.plan)
    costs = Costs(report.plan.inputs.model)
    found = [
        chain_timeline(chain, configuration.schedule)
        for pipeline in configuration.pipelines
        for chain in chains(configuration, pipeline, report.hardware, costs)
    ]
    return sorted(found, key=lambda timeline: -timeline.makespan_s)


@pytest.fixture(scope="module")
def interleaved() -> Report:
    plan = estimated(
        "sample:dgx-h100",
        "llama-3-8b",
        128,
        tensor_parallel=2,
        pipeline_parallel=4,
        data_parallel=8,
        virtual_stages=2,
        schedule="interleaved",
    )
    return make_report(plan)


@pytest.fixture(params=["mixed", "alike", "interleaved", "thousand", "hostile"])
def report(request: pytest.FixtureRequest) -> Report:
    found: Report = request.getfixturevalue(request.param)
    return found


def test_page_shows_what_the_simulator_ran(report: Report) -> None:
    data = embedded(report.html())
    for chain, timeline in zip(data["chains"], simulated(report), strict=True):
        for stage, of_stage in zip(chain["stages"], range(len(chain["stages"])), strict=True):
            assert works(stage) == [
                (
                    work.kind,
                    work.micro_batch,
                    work.chunk,
                    round(work.start_s * 1e6),
                    round(work.end_s * 1e6),
                )
                for work in timeline.of_stage(of_stage)
            ]


def test_trace_shows_what_the_simulator_ran(report: Report) -> None:
    compute = defaultdict(list)
    sends = defaultdict(list)
    for event in json.loads(report.trace())["traceEvents"]:
        if event.get("cat") == "compute":
            end = event["ts"] + event["dur"]
            own = (event["args"]["micro_batch"], event["args"]["chunk"], event["ts"], end)
            compute[event["pid"], event["tid"]].append((event["name"].split()[0], *own))
        elif event["ph"] == "X" and event["cat"] == "transfer":
            sends[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    (timeline,) = simulated(report)
    assert len(compute) == sum(len(stage.devices) for stage in report.plan.stages)
    for (process, thread), found in compute.items():
        stage = process - 1
        assert found == [
            (w.kind, w.micro_batch, w.chunk, round(w.start_s * 1e6), round(w.end_s * 1e6))
            for w in timeline.of_stage(stage)
        ]
        assert sends[process, thread + 1] == [
            (round(each.start_s * 1e6), round(each.end_s * 1e6))
            for each in timeline.transfers
            if each.source == stage and round(each.end_s * 1e6) > round(each.start_s * 1e6)
        ]


def test_the_step_ends_when_the_plan_says(report: Report) -> None:
    data = step_data(report.step)
    assert data["end"] == round(report.plan.predicted.step_time_s * 1e6)
    assert data["end"] == max(part["end"] for part in data["after"])
    assert not report.disagreement


def test_busy_sending_and_idle_make_up_the_pipeline(report: Report) -> None:
    for chain in step_data(report.step)["chains"]:
        for stage in chain["stages"]:
            parts = stage["busy"] + stage["sending"] + stage["idle"]
            assert abs(parts - chain["end"]) <= 2


def test_a_limit_keeps_the_ends_and_counts_the_rest(alike: Report) -> None:
    whole = step_data(alike.step)["chains"][0]
    short = step_data(alike.step, limit=160)["chains"][0]
    share = 160 // len(whole["stages"])
    for kept, full in zip(short["stages"], whole["stages"], strict=True):
        assert len(works(kept)) == share
        assert kept["omitted"] == len(works(full)) - share
        assert works(kept) == [*works(full)[: share // 2], *works(full)[-share // 2 :]]
    # One transfer at most for each work that is kept.
    assert len(short["transfers"]["starts"]) <= 160 < len(whole["transfers"]["starts"])


def test_the_page_leaves_works_out_only_beyond_its_limit(alike: Report) -> None:
    count = sum(len(chain.timeline.events) for chain in alike.step.chains)
    assert count < MAX_DRAWN_WORKS
    assert all(stage["omitted"] == 0 for stage in embedded(alike.html())["chains"][0]["stages"])


def test_works_of_a_stage_follow_each_other(report: Report) -> None:
    for chain in step_data(report.step)["chains"]:
        for stage in chain["stages"]:
            assert all(one[4] <= other[3] for one, other in pairwise(works(stage)))


def test_seconds_round_to_the_nearest_microsecond() -> None:
    assert steps.microseconds(1.2345678) == 1_234_568
