"""When to save: against a search over all intervals, and against a simulation of failures."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from hetcli.adapt.checkpoint import (
    _saving,
    best_interval,
    mean_time_between_failures,
    spare_nodes,
    spares_that_pay,
    work_share,
)

HOUR = 3600.0


@given(st.floats(1, 600), st.floats(0.5 * HOUR, 100 * HOUR), st.floats(0, 1800))
def test_no_other_interval_loses_noticeably_less(
    write_s: float, mtbf_s: float, restart_s: float
) -> None:
    best = best_interval(write_s, mtbf_s, restart_s)
    others = (best.interval_s * factor for factor in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0))
    top = max(_saving(each, write_s, mtbf_s, restart_s).goodput for each in others)
    assert best.goodput >= top * (1 - 1e-4)


def test_the_shares_of_the_time_add_up() -> None:
    saving = best_interval(60, 8 * HOUR, 600)
    assert saving.goodput + saving.writing + saving.repeated + saving.restarting == pytest.approx(1)
    assert min(saving.writing, saving.repeated, saving.restarting) > 0


def test_for_rare_failures_it_is_young_s_interval() -> None:
    """sqrt(2 d M), Communications of the ACM 17, 1974."""
    saving = best_interval(10, 1e6)
    assert saving.interval_s == pytest.approx((2 * 10 * 1e6) ** 0.5, rel=0.005)


def test_the_goodput_is_what_simulated_failures_leave() -> None:
    write_s, mtbf_s, restart_s = 60.0, 2 * HOUR, 300.0
    saving = best_interval(write_s, mtbf_s, restart_s)
    dice = random.Random(1)
    wall = 0.0
    rounds = 4000
    for _ in range(rounds):
        needed = saving.interval_s + write_s
        left = dice.expovariate(1 / mtbf_s)
        while left < needed:
            # The restart can itself be hit by the next failure.
            wall += left
            left = dice.expovariate(1 / mtbf_s)
            while left < restart_s:
                wall += left
                left = dice.expovariate(1 / mtbf_s)
            wall += restart_s
            left -= restart_s
        wall += needed
    assert saving.goodput == pytest.approx(rounds * saving.interval_s / wall, rel=0.01)


def test_a_cluster_of_1024_gpus_at_7_9_hours() -> None:
    """MTBF of arXiv 2410.21680; a 30 s write, 10 minutes to restart."""
    saving = best_interval(30, 7.9 * HOUR, 600)
    assert saving.interval_s == pytest.approx(21.6 * 60, rel=0.01)
    assert saving.goodput == pytest.approx(0.935, abs=0.005)


def test_more_devices_fail_more_often() -> None:
    assert mean_time_between_failures(1024, 1024 * HOUR) == HOUR


def test_writing_longer_than_failures_are_apart_is_still_answered() -> None:
    saving = best_interval(4 * HOUR, HOUR)
    assert saving.interval_s == HOUR
    assert 0 < saving.goodput < 0.1


@given(st.integers(1, 2000), st.floats(0.5, 0.999))
def test_spares_hold_with_the_asked_probability(nodes: int, confidence: float) -> None:
    mtbf_s, repair_s = 50_000 * HOUR, 24 * HOUR
    spares = spare_nodes(nodes, mtbf_s, repair_s, confidence)
    mean = nodes * repair_s / mtbf_s
    assert poisson.cdf(spares, mean) >= confidence
    assert spares == 0 or poisson.cdf(spares - 1, mean) < confidence


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="write_s"):
        best_interval(0, HOUR)
    with pytest.raises(ValueError, match="between 0 and 1"):
        spare_nodes(8, HOUR, HOUR, 1.0)


def test_the_speed_with_spares_is_what_simulated_failures_and_repairs_leave() -> None:
    nodes, spares, mtbf_s, repair_s, left = 16, 1, 200 * HOUR, 20 * HOUR, 0.8
    dice = random.Random(7)
    # Failures of a job that always has 16 nodes, each back after its repair: an M/D/inf queue.
    now, backs, done, end = 0.0, [], 0.0, 2e5 * HOUR
    while now < end:
        following = now + dice.expovariate(nodes / mtbf_s)
        for moment in [*[back for back in backs if back < following], following]:
            missing = max(0, sum(back >= moment for back in backs) - spares)
            done += (moment - now) * left**missing
            now = moment
        backs = [back for back in backs if back >= now]
        backs.append(now + repair_s)
    assert done / now == pytest.approx(work_share(nodes, spares, mtbf_s, repair_s, left), rel=0.01)


@given(st.integers(1, 40), st.floats(0, 5), st.floats(0, 1))
def test_no_other_number_of_spares_brings_more_work_a_node(
    nodes: int, mean: float, left: float
) -> None:
    repair_s = mean / nodes * HOUR
    spares, speed = spares_that_pay(nodes, HOUR, repair_s, left)
    assert 0 <= speed <= 1 + 1e-9
    for other in range(nodes + 1):
        work = work_share(nodes, other, HOUR, repair_s, left)
        assert work / (nodes + other) <= speed / (nodes + spares) * (1 + 1e-9)


def test_a_job_that_hardly_feels_a_missing_node_holds_no_spare() -> None:
    assert spares_that_pay(8, 1000 * HOUR, 10 * HOUR, 0.99)[0] == 0
    # One that waits for every repair does.
    assert spares_that_pay(128, 1000 * HOUR, 48 * HOUR, 0.0)[0] > 6
