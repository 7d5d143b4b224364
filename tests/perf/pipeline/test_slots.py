"""Interleaved pipelines of many candidates at once end when the simulation says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.simulate import simulate
from hetcli.perf.pipeline.slots import finish_interleaved


@settings(deadline=None)
@given(
    st.integers(2, 6),
    st.integers(2, 4),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.1, 2.0]),
    st.integers(0, 2**32 - 1),
)
def test_stages_are_done_when_the_simulation_says(
    stages: int, chunks: int, groups: int, sending: float, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    micro_batches = groups * stages
    forward, backward = dice.random((2, 3, stages, chunks))
    send = sending * dice.random(stages)
    found = finish_interleaved(forward, backward, send, micro_batches)
    order = schedule("interleaved", stages, micro_batches, chunks)
    for candidate, finish in enumerate(found):
        timeline = simulate(
            order, forward[candidate].tolist(), backward[candidate].tolist(), send.tolist()
        )
        wanted = [timeline.of_stage(stage)[-1].end_s for stage in range(stages)]
        assert finish == pytest.approx(wanted, rel=1e-10)


def test_many_equal_stages_take_what_the_closed_form_says() -> None:
    even = np.full((1, 8, 4), 0.25)
    finish = finish_interleaved(even, 2 * even, np.zeros(8), 4096)
    assert finish.max() == pytest.approx((4096 + 7 / 4) * 3)
