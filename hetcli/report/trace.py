"""The step as a trace that Perfetto and chrome://tracing open: one track a device.

The format is the JSON of the Trace Event Format (times in microseconds). A stage is a process,
numbered from 1 since viewers keep 0 for the kernel; each of its devices is two threads: what it
computes, and what it sends, since messages may travel beside the computation. Arrows lead from a
message to the work that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hetcli.report import facts
from hetcli.report.steps import microseconds

if TYPE_CHECKING:
    from hetcli.perf.timeline import ChainTimeline, StepTimeline
    from hetcli.spec.plan import Plan

__all__ = ["MAX_WORKS", "trace_document"]

# A work comes with idle time, a message and the two ends of an arrow: some 100 MB of JSON, which
# the viewer still opens.
MAX_WORKS: Final = 150_000

Json = dict[str, Any]


class _Slice(NamedTuple):
    """Something that takes time on a thread of every device of a stage; `thread` 1 is its sends."""

    stage: int
    thread: int
    start: int
    end: int
    name: str
    category: str
    details: Json


class _Arrow(NamedTuple):
    """A message leaves one stage, and a work of another one starts."""

    source: int
    leaves: int
    destination: int
    starts: int


def trace_document(plan: Plan, step: StepTimeline) -> Json:
    """The trace of one step: compute, transfers and idle time of every device that is used.

    Where that would be more than `MAX_WORKS` works, replicas that work alike are shown by one of
    them; `otherData.shown` says so.
    """
    stages = range(len(plan.stages))
    works = {
        chain.first_stage + stage: len(chain.timeline.of_stage(stage))
        for chain in step.chains
        for stage in range(chain.timeline.schedule.stages)
    }
    everyone = sum(works[stage] * len(plan.stages[stage].devices) for stage in stages) <= MAX_WORKS
    trace = _Trace(plan)
    for chain in step.chains:
        slices, arrows = _acts(chain, step)
        for member in chain.members if everyone else chain.members[:1]:
            trace.add_member(member, chain.first_stage, slices, arrows)
    return {
        "traceEvents": trace.events,
        "displayTimeUnit": "ms",
        "otherData": {
            "title": facts.title(plan),
            "hetcli_version": plan.hetcli_version,
            "step_time_s": plan.predicted.step_time_s,
            "shown": "every device" if everyone else "one of the replicas that work alike",
        },
    }


class _Trace:
    """The events so far; a device is written once, however many members it works for."""

    def __init__(self, plan: Plan) -> None:
        self.events: list[Json] = []
        self._plan = plan
        self._threads: dict[tuple[int, str, int], int] = {}
        self._arrows = 0
        for number, stage in enumerate(plan.stages):
            self._name("process", number, 0, f"stage {number}: {stage.gpu}")

    def add_member(
        self, member: tuple[int, ...], first_stage: int, slices: list[_Slice], arrows: list[_Arrow]
    ) -> None:
        """All devices of one data-parallel member; arrows join the first device of each stage."""
        leaders = {}
        for stage, replica in enumerate(member, start=first_stage):
            devices = self._plan.stages[stage].replicas[replica].devices
            for device in devices:
                key = (stage, device.node, device.index)
                if key not in self._threads:
                    thread = self._threads[key] = 2 * len(self._threads) + 1
                    name = f"{device.node}:{device.index}"
                    self._name("thread", stage, thread, name)
                    self._name("thread", stage, thread + 1, f"{name} sends")
                    self.events += [
                        _complete(each, thread) for each in slices if each.stage == stage
                    ]
            leaders[stage] = self._threads[stage, devices[0].node, devices[0].index]
        for arrow in arrows:
            common = {"cat": "transfer", "name": "message", "id": self._arrows}
            here = {"pid": arrow.source + 1, "tid": leaders[arrow.source] + 1, "ts": arrow.leaves}
            there = {
                "pid": arrow.destination + 1,
                "tid": leaders[arrow.destination],
                "ts": arrow.starts,
            }
            self.events.append({"ph": "s", **common, **here})
            self.events.append({"ph": "f", "bp": "e", **common, **there})
            self._arrows += 1

    def _name(self, what: str, stage: int, tid: int, name: str) -> None:
        own = {"ph": "M", "pid": stage + 1, "tid": tid}
        self.events.append({"name": f"{what}_name", **own, "args": {"name": name}})
        order = tid if what == "thread" else stage
        self.events.append({"name": f"{what}_sort_index", **own, "args": {"sort_index": order}})


def _complete(act: _Slice, thread: int) -> Json:
    return {
        "ph": "X",
        "pid": act.stage + 1,
        "tid": thread + act.thread,
        "ts": act.start,
        "dur": act.end - act.start,
        "name": act.name,
        "cat": act.category,
        "args": act.details,
    }


def _acts(chain: ChainTimeline, step: StepTimeline) -> tuple[list[_Slice], list[_Arrow]]:
    """What the devices of every stage do, and which message makes which work possible."""
    timeline, first = chain.timeline, chain.first_stage
    busy: list[list[_Slice]] = [[] for _ in range(timeline.schedule.stages)]
    sends: list[_Slice] = []
    arrows: list[_Arrow] = []
    messages = iter(zip(timeline.leaves_s, timeline.arrivals_s, strict=True))
    carried: dict[int, tuple[int, int]] = {}
    times = zip(timeline.schedule.steps, timeline.starts_s, timeline.ends_s, strict=True)
    for work, start_s, end_s in times:
        start, end = microseconds(start_s), microseconds(end_s)
        stage = first + work.stage
        details = {"micro_batch": work.micro_batch, "chunk": work.chunk}
        name = f"{work.kind} {work.micro_batch}"
        busy[work.stage].append(_Slice(stage, 0, start, end, name, "compute", details))
        if work.received in carried:
            source, leaves = carried.pop(work.received)
            arrows.append(_Arrow(source, leaves, stage, start))
        if work.sent >= 0:
            leaves, arrives = map(microseconds, next(messages))
            if arrives > leaves:
                carried[work.sent] = stage, leaves
                send = _Slice(stage, 1, leaves, arrives, f"send {name}", "transfer", details)
                sends.append(send)
                if not timeline.overlap:
                    busy[work.stage].append(send)
    idle = [
        each
        for stage, acts in enumerate(busy, start=first)
        for each in _idle(stage, acts, microseconds(step.pipeline_s))
    ]
    after = [
        _Slice(stage, 0, microseconds(start), microseconds(end), name, "after the pipeline", {})
        for stage in range(first, first + len(busy))
        for name, start, end in step.after
    ]
    works = [act for acts in busy for act in acts if act.thread == 0]
    return [*works, *sends, *idle, *after], arrows


def _idle(stage: int, acts: list[_Slice], until: int) -> Iterator[_Slice]:
    """The gaps between what a stage does, and what it waits for in them."""
    bounds = [(0, 0, ""), *((act.start, act.end, act.name) for act in acts), (until, until, "")]
    for (_, start, _), (end, _, name) in pairwise(bounds):
        if end > start:
            waits = {"waits_for": name} if name else {}
            yield _Slice(stage, 0, start, end, "idle", "idle", waits)
