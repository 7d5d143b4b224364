"""Scales keep order, hold every value and have ticks at round numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetcli.report.drawing import linear_axis, log_axis, percent

NUMBERS = st.lists(st.floats(1e-6, 1e15), min_size=1, max_size=6)


@given(NUMBERS)
def test_linear_axis_holds_all_values_in_order(values: list[float]) -> None:
    axis = linear_axis(values, 100)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= 100
    assert all(axis.low - 1e-9 <= tick <= axis.high * (1 + 1e-9) for tick in axis.ticks)
    assert axis.low >= 0


@given(NUMBERS)
def test_log_axis_holds_all_values_in_order(values: list[float]) -> None:
    axis = log_axis(values, 100)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert -0.01 <= places[0] <= places[-1] <= 100.01


def test_ticks_are_round() -> None:
    assert linear_axis([0.0, 10.0], 100).ticks == (0.0, 5.0, 10.0)
    assert log_axis([3.0, 500.0], 100).ticks == (1.0, 10.0, 100.0, 1000.0)


def test_nothing_of_nothing_is_no_length() -> None:
    assert percent(0, 0) == 0
    assert percent(1, 4) == 25
