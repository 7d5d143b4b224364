"""A step's timeline as plain data: what the page draws, the trace shows and `--json` prints.

Times are whole microseconds from the start of the step, rounded once here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hetcli.perf.pipeline.timeline import Event, Timeline, Transfer
    from hetcli.perf.timeline import ChainTimeline, StepTimeline

__all__ = ["KINDS", "microseconds", "step_data"]

# One letter a kind of work. `I` and `W` are the two halves of a split backward.
KINDS: Final = {
    "F": "forward",
    "B": "backward",
    "I": "backward-input",
    "W": "backward-weight",
}
_LETTERS: Final = {kind: letter for letter, kind in KINDS.items()}


def microseconds(seconds: float) -> int:
    """Whole microseconds."""
    return round(seconds * 1e6)


def step_data(step: StepTimeline, *, limit: int | None = None) -> dict[str, Any]:
    """The works and transfers of every chain, column by column.

    With a `limit`, chains are kept while they have fewer works than that together, the slowest in
    any case; of a chain with more, every stage keeps its first and its last works, and `omitted`
    counts those between.
    """
    chains: list[dict[str, Any]] = []
    left = limit
    for chain in step.chains:
        count = len(chain.timeline.events)
        if left is not None and chains and count > left:
            break
        chains.append(_chain(chain, left))
        left = None if left is None else max(0, left - count)
    return {
        "unit": "us",
        "kinds": KINDS,
        "end": microseconds(step.step_s),
        "pipeline_end": microseconds(step.pipeline_s),
        "after": [
            {"name": name, "start": microseconds(start), "end": microseconds(end)}
            for name, start, end in step.after
        ],
        "chains": chains,
        "omitted_chains": len(step.chains) - len(chains),
    }


def _chain(chain: ChainTimeline, limit: int | None) -> dict[str, Any]:
    timeline = chain.timeline
    stages = range(timeline.schedule.stages)
    works = [timeline.of_stage(stage) for stage in stages]
    most = None if limit is None else max(2, limit // len(works)) // 2 * 2
    kept = [_ends(of_stage, most) for of_stage in works]
    return {
        "pipeline": chain.pipeline,
        "members": [list(member) for member in chain.members],
        "schedule": timeline.schedule.name,
        "overlap": timeline.overlap,
        "end": microseconds(timeline.makespan_s),
        "stages": [
            {
                "stage": chain.first_stage + stage,
                "busy": microseconds(timeline.busy_s[stage]),
                "sending": microseconds(timeline.sending_s[stage]),
                "idle": microseconds(timeline.idle_s[stage]),
                "omitted": len(works[stage]) - len(kept[stage]),
                **_columns(kept[stage]),
            }
            for stage in stages
        ],
        "transfers": _transfers(timeline, kept, chain.first_stage),
    }


def _ends(works: tuple[Event, ...], most: int | None) -> tuple[Event, ...]:
    if most is None or len(works) <= most:
        return works
    return (*works[: most // 2], *works[-most // 2 :])


def _columns(acts: Sequence[Event | Transfer]) -> dict[str, Any]:
    return {
        "kinds": "".join(_LETTERS[act.kind] for act in acts),
        "micro_batches": [act.micro_batch for act in acts],
        "chunks": [act.chunk for act in acts],
        "starts": [microseconds(act.start_s) for act in acts],
        "ends": [microseconds(act.end_s) for act in acts],
    }


def _transfers(
    timeline: Timeline, kept: Iterable[tuple[Event, ...]], first_stage: int
) -> dict[str, Any]:
    """Messages that take time, of works that are kept."""
    # A gradient leaves when the part of the backward that the previous stage waits for is done.
    sent = {
        (work.stage, "forward" if work.kind == "forward" else "backward", *work[2:4])
        for works in kept
        for work in works
    }
    found = [
        each
        for each in timeline.transfers
        if each.end_s > each.start_s
        and (each.source, each.kind, each.micro_batch, each.chunk) in sent
    ]
    return {
        "sources": [first_stage + each.source for each in found],
        "destinations": [first_stage + each.destination for each in found],
        **_columns(found),
    }
