"""Closed forms against the simulator, and against the numbers of papers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import NAMES, small_schedules

from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.batch import makespan_1f1b_batch
from hetcli.perf.pipeline.closed_forms import (
    equal_stage_makespan,
    lower_bound_1f1b,
    sailor_estimate_1f1b,
    upper_bound_1f1b,
)
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.simulate import simulate
from hetcli.perf.pipeline.timeline import Timeline
from hetcli.perf.pipeline.work import Schedule

SECONDS = st.floats(0.1, 10)


def equal_stages(order: Schedule, forward: float, backward: float, weight: float = 0.0) -> Timeline:
    """Simulate with whole-stage times, spread evenly over the chunks."""
    share = len(order.routes[0]) // order.stages

    def spread(seconds: float) -> list[list[float]]:
        return [[seconds / share] * chunks for chunks in order.chunks]

    return simulate(order, spread(forward), spread(backward), weight_s=spread(weight))


@pytest.mark.parametrize("name", NAMES)
def test_where_there_is_a_closed_form_it_is_exact(name: ScheduleName) -> None:
    exact = 0
    for order, _ in small_schedules(name):
        for times in ((1.0, 1.0, 0.5), (1.0, 2.0, 1.0), (1.0, 2.5, 0.75), (3.0, 1.25, 1.0)):
            forward, backward, weight = times
            found = equal_stage_makespan(
                name,
                order.stages,
                order.micro_batches,
                forward,
                backward,
                order.chunks[0],
                weight_s=weight,
            )
            if found is not None:
                exact += 1
                simulated = equal_stages(order, forward, backward, weight).makespan_s
                assert found == pytest.approx(simulated, rel=1e-12)
    assert exact > 20


@pytest.mark.parametrize(
    ("name", "stages", "micro_batches", "chunks", "times", "expected"),
    [
        # 1F1B's bubble is (p - 1)(f + b), interleaving divides it by v (arXiv 2104.04473, 2.2).
        ("1f1b", 4, 8, None, (1, 2, 1), 8 * 3 + 3 * 3),
        ("interleaved", 4, 8, 2, (1, 2, 1), 8 * 3 + 3 * 3 / 2),
        # Chimera, D = N = 4, backward twice the forward: bubble ratio (D-2)/(3N/2 + D-2) = 1/4.
        ("bidirectional", 4, 4, 2, (1, 2, 1), 12 / (1 - 1 / 4)),
        # Equal passes: (D-2)/(2N + D-2) for any whole number of units (2107.06925, table 2).
        ("bidirectional", 4, 4, 2, (1, 1, 1), 8 / (1 - 2 / 10)),
        ("bidirectional", 8, 24, 2, (1, 1, 1), 48 / (1 - 6 / 54)),
        # ZB-H1: a third of 1F1B's bubble where F = B = W (2401.10241, section 2.1).
        ("zb-h1", 4, 8, None, (1, 2, 1), 8 * 3 + 3 * 3 / 3),
    ],
)
def test_published_makespans_of_equal_stages(
    name: ScheduleName,
    stages: int,
    micro_batches: int,
    chunks: int | None,
    times: tuple[int, int, int],
    expected: float,
) -> None:
    forward, backward, weight = map(float, times)
    order = schedule(name, stages, micro_batches, chunks)
    assert equal_stages(order, forward, backward, weight).makespan_s == pytest.approx(expected)


@settings(deadline=None)
@given(st.integers(1, 32), st.integers(1, 64), st.integers(1, 9))
def test_rlhfuse_makespan_of_1f1b(stages: int, micro_batches: int, forward: int) -> None:
    # arXiv 2409.13221: backward twice the forward, no transfers.
    expected = (micro_batches + stages - 1) * 3 * forward
    assert equal_stage_makespan("1f1b", stages, micro_batches, forward, 2 * forward) == expected
    times = np.full((1, stages), float(forward))
    assert makespan_1f1b_batch(times, 2 * times, None, micro_batches)[0] == expected


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1, 20), SECONDS, SECONDS, st.floats(0.01, 0.99))
def test_zb_h1_bubble_is_smaller_than_1f1bs(
    stages: int, micro_batches: int, forward: float, backward: float, share: float
) -> None:
    plain = equal_stages(schedule("1f1b", stages, micro_batches), forward, backward)
    split = equal_stages(
        schedule("zb-h1", stages, micro_batches), forward, backward, share * backward
    )
    assert split.makespan_s <= plain.makespan_s * (1 + 1e-12)
    if micro_batches >= stages and share * backward <= forward:
        assert split.makespan_s < plain.makespan_s


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 3), (4, 7), (4, 12), (8, 20)])
def test_zb_v_stages_never_wait_once_they_have_begun(stages: int, micro_batches: int) -> None:
    # arXiv 2401.10241: with F = B = W and the activations of 1F1B, no bubble inside a stage.
    timeline = equal_stages(schedule("zb-v", stages, micro_batches), 2.0, 4.0, 2.0)
    for stage in range(stages):
        events = timeline.of_stage(stage)
        assert events[-1].end_s - events[0].start_s == timeline.busy_s[stage]


@pytest.mark.parametrize("micro_batches", [8, 16, 64])
def test_each_idea_shrinks_the_bubble_of_the_one_before(micro_batches: int) -> None:
    def bubble(name: ScheduleName, chunks: int | None = None) -> float:
        order = schedule(name, 8, micro_batches, chunks)
        return equal_stages(order, 1.0, 1.0, 0.5).idle_s[0]

    assert bubble("interleaved") < bubble("1f1b")
    assert bubble("wave", 4) < bubble("wave", 2) < bubble("1f1b")
    assert bubble("bidirectional", 4) < bubble("bidirectional", 2) < bubble("1f1b")


def test_forms_end_where_they_are_not_exact() -> None:
    assert equal_stage_makespan("wave", 4, 8, 1.0, 2.0) is None
    assert equal_stage_makespan("wave", 4, 9, 1.0, 1.0) is None
    assert equal_stage_makespan("bidirectional", 4, 5, 1.0, 1.0) is None
    assert equal_stage_makespan("zb-h1", 4, 3, 1.0, 2.0, weight_s=1.0) is None
    assert equal_stage_makespan("zb-h1", 4, 8, 1.0, 3.0, weight_s=2.0) is None
    assert equal_stage_makespan("zb-h1", 4, 8, 1.0, 2.0) is None
    assert equal_stage_makespan("zb-v", 4, 8, 1.0, 2.5, weight_s=1.0) is None


@st.composite
def candidates(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Small whole numbers and zeros, which make many paths equally long, or any numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stages, micro_batches = draw(st.integers(1, 8)), draw(st.integers(1, 20))
    shapes = ((40, stages), (40, stages), (40, stages - 1), (40, stages - 1))
    if draw(st.booleans()):
        arrays = [rng.integers(0, 4, shape).astype(float) for shape in shapes]
    else:
        arrays = [rng.random(shape) * rng.integers(0, 2, shape) for shape in shapes]
    return arrays[0], arrays[1], arrays[2], arrays[3], micro_batches


@settings(deadline=None)
@given(candidates(), st.booleans(), st.booleans())
def test_1f1b_lies_between_its_bounds(
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int],
    overlap: bool,
    exclusive_links: bool,
) -> None:
    forward, backward, send, back, micro_batches = drawn
    exact = makespan_1f1b_batch(
        forward,
        backward,
        send,
        micro_batches,
        return_s=back,
        overlap=overlap,
        exclusive_links=exclusive_links,
    )
    below = lower_bound_1f1b(forward, backward, send, micro_batches, return_s=back, overlap=overlap)
    above = upper_bound_1f1b(forward, backward, send, micro_batches, return_s=back)
    assert (below <= exact * (1 + 1e-12)).all()
    assert (exact <= above * (1 + 1e-12)).all()


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), SECONDS, SECONDS)
def test_bounds_are_tight_for_equal_stages(
    stages: int, micro_batches: int, forward: float, backward: float
) -> None:
    one, two = np.full((1, stages), forward), np.full((1, stages), backward)
    exact = pytest.approx((micro_batches + stages - 1) * (forward + backward), rel=1e-12)
    assert lower_bound_1f1b(one, two, None, micro_batches)[0] == exact
    assert upper_bound_1f1b(one, two, None, micro_batches)[0] == exact


def test_lower_bound_is_at_least_every_stages_work_and_one_way_through() -> None:
    forward = np.array([[1.0, 5.0, 1.0]])
    send = np.array([[0.5, 0.25]])
    # The middle stage: 4 x 15 of work, and before and after it the first stage and its edge.
    assert lower_bound_1f1b(forward, 2 * forward, send, 4)[0] >= 60 + 1 + 2 + 2 * 0.5


def test_sailors_formula_is_only_an_estimate() -> None:
    # Its terms, by hand: 3 x max(3, 6 + transfers 1 + 1) + 9 + 2.
    forward, backward, send = np.array([[1.0, 2.0]]), np.array([[2.0, 4.0]]), np.array([[1.0]])
    assert sailor_estimate_1f1b(forward, backward, send, 4)[0] == 3 * 7 + 9 + 2
    # Four warm-up forwards of a slow first stage come before its first backward: it is too low.
    forward, backward = np.array([[1.0, 0, 0, 0]]), np.array([[0, 1.0, 0, 0]])
    exact = makespan_1f1b_batch(forward, backward, None, 8)[0]
    assert sailor_estimate_1f1b(forward, backward, None, 8)[0] < exact
    assert exact <= upper_bound_1f1b(forward, backward, None, 8)[0]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="candidates"):
        lower_bound_1f1b(np.ones(3), np.ones(3), None, 4)
    with pytest.raises(ValueError, match="transfers"):
        upper_bound_1f1b(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3)), 4)
