from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import NAMES, small_schedules

from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.in_flight import in_flight
from hetcli.perf.pipeline.schedules import schedule


@pytest.mark.parametrize("name", NAMES)
def test_closed_forms_count_what_the_orders_hold(name: ScheduleName) -> None:
    for order, group in small_schedules(name):
        for stage, chunks in enumerate(order.chunks):
            held = order.held(stage, (1.0,) * chunks)
            assert min(held) >= 0
            assert held[-1] == 0
            assert max(held) / chunks == in_flight(
                name,
                order.stages,
                stage,
                order.micro_batches,
                chunks,
                micro_batch_group_size=group,
            )


def test_1f1b_holds_fewer_towards_the_end() -> None:
    # Case inflight-1f1b: github.com/deepspeedai/DeepSpeed/issues/4477, 8 stages, 16 micro-batches.
    assert [in_flight("1f1b", 8, stage, 16) for stage in range(8)] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [in_flight("1f1b", 8, stage, 3) for stage in range(8)] == [3, 3, 3, 3, 3, 3, 2, 1]


@settings(deadline=None)
@given(st.integers(2, 64), st.integers(2, 8))
def test_interleaved_holds_what_korthikanti_says(stages: int, chunks: int) -> None:
    # arXiv 2205.05198, section 4.2.3: 1 + (p - 1)/(p v) times the p micro-batches of 1F1B.
    expected = stages * (1 + (stages - 1) / (stages * chunks))
    assert in_flight("interleaved", stages, 0, 4 * stages, chunks) == pytest.approx(expected)


def test_chimera_holds_what_its_table_says() -> None:
    # arXiv 2107.06925, table 2: activations of D/2 + 1 to D micro-batches, each in one of the two
    # model parts that a device holds.
    held = [2 * in_flight("bidirectional", 8, stage, 8) for stage in range(8)]
    assert held == [5, 6, 7, 8, 8, 7, 6, 5]


@pytest.mark.parametrize("name", ["zb-h1", "zb-v"])
def test_zero_bubble_holds_as_much_as_1f1bs_first_stage(name: ScheduleName) -> None:
    # arXiv 2401.10241: ZB-H1 and ZB-V need no more than p micro-batches' activations.
    held = [in_flight(name, 6, stage, 24) for stage in range(6)]
    assert held == [in_flight("1f1b", 6, 0, 24)] * 6


def test_unequal_chunks_are_summed_exactly() -> None:
    order = schedule("interleaved", 2, 2, 2)
    # Stage 1 runs F(0,c0) F(1,c0) F(0,c1) B ...: two of the small chunk, one of the large one.
    assert max(order.held(1, (10.0, 100.0))) == 120.0
    assert max(order.held(0, (10.0, 100.0))) == 220.0
