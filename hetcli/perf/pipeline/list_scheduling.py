"""Orders made by list scheduling: a stage that is free takes the best work that is ready.

Wave and bidirectional pipelines are published as drawings in unit time; this reproduces the
drawings (see the tests) and makes orders for pipelines that nobody drew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from hetcli.perf.pipeline.work import Place, Route, Work

__all__ = ["list_schedule"]


def list_schedule(
    stages: int,
    routes: Sequence[Route],
    route_of: Sequence[int],
    *,
    limits: Mapping[Place, int],
    forward_s: Callable[[Place], float] = lambda _: 1.0,
    backward_s: Callable[[Place], float] = lambda _: 1.0,
    forward_first: bool = False,
) -> tuple[tuple[Work, ...], ...]:
    """Return each stage's order of works.

    At most `limits[place]` micro-batches are between forward and backward at a place (no entry: no
    limit). Among the works that are ready a stage takes a backward before a forward (with
    `forward_first` the reverse), then the lowest micro-batch. With limits of 1 or more no order can
    block: the oldest micro-batch at a place is never behind another one further on.
    """
    following = {a: b for route in routes for a, b in pairwise(route)}
    previous = {b: a for a, b in following.items()}
    places: list[list[Place]] = [[] for _ in range(stages)]
    for route in routes:
        for place in route:
            places[place.stage].append(place)
    forwards: dict[Place, deque[int]] = {place: deque() for route in routes for place in route}
    backwards: dict[Place, deque[int]] = {place: deque() for place in forwards}
    for micro_batch, number in enumerate(route_of):
        forwards[routes[number][0]].append(micro_batch)
    room = {place: limits.get(place, len(route_of)) for place in forwards}

    order: list[list[Work]] = [[] for _ in range(stages)]
    running: list[tuple[float, int, Place, bool, int]] = []
    idle = set(range(stages))

    def start(stage: int, now: float) -> None:
        best: tuple[bool, int, Place] | None = None
        for place in places[stage]:
            for is_forward, queue in ((True, forwards[place]), (False, backwards[place])):
                if queue and (room[place] or not is_forward):
                    key = (is_forward != forward_first, queue[0], place)
                    best = key if best is None else min(best, key)
        if best is None:
            return
        second_choice, micro_batch, place = best
        is_forward = second_choice != forward_first
        if is_forward:
            forwards[place].popleft()
            room[place] -= 1
            end = now + forward_s(place)
        else:
            backwards[place].popleft()
            end = now + backward_s(place)
        order[stage].append(Work("forward" if is_forward else "backward", micro_batch, place.chunk))
        idle.discard(stage)
        heappush(running, (end, stage, place, is_forward, micro_batch))

    for stage in range(stages):
        start(stage, 0.0)
    while running:
        now = running[0][0]
        # All that end at this moment come first: a stage chooses among everything that is ready.
        while running and running[0][0] == now:
            _, stage, place, is_forward, micro_batch = heappop(running)
            idle.add(stage)
            if not is_forward:
                room[place] += 1
                if place in previous:
                    backwards[previous[place]].append(micro_batch)
            elif place in following:
                forwards[following[place]].append(micro_batch)
            else:
                backwards[place].append(micro_batch)
        for stage in sorted(idle):
            start(stage, now)
    return tuple(tuple(works) for works in order)
