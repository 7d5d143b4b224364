"""The last measured step as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hetcli.trial.job import RankReport

__all__ = ["trace_document"]

_MICROSECONDS = 1e6
Json = dict[str, Any]


def trace_document(reports: Sequence[RankReport]) -> Json:
    """Works, sends and what follows them, a track a device.

    Clocks of different nodes are lined up where all devices agree on the loss, which they do
    together.
    """
    latest = max(report.steps[-1].agreed_s for report in reports)
    events: list[Json] = []
    for thread, report in enumerate(reports, start=1):
        step = report.steps[-1]
        process = report.pipeline * 1000 + report.stage + 1
        name = f"{report.device.node}:{report.device.index}"
        for what, text in (
            ("process", f"pipeline {report.pipeline} stage {report.stage}"),
            ("thread", name),
        ):
            events.append(
                {
                    "ph": "M",
                    "pid": process,
                    "tid": thread,
                    "name": f"{what}_name",
                    "args": {"name": text},
                }
            )
        shift = latest - step.agreed_s
        for label, category, start, end in _slices(report):
            events.append(
                {
                    "ph": "X",
                    "pid": process,
                    "tid": thread,
                    "ts": round((start + shift) * _MICROSECONDS),
                    "dur": round((end - start) * _MICROSECONDS),
                    "name": label,
                    "cat": category,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slices(report: RankReport) -> Iterator[tuple[str, str, float, float]]:
    step = report.steps[-1]
    for work in step.works:
        label = f"{work.kind} {work.micro_batch}"
        yield label, "compute", work.start_s, work.end_s
        if work.sent_s > work.end_s:
            yield f"send {label}", "transfer", work.end_s, work.sent_s
    yield "gradient sync, exposed", "after the pipeline", step.pipeline_s, step.reduced_s
    yield "agree on loss and norm", "after the pipeline", step.reduced_s, step.agreed_s
    yield "optimizer", "after the pipeline", step.agreed_s, step.step_s
