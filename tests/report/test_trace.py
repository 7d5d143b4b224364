"""The trace follows the Trace Event Format as viewers read it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from hetcli.report import trace
from hetcli.report.forms import Report
from hetcli.report.trace import trace_document

REQUIRED = {
    "X": {"pid", "tid", "ts", "dur", "name", "cat", "args"},
    "M": {"pid", "tid", "name", "args"},
    "s": {"pid", "tid", "ts", "id", "name", "cat"},
    "f": {"pid", "tid", "ts", "id", "name", "cat", "bp"},
}


def by_thread(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(start, end) of the slices of every thread, in time order."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return {thread: sorted(slices) for thread, slices in found.items()}


def test_events_have_what_their_phase_needs(mixed: Report) -> None:
    for event in trace_document(mixed.plan, mixed.step)["traceEvents"]:
        assert set(event) - {"ph"} == REQUIRED[event["ph"]]
        assert all(
            isinstance(event[key], int) for key in ("pid", "tid", "ts", "dur", "id") if key in event
        )


@pytest.mark.parametrize("name", ["mixed", "interleaved"])
def test_slices_of_a_thread_do_not_overlap(name: str, request: pytest.FixtureRequest) -> None:
    report: Report = request.getfixturevalue(name)
    for slices in by_thread(trace_document(report.plan, report.step)["traceEvents"]).values():
        assert all(one[1] <= other[0] for one, other in pairwise(slices))


def test_a_device_computes_sends_idles_or_synchronises_all_the_time(mixed: Report) -> None:
    events = trace_document(mixed.plan, mixed.step)["traceEvents"]
    end = round(mixed.plan.predicted.step_time_s * 1e6)
    threads = by_thread(events)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    devices = {f"{d.node}:{d.index}" for stage in mixed.plan.stages for d in stage.devices}
    assert {name for name in names.values() if not name.endswith(" sends")} == devices
    for (process, thread), name in names.items():
        if name in devices:
            slices = sorted(threads[process, thread] + threads.get((process, thread + 1), []))
            assert slices[0][0] == 0
            assert slices[-1][1] == end
            assert all(one[1] == other[0] for one, other in pairwise(slices))


@pytest.mark.parametrize("name", ["mixed", "interleaved"])
def test_arrows_lead_from_a_message_to_a_work(name: str, request: pytest.FixtureRequest) -> None:
    report: Report = request.getfixturevalue(name)
    events = trace_document(report.plan, report.step)["traceEvents"]
    threads = by_thread(events)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert set(starts) == set(ends)
    (chain,) = report.step.chains
    assert len(starts) == len(chain.timeline.transfers) * len(chain.members)
    # Model chunks lead from the last stage back to the first one.
    ways = {1, len(report.plan.stages) - 1} if name == "interleaved" else {1}
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"]
        assert abs(start["pid"] - end["pid"]) in ways
        for event in (start, end):
            slices = threads[event["pid"], event["tid"]]
            assert any(first <= event["ts"] < last for first, last in slices)


def test_many_replicas_are_shown_by_one(mixed: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = trace_document(mixed.plan, mixed.step)
    monkeypatch.setattr(trace, "MAX_WORKS", 100)
    one = trace_document(mixed.plan, mixed.step)
    assert everyone["otherData"]["shown"] == "every device"
    assert one["otherData"]["shown"] == "one of the replicas that work alike"
    shown = {(e["pid"], e["tid"]) for e in one["traceEvents"] if e.get("cat") == "compute"}
    replicas = [stage.replicas[0] for stage in mixed.plan.stages]
    assert len(shown) == sum(len(replica.devices) for replica in replicas)
