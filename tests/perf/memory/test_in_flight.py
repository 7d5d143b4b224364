"""Micro-batches that a stage holds, by schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.perf.memory import held_chunks, in_flight
from hetcli.perf.pipeline.schedules import schedule


def walked(works, chunks):
    """The most of every chunk-weighted sum, by brute force over the order of works."""
    held, moments = [0] * chunks, []
    for kind, _, chunk in works:
        if kind == "forward":
            held[chunk] += 1
        elif kind != "backward-input":
            held[chunk] -= 1
        moments.append(tuple(held))
    return moments


def test_1f1b_holds_fewer_micro_batches_the_later_the_stage():
    # https://github.com/deepspeedai/DeepSpeed/issues/4477 (case inflight-1f1b)
    held = [in_flight("1f1b", 8, stage, 16) for stage in range(8)]
    assert held == [8, 7, 6, 5, 4, 3, 2, 1]


def test_1f1b_never_holds_more_than_there_are():
    assert [in_flight("1f1b", 8, stage, 3) for stage in range(8)] == [3, 3, 3, 3, 3, 3, 2, 1]


@given(
    name=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    stages=st.integers(1, 9),
    micro_batches=st.integers(1, 20),
)
def test_closed_forms_are_the_peaks_of_the_order_of_works(name, stages, micro_batches):
    order = schedule(name, stages, micro_batches).order
    for stage in range(stages):
        most = max(walked(order[stage], 1))
        assert held_chunks(name, stages, stage, micro_batches) == (most,)


def test_interleaving_holds_what_korthikanti_says():
    # arXiv 2205.05198, section 4.2.3: 1 + (p - 1)/(p·m) of p micro-batches on the first stage.
    for stages, chunks in ((4, 2), (8, 3)):
        expected = stages * (1 + (stages - 1) / (stages * chunks))
        assert in_flight("interleaved", stages, 0, 8 * stages, chunks) == pytest.approx(expected)


@given(
    stages=st.integers(2, 5),
    chunks=st.integers(2, 4),
    groups=st.integers(1, 7),
    weights=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    data=st.data(),
)
def test_no_moment_of_a_longer_interleaved_run_is_fuller(stages, chunks, groups, weights, data):
    stage = data.draw(st.integers(0, stages - 1))
    micro_batches = groups * stages
    works = schedule("interleaved", stages, micro_batches, chunks).order[stage]

    def weigh(moment):
        return sum(w * n for w, n in zip(weights, moment, strict=False))

    expected = max(weigh(moment) for moment in walked(works, chunks))
    held = held_chunks("interleaved", stages, stage, micro_batches, chunks)
    assert max(weigh(moment) for moment in held) == expected


@pytest.mark.parametrize(("name", "chunks"), [("zb-v", 2), ("wave", 2), ("bidirectional", 2)])
def test_folded_schedules_hold_what_their_orders_say(name, chunks):
    stages, micro_batches = 4, 8
    for stage in range(stages):
        works = schedule(name, stages, micro_batches, chunks).order[stage]
        most = max(sum(moment) for moment in walked(works, chunks))
        assert in_flight(name, stages, stage, micro_batches, chunks) == most / chunks


def test_the_v_schedule_balances_what_stages_hold():
    # Zero bubble pipeline parallelism, arXiv 2401.10241, section 6: as much as 1F1B's first stage,
    # on every stage.
    held = [in_flight("zb-v", 4, stage, 16, 2) for stage in range(4)]
    assert max(held) <= 4
    assert max(held) - min(held) <= 1
