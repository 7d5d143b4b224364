"""The orders of works: complete, runnable, and those of the papers and frameworks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.rules import check_schedule, default_chunks
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.work import Place, Schedule, Work

NAMES: tuple[ScheduleName, ...] = (
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-v",
    "wave",
    "bidirectional",
)
LETTER = {"forward": "F", "backward": "B", "backward-input": "I", "backward-weight": "W"}


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(NAMES))
    stages = draw(st.integers(1, 6))
    if name in ("wave", "bidirectional"):
        stages = 2 * draw(st.integers(1, 3))
    chunks, group = None, None
    micro_batches = draw(st.integers(1, 14))
    if name == "interleaved":
        stages = draw(st.integers(2, 5))
        chunks = draw(st.integers(2, 4))
        group = draw(st.integers(stages, stages + 3))
        micro_batches = group * draw(st.integers(1, 3)) + draw(
            st.one_of(st.just(0), st.integers(stages, group))
        )
    elif name == "wave":
        chunks = draw(st.sampled_from((2, 4, 6)))
    elif name == "bidirectional":
        chunks = draw(st.sampled_from((2, 4, 8)))
    return schedule(name, stages, micro_batches, chunks, micro_batch_group_size=group)


def small_schedules(name: ScheduleName) -> Iterator[tuple[Schedule, int | None]]:
    """Every legal one with few stages, micro-batches and chunks, and its group size if it has."""
    for stages, micro_batches, chunks in itertools.product(
        range(1, 7), range(1, 14), (1, 2, 3, 4, 8)
    ):
        groups = range(stages, stages + 4) if name == "interleaved" else (None,)
        for group in groups:
            try:
                check_schedule(name, stages, micro_batches, chunks, group)
            except ConfigurationError:
                continue
            order = schedule(name, stages, micro_batches, chunks, micro_batch_group_size=group)
            yield order, group


def written(order: Schedule, stage: int) -> str:
    """`F2.1`: forward of model part 2 (counted along the route) for micro-batch 1."""
    part = {place: index for route in order.routes for index, place in enumerate(route)}
    return " ".join(
        f"{LETTER[work.kind]}{part[Place(stage, work.chunk)]}.{work.micro_batch}"
        for work in order.order[stage]
    )


@settings(deadline=None)
@given(schedules())
def test_every_visit_has_one_forward_and_one_whole_backward(order: Schedule) -> None:
    done = Counter(
        (work.kind, work.micro_batch, Place(stage, work.chunk))
        for stage, works in enumerate(order.order)
        for work in works
    )
    for micro_batch, route in enumerate(order.route_of):
        for place in order.routes[route]:
            counts = {kind: done.pop((kind, micro_batch, place), 0) for kind in LETTER}
            assert counts["forward"] == 1
            assert counts["backward"] + counts["backward-input"] == 1
            assert counts["backward-weight"] == counts["backward-input"]
    assert not done


@settings(deadline=None)
@given(schedules())
def test_steps_keep_every_stages_order_and_every_dependency(order: Schedule) -> None:
    ran: list[list[Work]] = [[] for _ in order.order]
    seen: set[tuple[str, int, Place]] = set()
    for step in order.steps:
        place = Place(step.stage, step.chunk)
        route = order.routes[order.route_of[step.micro_batch]]
        position = route.index(place)
        if step.kind == "forward":
            needed = ("F", route[position - 1]) if position else None
        elif step.kind == "backward-weight":
            needed = ("I", place)
        elif position + 1 < len(route):
            needed = ("B", route[position + 1])
        else:
            needed = ("F", place)
        assert needed is None or (needed[0], step.micro_batch, needed[1]) in seen
        seen.add((LETTER[step.kind], step.micro_batch, place))
        if step.kind == "backward-input":
            seen.add(("B", step.micro_batch, place))
        ran[step.stage].append(Work(step.kind, step.micro_batch, step.chunk))
    assert tuple(map(tuple, ran)) == order.order


def test_one_forward_one_backward_is_the_textbook_order() -> None:
    order = schedule("1f1b", 3, 4)
    assert written(order, 0) == "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"
    assert written(order, 2) == "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3"


def test_interleaved_is_megatrons_order() -> None:
    # megatron-core 0.19.2, core/pipeline_parallel/schedules.py: get_schedule_table and the warm-up
    # of get_pp_rank_microbatches; torch 2.13.0's ScheduleInterleaved1F1B has the same actions.
    order = schedule("interleaved", 2, 4)
    assert written(order, 0) == (
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3"
    )
    assert written(order, 1) == (
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3"
    )


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 4))
def test_whole_groups_follow_megatrons_older_index_arithmetic(
    stages: int, chunks: int, groups: int
) -> None:
    # Before there were group sizes, Megatron-LM computed chunk and micro-batch of the k-th virtual
    # micro-batch by division alone.
    order = schedule("interleaved", stages, groups * stages, chunks)
    for works in order.order:
        forwards = [work for work in works if work.kind == "forward"]
        backwards = [work for work in works if work.kind == "backward"]
        for k, (forward, backward) in enumerate(zip(forwards, backwards, strict=True)):
            chunk = k % (stages * chunks) // stages
            micro_batch = k // (stages * chunks) * stages + k % stages
            assert forward == Work("forward", micro_batch, chunk)
            assert backward == Work("backward", micro_batch, chunks - 1 - chunk)


def test_interleaved_takes_a_last_group_that_is_not_whole() -> None:
    order = schedule("interleaved", 2, 5, 2, micro_batch_group_size=3)
    chunks = [work.chunk for work in order.order[1] if work.kind == "forward"]
    assert chunks == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


def test_zb_v_is_the_papers_handcrafted_order() -> None:
    # The actions of torch 2.13.0's ScheduleZBVZeroBubble (`pipeline_order`), 3 stages.
    order = schedule("zb-v", 3, 5)
    assert written(order, 0) == (
        "F0.0 F0.1 F0.2 F0.3 F0.4 F5.0 I5.0 W5.0 F5.1 I5.1 W5.1 F5.2 I5.2 W5.2 I0.0 W0.0 "
        "F5.3 I5.3 W5.3 I0.1 W0.1 F5.4 I5.4 W5.4 I0.2 W0.2 I0.3 W0.3 I0.4 W0.4"
    )
    assert written(order, 2) == (
        "F2.0 F3.0 F2.1 F3.1 F2.2 F3.2 I3.0 W3.0 F2.3 I2.0 W2.0 F3.3 I3.1 W3.1 F2.4 I2.1 W2.1 "
        "F3.4 I3.2 W3.2 I2.2 I3.3 I2.3 I3.4 I2.4 W2.2 W3.3 W3.4 W2.3 W2.4"
    )
    assert written(schedule("zb-v", 2, 2), 0) == (
        "F0.0 F0.1 F3.0 I3.0 W3.0 F3.1 I3.1 W3.1 I0.0 W0.0 I0.1 W0.1"
    )


def test_zb_h1_delays_weight_gradients_by_the_stage() -> None:
    order = schedule("zb-h1", 3, 4)
    assert written(order, 0) == "F0.0 F0.1 F0.2 I0.0 W0.0 F0.3 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3"
    assert written(order, 2) == "F2.0 I2.0 F2.1 I2.1 F2.2 I2.2 W2.0 F2.3 I2.3 W2.1 W2.2 W2.3"


def test_bidirectional_pipelines_hold_the_weights_twice() -> None:
    order = schedule("bidirectional", 4, 4)
    down, up = order.routes
    assert [place.stage for place in down] == [0, 1, 2, 3]
    assert [place.stage for place in up] == [3, 2, 1, 0]
    assert order.chunks == (2, 2, 2, 2)
    assert order.route_of == (0, 1, 0, 1)
    bitpipe = schedule("bidirectional", 4, 4, 4)
    assert [place.stage for place in bitpipe.routes[1]] == [3, 2, 1, 0, 0, 1, 2, 3]
    assert bitpipe.chunks == (4, 4, 4, 4)


def test_waves_turn_around_without_changing_the_device() -> None:
    (route,) = schedule("wave", 4, 4, 4).routes
    assert [place.stage for place in route] == [0, 1, 2, 3, 3, 2, 1, 0] * 2
    # A turn is not a transfer: the only links are those between neighbours.
    assert schedule("wave", 4, 4, 4).links == ((0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2))


def test_interleaving_needs_the_link_around() -> None:
    order = schedule("interleaved", 4, 4)
    assert (3, 0) in order.links
    assert (0, 3) in order.links
    assert schedule("interleaved", 2, 4).links == ((0, 1), (1, 0))


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("interleaved", 4, 6, 2), "4 or 8 micro-batches"),
        (("interleaved", 4, 3, 2), "4 micro-batches"),
        (("interleaved", 1, 4, 2), "2"),
        (("interleaved", 4, 8, 1), "2 or more"),
        (("zb-v", 4, 8, 3), "2 model chunks"),
        (("1f1b", 4, 8, 2), "1 model chunks"),
        (("wave", 3, 8, 2), "2 or 4 stages"),
        (("wave", 4, 8, 3), "2, 4, 6"),
        (("bidirectional", 5, 8), "4 or 6 stages"),
        (("bidirectional", 4, 8, 3), "2 (Chimera), or 4"),
        (("1f1b", 0, 8), "1 or more"),
        (("1f1b", 4, 0), "1 or more"),
        (("dualpipe", 4, 8), "gpipe, 1f1b"),
    ],
)
def test_what_cannot_run_is_refused_with_what_can(arguments: tuple[object, ...], fix: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        schedule(*arguments)  # type: ignore[arg-type]
    assert refused.value.what
    assert refused.value.why
    assert fix in refused.value.fix


def test_group_sizes_are_megatrons() -> None:
    check_schedule("interleaved", 4, 12, 2, 8)
    check_schedule("interleaved", 4, 12, 2, 7)
    for group in (3, 13, 9, 0):
        with pytest.raises(ConfigurationError):
            check_schedule("interleaved", 4, 12, 2, group)
    with pytest.raises(ConfigurationError, match="only the interleaved"):
        check_schedule("1f1b", 4, 12, 1, 4)


@pytest.mark.parametrize("name", NAMES)
def test_default_chunks_are_legal(name: ScheduleName) -> None:
    check_schedule(name, 4, 8, default_chunks(name))


def order_of(*stages: str, parts: int = 1) -> Schedule:
    """A hand-made schedule over one route: `F0` is the forward of micro-batch 0."""
    kind = {letter: name for name, letter in LETTER.items()}
    works = tuple(
        tuple(Work(kind[item[0]], int(item[1:]), 0) for item in text.split())  # type: ignore[arg-type]
        for text in stages
    )
    route = tuple(Place(stage, 0) for stage in range(len(stages)))
    return Schedule("1f1b", works, (route,), (0,) * parts)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (order_of("F0 B0", "B0 F0"), "waits for ever"),
        (order_of("F0 F0 B0"), "waits for ever"),
        (order_of("F0 B0 B0"), "waits for ever"),
        (order_of("F0 W0 I0"), "waits for ever"),
        (order_of("F0"), "as many"),
        (order_of("F0 I0"), "as many"),
        (order_of("F0 B0", parts=2), "as many"),
        (order_of("F0 B0 F1 B1"), "nothing to do"),
    ],
)
def test_orders_that_cannot_be_run_are_found(order: Schedule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = order.steps


def test_routes_that_make_no_sense_are_found() -> None:
    twice = (Place(0, 0), Place(0, 0))
    with pytest.raises(ValueError, match="more than one route"):
        Schedule("1f1b", ((),), (twice,), (0,))
    with pytest.raises(ValueError, match="does not exist"):
        Schedule("1f1b", ((),), ((Place(0, 0),),), (1,))
    with pytest.raises(ValueError, match="no place"):
        Schedule("1f1b", ((),), ((),), (0,))
    with pytest.raises(ValueError, match="does not exist"):
        Schedule("1f1b", ((),), ((Place(1, 0),),), (0,))
    jump = (Place(0, 0), Place(2, 0), Place(1, 0), Place(3, 0))
    with pytest.raises(ValueError, match="not neighbours"):
        _ = Schedule("1f1b", ((),) * 4, (jump,), (0,)).edges
