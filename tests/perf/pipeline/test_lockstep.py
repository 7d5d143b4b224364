from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.perf.pipeline.lockstep import finish_1f1b
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.simulate import simulate

seconds = st.floats(min_value=0.0, max_value=4.0).map(lambda n: round(n, 3))


@st.composite
def candidates(draw: st.DrawFn) -> tuple[list[list[list[float]]], int]:
    """Forward, backward and transfer times of a few candidates, and the micro-batches."""
    stages = draw(st.integers(1, 6))
    count = draw(st.integers(1, 3))
    row = st.lists(seconds, min_size=stages, max_size=stages)
    times = [[draw(row), draw(row), draw(row)[: stages - 1]] for _ in range(count)]
    return times, draw(st.sampled_from([1, 2, 3, 5, 9, 40, 150]))


@settings(deadline=None)
@given(candidates())
def test_all_stages_in_step_end_as_the_simulator_says(
    problem: tuple[list[list[list[float]]], int],
) -> None:
    times, micro_batches = problem
    stages = len(times[0][0])
    order = schedule("1f1b", stages, micro_batches)
    found = finish_1f1b(
        [np.add(ahead, [*send, 0.0]) for ahead, _, send in times],
        [np.add(back, [0.0, *send]) for _, back, send in times],
        micro_batches,
    )
    for row, (ahead, back, send) in zip(found, times, strict=True):
        expected = simulate(order, ahead, back, send, overlap=False).stage_end_s
        assert row == pytest.approx(expected, rel=1e-12)


def test_a_slow_stage_that_takes_over_late_is_not_missed() -> None:
    # The last stage is slower by a thousandth only: it decides after hundreds of rounds.
    ahead, back = [[3.0, 1.0, 1.001]], [[3.0, 1.0, 3.001]]
    found = finish_1f1b(ahead, back, 2000)[0]
    order = schedule("1f1b", 3, 2000)
    expected = simulate(order, ahead[0], back[0], overlap=False).stage_end_s
    assert found == pytest.approx(expected, rel=1e-12)
