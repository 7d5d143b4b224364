"""The simulator against a reference that knows nothing of it, and against what must always hold."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import order_of, schedules

from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.simulate import simulate
from hetcli.perf.pipeline.timeline import Event, Timeline, Transfer
from hetcli.perf.pipeline.work import Place, Schedule, Work

SECONDS = st.one_of(st.integers(0, 5).map(float), st.floats(0, 10, allow_subnormal=False))


def drawn_times(draw: st.DrawFn, order: Schedule) -> list[list[float]]:
    return [[draw(SECONDS) for _ in range(chunks)] for chunks in order.chunks]


class Run:
    """A schedule, its times, and what the simulator made of them."""

    HIDDEN = ("order", "timeline")

    def __init__(self, draw: st.DrawFn) -> None:
        self.order = draw(schedules())
        self.forward = drawn_times(draw, self.order)
        self.weight = drawn_times(draw, self.order)
        inputs = drawn_times(draw, self.order)
        self.backward = [
            [weight + rest for weight, rest in zip(*rows, strict=True)]
            for rows in zip(self.weight, inputs, strict=True)
        ]
        edges = self.order.stages
        self.send = [draw(SECONDS) for _ in range(edges)]
        self.back = [draw(SECONDS) for _ in range(edges)]
        self.overlap = draw(st.booleans())
        self.exclusive = draw(st.booleans())
        self.timeline = simulate(
            self.order,
            self.forward,
            self.backward,
            self.send,
            return_s=self.back,
            weight_s=self.weight,
            overlap=self.overlap,
            exclusive_links=self.exclusive,
        )

    def __repr__(self) -> str:
        order = self.order
        drawn = {key: value for key, value in vars(self).items() if key not in self.HIDDEN}
        return f"{order.name}, {order.chunks} chunks, {order.micro_batches} micro-batches, {drawn}"

    def duration(self, stage: int, work: Work) -> float:
        times = {"forward": self.forward, "backward": self.backward, "backward-weight": self.weight}
        if work.kind == "backward-input":
            return self.backward[stage][work.chunk] - self.weight[stage][work.chunk]
        return times[work.kind][stage][work.chunk]

    def link(self, source: int, destination: int) -> float:
        if destination - source == 1:
            return self.send[source]
        if source - destination == 1:
            return self.back[destination]
        return self.send[source] if destination == 0 else self.back[destination]

    def target(self, stage: int, work: Work) -> Place | None:
        """Where the result goes, also when that is the same stage."""
        route = self.order.routes[self.order.route_of[work.micro_batch]]
        position = route.index(Place(stage, work.chunk))
        if work.kind == "forward":
            return route[position + 1] if position + 1 < len(route) else None
        if work.kind == "backward-weight":
            return None
        return route[position - 1] if position else None


@st.composite
def runs(draw: st.DrawFn) -> Run:
    return Run(draw)


def reference(run: Run) -> list[list[tuple[float, float]]]:
    """Start and end of every work: sweep over the stages until no arrival changes any more."""
    arrival: dict[tuple[str, int, Place], float] = {}
    while True:
        before = dict(arrival)
        spans: list[list[tuple[float, float]]] = []
        for stage, works in enumerate(run.order.order):
            free, link_free = 0.0, defaultdict[int, float](float)
            spans.append([])
            for work in works:
                message = "F" if work.kind == "forward" else "B"
                waited = "W" if work.kind == "backward-weight" else message
                key = (waited, work.micro_batch, Place(stage, work.chunk))
                start = max(free, arrival.get(key, 0.0))
                free = end = start + run.duration(stage, work)
                spans[-1].append((start, end))
                target = run.target(stage, work)
                if target is None or target.stage == stage:
                    continue
                leave = max(end, link_free[target.stage]) if run.exclusive else end
                arrive = leave + run.link(stage, target.stage)
                arrival[message, work.micro_batch, target] = link_free[target.stage] = arrive
                if not run.overlap:
                    free = end + run.link(stage, target.stage)
        if arrival == before:
            return spans


@settings(deadline=None)
@given(runs())
def test_times_are_those_of_the_reference(run: Run) -> None:
    expected = reference(run)
    for stage, spans in enumerate(expected):
        events = run.timeline.of_stage(stage)
        assert [Work(*event[1:4]) for event in events] == list(run.order.order[stage])
        assert [(event.start_s, event.end_s) for event in events] == spans
    assert run.timeline.makespan_s == max(end for spans in expected for _, end in spans)


@settings(deadline=None)
@given(runs())
def test_nothing_starts_before_its_inputs_exist(run: Run) -> None:
    end = {(e.kind, e.micro_batch, Place(e.stage, e.chunk)): e.end_s for e in run.timeline.events}
    for event in run.timeline.events:
        route = run.order.routes[run.order.route_of[event.micro_batch]]
        position = route.index(Place(event.stage, event.chunk))
        here = route[position]
        if event.kind == "backward-weight":
            assert event.start_s >= end["backward-input", event.micro_batch, here]
        elif event.kind == "forward" and position:
            before = route[position - 1]
            ready = end["forward", event.micro_batch, before]
            if before.stage != event.stage:
                ready += run.link(before.stage, event.stage)
            assert event.start_s >= ready
        elif event.kind != "forward":
            assert event.start_s >= end["forward", event.micro_batch, here]
            if position + 1 < len(route):
                after = route[position + 1]
                kind = "backward-input" if run.order.splits_backward else "backward"
                ready = end[kind, event.micro_batch, after]
                if after.stage != event.stage:
                    ready += run.link(after.stage, event.stage)
                assert event.start_s >= ready


@settings(deadline=None)
@given(runs())
def test_stages_and_links_do_one_thing_at_a_time(run: Run) -> None:
    for stage in range(run.order.stages):
        for before, after in itertools.pairwise(run.timeline.of_stage(stage)):
            assert before.end_s <= after.start_s
    if run.exclusive or not run.overlap:
        on_link: dict[tuple[int, int], float] = defaultdict(float)
        for transfer in run.timeline.transfers:
            assert transfer.start_s >= on_link[transfer.source, transfer.destination]
            on_link[transfer.source, transfer.destination] = transfer.end_s


@settings(deadline=None)
@given(runs())
def test_makespan_is_a_chain_without_gaps_and_no_less_than_any_stages_work(run: Run) -> None:
    timeline = run.timeline
    path = timeline.critical_path
    assert path[0].start_s == 0
    for before, after in itertools.pairwise(path):
        assert before.end_s == after.start_s
    assert path[-1].end_s == timeline.makespan_s
    for busy, sending, idle in zip(
        timeline.busy_s, timeline.sending_s, timeline.idle_s, strict=True
    ):
        assert busy + sending + idle == pytest.approx(timeline.makespan_s)
        assert busy + sending <= timeline.makespan_s * (1 + 1e-12)


@settings(deadline=None)
@given(runs())
def test_makespan_is_no_less_than_one_micro_batchs_way_and_back(run: Run) -> None:
    for route_number in set(run.order.route_of):
        route = run.order.routes[route_number]
        way = sum(
            run.forward[place.stage][place.chunk]
            + run.duration(
                place.stage,
                Work("backward-input" if run.order.splits_backward else "backward", 0, place.chunk),
            )
            for place in route
        )
        for one, two in itertools.pairwise(route):
            if one.stage != two.stage:
                way += run.link(one.stage, two.stage) + run.link(two.stage, one.stage)
        assert run.timeline.makespan_s >= way * (1 - 1e-12)


@settings(deadline=None)
@given(runs(), st.data())
def test_memory_over_time_is_never_negative_and_ends_at_nothing(
    run: Run, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, run.order.stages - 1))
    sizes = [float(data.draw(st.integers(0, 10**12))) for _ in range(run.order.chunks[stage])]
    held = run.timeline.held_bytes(stage, sizes)
    times = [when for when, _ in held]
    assert times == sorted(times)
    assert all(level >= -1e-3 for _, level in held)
    assert held[-1] == (
        max(e.end_s for e in run.timeline.of_stage(stage) if e.kind != "backward-input"),
        0.0,
    )
    ones = (1.0,) * run.order.chunks[stage]
    counts = [level for _, level in run.timeline.held_bytes(stage, ones)]
    assert max(counts) == run.timeline.peak_in_flight[stage]
    assert min(counts) >= 0


@settings(deadline=None)
@given(runs())
def test_overlap_and_free_links_never_hurt(run: Run) -> None:
    def makespan(*, overlap: bool, exclusive_links: bool) -> float:
        return simulate(
            run.order,
            run.forward,
            run.backward,
            run.send,
            return_s=run.back,
            weight_s=run.weight,
            overlap=overlap,
            exclusive_links=exclusive_links,
        ).makespan_s

    passing = makespan(overlap=True, exclusive_links=False)
    queued = makespan(overlap=True, exclusive_links=True)
    blocking = makespan(overlap=False, exclusive_links=True)
    assert passing <= queued <= blocking
    assert makespan(overlap=False, exclusive_links=False) == blocking


def test_peak_of_1f1b_is_the_minimum_of_micro_batches_and_stages_left() -> None:
    timeline = simulate(schedule("1f1b", 8, 16), [1.0] * 8, [2.0] * 8)
    assert timeline.peak_in_flight == (8, 7, 6, 5, 4, 3, 2, 1)


TWO = order_of("F0 F1 B0 B1", "F0 B0 F1 B1", parts=2)


def spans(timeline: Timeline, stage: int) -> list[tuple[float, float]]:
    return [(event.start_s, event.end_s) for event in timeline.of_stage(stage)]


def test_an_overlapped_message_travels_while_the_sender_goes_on() -> None:
    timeline = simulate(TWO, [1.0, 1.0], [2.0, 2.0], [0.5])
    assert spans(timeline, 0) == [(0, 1), (1, 2), (5, 7), (8.0, 10.0)]
    assert spans(timeline, 1) == [(1.5, 2.5), (2.5, 4.5), (4.5, 5.5), (5.5, 7.5)]
    assert timeline.sending_s == (0, 0)


def test_a_blocking_send_costs_the_sender_its_time() -> None:
    timeline = simulate(TWO, [1.0, 1.0], [2.0, 2.0], [0.5], overlap=False)
    assert spans(timeline, 0) == [(0, 1), (1.5, 2.5), (5.0, 7.0), (8.5, 10.5)]
    assert spans(timeline, 1) == [(1.5, 2.5), (2.5, 4.5), (5.0, 6.0), (6.0, 8.0)]
    assert timeline.sending_s == (1.0, 1.0)
    assert timeline.stage_end_s == (10.5, 8.5)


def test_a_slow_link_carries_one_message_at_a_time() -> None:
    order = order_of("F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2", parts=3)
    queued = simulate(order, [1.0, 1.0], [1.0, 1.0], [10.0], return_s=[0.0])
    assert [event.start_s for event in queued.of_stage(1)[:3]] == [11, 21, 31]
    passing = simulate(order, [1.0, 1.0], [1.0, 1.0], [10.0], return_s=[0.0], exclusive_links=False)
    assert [event.start_s for event in passing.of_stage(1)[:3]] == [11, 12, 13]


def test_directions_have_their_own_times() -> None:
    order = order_of("F0 B0", "F0 B0")
    timeline = simulate(order, [1.0, 1.0], [1.0, 1.0], [2.0], return_s=[5.0])
    assert timeline.makespan_s == 1 + 2 + 1 + 1 + 5 + 1
    kinds = [(act.start_s, act.end_s) for act in timeline.critical_path]
    assert kinds == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 10), (10, 11)]
    assert isinstance(timeline.critical_path[1], Transfer)
    assert isinstance(timeline.critical_path[0], Event)


def test_interleaving_pays_for_the_way_around() -> None:
    order = schedule("interleaved", 3, 3, 2)
    times = [[1.0, 1.0]] * 3
    free = simulate(order, times, times, [0.0, 0.0, 0.0]).makespan_s
    # Only the link from the last stage back to the first is slow, and every micro-batch takes it.
    assert simulate(order, times, times, [0.0, 0.0, 4.0]).makespan_s > free + 4


def test_a_turn_of_a_wave_costs_no_transfer() -> None:
    times = [[1.0, 1.0]] * 2
    one = simulate(schedule("wave", 2, 1), times, times, [10.0])
    assert one.makespan_s == 4 + 4 + 4 * 10
    assert len(one.transfers) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"forward_s": [1.0]},
        {"forward_s": [[1.0, 1.0], [1.0, 1.0]]},
        {"backward_s": [1.0, -1.0]},
        {"backward_s": [1.0, float("nan")]},
        {"send_s": [1.0, 1.0, 1.0]},
        {"send_s": [float("inf")]},
        {"send_s": [1.0], "return_s": []},
    ],
)
def test_numbers_that_do_not_fit_are_refused(change: dict[str, list[float]]) -> None:
    arguments = {"forward_s": [1.0, 1.0], "backward_s": [1.0, 1.0], **change}
    with pytest.raises(ValueError, match=r"chunks|finite|edges"):
        simulate(TWO, **arguments)  # type: ignore[arg-type]


def test_a_schedule_that_wraps_around_needs_that_edge() -> None:
    times = [[1.0, 1.0]] * 3
    with pytest.raises(ValueError, match="3 edges, not 2"):
        simulate(schedule("interleaved", 3, 3), times, times, [0.1, 0.1])


def test_a_split_backward_needs_its_split() -> None:
    order = schedule("zb-h1", 2, 2)
    with pytest.raises(ValueError, match="weight_s is needed"):
        simulate(order, [1.0, 1.0], [2.0, 2.0])
    with pytest.raises(ValueError, match="cannot be more"):
        simulate(order, [1.0, 1.0], [2.0, 2.0], weight_s=[1.0, 3.0])
