"""Two models on the same devices, with the settings that RLHFuse (arXiv 2409.13221) reports."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.errors import ConfigurationError
from hetcli.perf.pipeline.closed_forms import equal_stage_makespan
from hetcli.perf.pipeline.fused import (
    FusedModel,
    fused_lower_bound,
    fused_schedule,
    fused_times,
)
from hetcli.perf.pipeline.in_flight import in_flight
from hetcli.perf.pipeline.simulate import simulate


def model(stages: int, micro_batches: int, forward: float) -> FusedModel:
    return FusedModel((forward,) * stages, (2 * forward,) * stages, micro_batches)


@pytest.mark.parametrize(
    ("first", "second", "bound", "serial"),
    [
        ((8, 32, 5.0), (4, 16, 4.0), 708, 813),
        ((8, 16, 5.0), (8, 16, 2.0), 366, 483),
        ((16, 64, 2.0), (16, 64, 1.0), 606, 711),
    ],
)
def test_rlhfuses_bound_and_serial_time_and_an_order_in_between(
    first: tuple[int, int, float], second: tuple[int, int, float], bound: float, serial: float
) -> None:
    one_after_the_other = sum(
        equal_stage_makespan("1f1b", stages, micro_batches, forward, 2 * forward) or 0
        for stages, micro_batches, forward in (first, second)
    )
    assert one_after_the_other == serial
    one, two = model(*first), model(*second)
    assert fused_lower_bound(one, two) == bound
    fused = simulate(fused_schedule(one, two), *fused_times(one, two))
    assert bound <= fused.makespan_s < serial


def models(stages: int) -> st.SearchStrategy[FusedModel]:
    times = st.lists(st.floats(0.1, 5), min_size=stages, max_size=stages).map(tuple)
    return st.builds(FusedModel, times, times, st.integers(1, 8))


@settings(deadline=None)
@given(
    st.sampled_from([(4, 4), (4, 2), (2, 4), (6, 3), (1, 4)]).flatmap(
        lambda stages: st.tuples(models(stages[0]), models(stages[1]))
    )
)
def test_no_fused_order_beats_the_bound_or_holds_more_than_1f1b(
    pair: tuple[FusedModel, FusedModel],
) -> None:
    order = fused_schedule(*pair)
    timeline = simulate(order, *fused_times(*pair))
    assert timeline.makespan_s >= fused_lower_bound(*pair) * (1 - 1e-12)
    for device in range(order.stages):
        for chunk, one in enumerate(pair):
            sizes = (1.0, 0.0) if chunk == 0 else (0.0, 1.0)
            position = device % one.stages
            stage = one.stages - 1 - position if chunk else position
            allowed = in_flight("1f1b", one.stages, stage, one.micro_batches)
            assert max(order.held(device, sizes)) <= allowed


def test_pipelines_that_do_not_fit_side_by_side_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="whole number") as refused:
        fused_schedule(model(8, 4, 1.0), model(3, 4, 1.0))
    assert "6 or 9 stages beside 3" in refused.value.fix
