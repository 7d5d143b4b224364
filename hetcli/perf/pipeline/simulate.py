"""Run a schedule on stages with given times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetcli.perf.pipeline.timeline import Timeline
from hetcli.perf.pipeline.work import Kind, Schedule

__all__ = ["Times", "check_edges", "simulate"]

# Seconds of one micro-batch: a number a stage, or a number for each chunk of a stage.
Times = Sequence[float] | Sequence[Sequence[float]]


def simulate(
    schedule: Schedule,
    forward_s: Times,
    backward_s: Times,
    send_s: Sequence[float] = (),
    *,
    return_s: Sequence[float] | None = None,
    weight_s: Times | None = None,
    overlap: bool = True,
    exclusive_links: bool = True,
) -> Timeline:
    """Return when every work runs if each stage keeps its order and starts as early as it can.

    - `forward_s`, `backward_s`: seconds of a micro-batch, a number for each stage, or a sequence
      with a number for each chunk where stages hold several. `weight_s` is the part of `backward_s`
      that the weight gradients take; a schedule that splits the backward needs it.
    - `send_s[i]`: seconds of one message from stage i to stage i + 1 (the last entry, from the last
      stage to the first, is needed by schedules that wrap around); empty for no time at all.
      `return_s[i]`: from stage i + 1 back to stage i, by default the same.
    - `overlap`: whether a stage computes while its message travels. If not, the stage is blocked
      until the message has arrived.
    - `exclusive_links`: whether a link carries one message at a time in each direction. If not,
      messages pass each other. Of no effect without overlap.

    Raises ValueError for numbers that do not fit the schedule.
    """
    forward = _per_chunk(schedule, forward_s, "forward_s")
    backward = _per_chunk(schedule, backward_s, "backward_s")
    durations: dict[Kind, list[list[float]]] = {"forward": forward, "backward": backward}
    if schedule.splits_backward:
        if weight_s is None:
            raise ValueError(f"{schedule.name} splits the backward: weight_s is needed")
        weight = _per_chunk(schedule, weight_s, "weight_s")
        durations["backward-weight"] = weight
        durations["backward-input"] = [
            [whole - part for whole, part in zip(wholes, parts, strict=True)]
            for wholes, parts in zip(backward, weight, strict=True)
        ]
        if min(map(min, durations["backward-input"])) < 0:
            raise ValueError("weight_s is a part of backward_s and cannot be more")
    seconds = _link_seconds(schedule, send_s, send_s if return_s is None else return_s)

    free = [0.0] * schedule.stages
    link_free = [0.0] * len(seconds)
    sending = [0.0] * schedule.stages
    arrival: dict[int, float] = {}
    starts: list[float] = []
    ends: list[float] = []
    leaves: list[float] = []
    arrivals: list[float] = []
    for stage, kind, _, chunk, received, sent, link in schedule.steps:
        start = free[stage]
        if received >= 0:
            start = max(start, arrival.pop(received))
        end = start + durations[kind][stage][chunk]
        free[stage] = end
        starts.append(start)
        ends.append(end)
        if sent < 0:
            continue
        # One stage sends in the order of its work, so its links serve first come, first served.
        leave = max(end, link_free[link]) if exclusive_links else end
        arrive = leave + seconds[link]
        arrival[sent] = link_free[link] = arrive
        if not overlap:
            free[stage] = arrive
            sending[stage] += seconds[link]
        leaves.append(leave)
        arrivals.append(arrive)
    return Timeline(
        schedule=schedule,
        overlap=overlap,
        starts_s=tuple(starts),
        ends_s=tuple(ends),
        leaves_s=tuple(leaves),
        arrivals_s=tuple(arrivals),
        makespan_s=max(ends),
        busy_s=tuple(
            math.fsum(durations[work.kind][stage][work.chunk] for work in works)
            for stage, works in enumerate(schedule.order)
        ),
        sending_s=tuple(sending),
        stage_end_s=tuple(free),
    )


def _link_seconds(
    schedule: Schedule, send_s: Sequence[float], return_s: Sequence[float]
) -> list[float]:
    if not send_s and not return_s:
        return [0.0] * len(schedule.links)
    for seconds in (send_s, return_s):
        check_edges(schedule, len(seconds))
        if any(not 0 <= value < math.inf for value in seconds):
            raise ValueError("a transfer takes a finite time, 0 or more")
    return [(return_s if back else send_s)[edge] for edge, back in schedule.edges]


def check_edges(schedule: Schedule, count: int) -> None:
    """Raise ValueError unless `count` numbers can be the transfer times of the schedule's edges."""
    stages = schedule.stages
    fewest = stages if any(edge == stages - 1 for edge, _ in schedule.edges) else stages - 1
    if not fewest <= count <= stages:
        raise ValueError(f"{schedule.name} with {stages} stages has {fewest} edges, not {count}")


def _per_chunk(schedule: Schedule, times: Times, what: str) -> list[list[float]]:
    rows = [[row] if isinstance(row, int | float) else list(row) for row in times]
    if tuple(len(row) for row in rows) != schedule.chunks:
        raise ValueError(f"{what} needs a number for each of {schedule.chunks} chunks a stage")
    if any(not 0 <= value < math.inf for row in rows for value in row):
        raise ValueError(f"{what} must be finite, 0 or more")
    return rows
