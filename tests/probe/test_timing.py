"""Repeats, warm-up and limits, on a clock that the test moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from hetcli.probe.timing import Deadline, measure, spread, wall_clock


class Clock:
    """Operations take the seconds that `costs` lists, one after the other."""

    def __init__(self, costs: Iterable[float]) -> None:
        self.now = 100.0
        self.costs = iter(costs)
        self.runs = 0

    def __call__(self) -> float:
        return self.now

    def timer(self, operation: Callable[[], object]) -> float:
        operation()
        self.runs += 1
        cost = next(self.costs)
        self.now += cost
        return cost


def test_a_deadline_counts_down_to_zero_and_stays_there() -> None:
    clock = Clock(())
    deadline = Deadline(2.0, clock=clock)
    assert (deadline.left, deadline.passed) == (2.0, False)
    clock.now += 5
    assert (deadline.left, deadline.passed) == (0.0, True)


def test_median_percentile_and_minimum() -> None:
    found = spread([float(number) for number in range(1, 101)])
    assert (found.median, found.p95, found.minimum, found.repeats) == (50.5, 95.0, 1.0, 100)


def test_outliers_are_counted_and_do_not_move_the_median() -> None:
    found = spread([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 9.0])
    assert (found.median, found.outliers) == (1.0, 1)


def test_jitter_below_a_tenth_is_no_outlier() -> None:
    assert spread([1.0, 1.0, 1.0, 1.0, 1.05]).outliers == 0


def test_the_slow_first_runs_are_not_in_the_result() -> None:
    clock = Clock(itertools.chain([9.0, 5.0, 4.0, 2.0, 1.5, 1.2], itertools.repeat(1.0)))
    found = measure(lambda: None, timer=clock.timer, seconds=1000, clock=clock)
    assert (found.median, found.p95, found.repeats) == (1.0, 1.0, 20)


def test_a_steady_operation_is_warm_after_two_windows() -> None:
    clock = Clock(itertools.repeat(1.0))
    measure(lambda: None, timer=clock.timer, seconds=1000, clock=clock)
    assert clock.runs == 2 * 3 + 20


def test_the_warm_up_of_a_restless_operation_ends_in_time() -> None:
    clock = Clock(itertools.cycle([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]))
    found = measure(lambda: None, timer=clock.timer, seconds=20, clock=clock)
    assert 100 + 20 <= clock.now <= 100 + 22
    assert found.repeats >= 3


def test_three_repeats_are_taken_however_long_they_last() -> None:
    clock = Clock(itertools.repeat(5.0))
    found = measure(lambda: None, timer=clock.timer, seconds=1, clock=clock)
    assert (found.median, found.repeats, clock.runs) == (5.0, 3, 4)


def test_the_wall_clock_waits_for_the_operation() -> None:
    import time

    assert wall_clock(lambda: time.sleep(0.02)) == pytest.approx(0.02, abs=0.015)
