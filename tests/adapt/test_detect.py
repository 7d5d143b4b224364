"""Slow devices are found on batches of skewed lengths, and long batches raise no alarm."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from hetcli.adapt.detect import Detector, Verdict, explain, fit_law, threshold

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from testbed.batches import NOISE, TRUE, false_alarms, found, law, sample


def test_the_law_is_recovered_in_spite_of_hiccups() -> None:
    fitted = law(random.Random(1))
    assert fitted.per_token_s == pytest.approx(TRUE.per_token_s, rel=0.02)
    assert fitted.per_square_s == pytest.approx(TRUE.per_square_s, rel=0.02)
    assert fitted.spread == pytest.approx(NOISE, rel=0.25)


def test_too_few_micro_batches_are_refused() -> None:
    dice = random.Random(1)
    with pytest.raises(ValueError, match="7 micro-batches are too few"):
        fit_law([sample(dice) for _ in range(7)])


def test_faults_at_three_to_nine_tenths_of_the_speed_are_found() -> None:
    assert found(random.Random(2), runs=60) >= 0.99


def test_skewed_lengths_alone_raise_next_to_no_alarm() -> None:
    assert false_alarms(random.Random(3), runs=10, steps=1000) <= 0.3


def test_without_the_law_the_same_batches_would_look_like_faults() -> None:
    """The test's lengths are skewed enough that a plain average could not tell."""
    dice = random.Random(4)
    seconds = [sample(dice).seconds for _ in range(500)]
    mean = sum(seconds) / len(seconds)
    assert sum(value > mean / 0.7 for value in seconds) > 0.1 * len(seconds)


def test_the_slowness_is_estimated_and_the_alarm_ends_with_the_fault() -> None:
    dice = random.Random(5)
    detector = Detector(law(dice))
    for _ in range(30):
        alarm = detector.step([sample(dice, speed=0.5) for _ in range(4)])
    assert alarm
    assert detector.slowness == pytest.approx(2.0, rel=0.05)
    for _ in range(400):
        alarm = detector.step([sample(dice) for _ in range(4)])
    assert not alarm


def test_the_threshold_is_what_noise_reaches_as_seldom_as_asked() -> None:
    """Run lengths of pure noise against Siegmund's approximation."""
    dice = random.Random(6)
    allowance, wanted = 0.5, 400.0
    level = threshold(allowance, wanted)
    lengths = []
    for _ in range(400):
        total, count = 0.0, 0
        while total <= level:
            total = max(0.0, total + dice.gauss(0, 1) - allowance)
            count += 1
        lengths.append(count)
    assert sum(lengths) / len(lengths) == pytest.approx(wanted, rel=0.2)


def test_a_device_a_whole_node_and_a_link_are_told_apart() -> None:
    compute = {("a", 0): 1.0, ("a", 1): 1.5, ("b", 0): 1.3, ("b", 1): 1.4, ("c", 0): 1.02}
    transfers = {("a", "b"): 1.01, ("b", "c"): 3.0}
    assert explain(compute, transfers) == (
        Verdict("link", ("b", "c"), 3.0),
        Verdict("device", ("a:1",), 1.5),
        Verdict("node", ("b",), 1.4),
    )


def test_all_well_is_no_verdict() -> None:
    assert explain({("a", 0): 1.0, ("a", 1): 1.05}, {("a", "b"): 1.0}) == ()
