from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import schedules

from hetcli.perf.pipeline import batch
from hetcli.perf.pipeline.batch import makespan_1f1b_batch, makespan_batch
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.simulate import simulate
from hetcli.perf.pipeline.work import Schedule

SEEDS = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(schedules(), SEEDS, st.booleans(), st.booleans())
def test_every_candidate_gets_its_simulated_makespan_to_the_last_bit(
    order: Schedule, seed: int, overlap: bool, exclusive_links: bool
) -> None:
    rng = np.random.default_rng(seed)
    shape = (3, order.stages, max(order.chunks))
    forward, weight = rng.random(shape), rng.random(shape)
    backward = weight + rng.random(shape)
    send, back = rng.random((3, order.stages)), rng.random((3, order.stages))
    found = makespan_batch(
        order,
        forward,
        backward,
        send,
        return_s=back,
        weight_s=weight,
        overlap=overlap,
        exclusive_links=exclusive_links,
    )
    expected = [
        simulate(
            order,
            forward[i].tolist(),
            backward[i].tolist(),
            send[i].tolist(),
            return_s=back[i].tolist(),
            weight_s=weight[i].tolist(),
            overlap=overlap,
            exclusive_links=exclusive_links,
        ).makespan_s
        for i in range(3)
    ]
    assert found.tolist() == expected


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), SEEDS, st.booleans())
def test_1f1b_with_unequal_stages_and_transfers(
    stages: int, micro_batches: int, seed: int, overlap: bool
) -> None:
    rng = np.random.default_rng(seed)
    forward, backward = rng.random((4, stages)), 2 * rng.random((4, stages))
    send = rng.random((4, stages - 1))
    found = makespan_1f1b_batch(forward, backward, send, micro_batches, overlap=overlap)
    order = schedule("1f1b", stages, micro_batches)
    assert found.tolist() == [
        simulate(order, f.tolist(), b.tolist(), s.tolist(), overlap=overlap).makespan_s
        for f, b, s in zip(forward, backward, send, strict=True)
    ]


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    forward, send = rng.random((50, 4)), rng.random((50, 3))
    whole = makespan_1f1b_batch(forward, forward, send, 9)
    monkeypatch.setattr(batch, "_BLOCK", 7)
    assert (makespan_1f1b_batch(forward, forward, send, 9) == whole).all()


def test_inputs_are_left_alone() -> None:
    forward, backward, send = np.ones((2, 3)), np.full((2, 3), 2.0), np.ones((2, 2))
    makespan_1f1b_batch(forward, backward, send, 4, overlap=False)
    assert (forward == 1).all()
    assert (backward == 2).all()
    assert (send == 1).all()


def test_no_candidates_have_no_makespans() -> None:
    assert makespan_1f1b_batch(np.ones((0, 3)), np.ones((0, 3)), None, 4).shape == (0,)


def test_ten_thousand_candidates_take_less_than_a_second() -> None:
    rng = np.random.default_rng(0)
    forward, backward = rng.random((10_000, 16)), rng.random((10_000, 16))
    send = rng.random((10_000, 15))
    start = time.perf_counter()
    makespan_1f1b_batch(forward, backward, send, 64)
    assert time.perf_counter() - start < 1  # about 0.05 s where nothing else runs


@pytest.mark.parametrize(
    ("forward", "send", "message"),
    [
        (np.ones(3), None, "candidates"),
        (np.ones((2, 3, 2)), None, "candidates"),
        (np.ones((2, 3)), np.ones((2, 1)), "edges"),
        (np.ones((2, 3)), np.ones((1, 2)), "edges"),
        (np.ones((2, 3)), np.ones(2), "edges"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    forward: np.ndarray, send: np.ndarray | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        makespan_1f1b_batch(forward, forward, send, 4)


def test_a_split_backward_needs_its_split() -> None:
    with pytest.raises(ValueError, match="weight_s is needed"):
        makespan_batch(schedule("zb-h1", 2, 2), np.ones((1, 2)), np.ones((1, 2)))


def test_a_pass_for_another_number_of_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match="candidates"):
        makespan_1f1b_batch(np.ones((2, 3)), np.ones((1, 3)), None, 4)
