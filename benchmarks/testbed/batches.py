"""Simulated micro-batches of skewed lengths on a device that may be slow, and who finds that out.

Sequence lengths are log-normal, so that plain averages cannot tell a slow device from long batches
(ResiHP, arXiv 2605.06374, section 2).
"""

from __future__ import annotations

import math
import random

from hetcli.adapt.detect import BatchLaw, Detector, Sample, fit_law

__all__ = ["NOISE", "SPEEDS", "TRUE", "false_alarms", "found", "law", "sample"]

# Seconds a token and a squared token: at 8k tokens attention takes as long as the projections.
TRUE = BatchLaw(2e-6, 2.5e-10, 0.0)
NOISE = 0.02
# What a slow device has left of its speed.
SPEEDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MICRO_BATCHES = 4
CALIBRATION = 200
HEALTHY_STEPS = 30
STEPS_TO_FIND = 20


def sample(dice: random.Random, *, speed: float = 1.0, noise: float = NOISE) -> Sample:
    """A micro-batch of a few sequences with log-normal lengths; now and then it hiccups."""
    lengths = [
        max(16, min(32768, round(dice.lognormvariate(7.0, 1.0)))) for _ in range(dice.randint(1, 6))
    ]
    seconds = TRUE.seconds(lengths) / speed * math.exp(dice.gauss(0, noise))
    if dice.random() < 0.01:
        seconds *= dice.uniform(1.5, 4.0)
    return Sample(lengths, seconds)


def law(dice: random.Random) -> BatchLaw:
    """Fitted on micro-batches of a healthy device."""
    return fit_law([sample(dice) for _ in range(CALIBRATION)])


def _step(detector: Detector, dice: random.Random, speed: float = 1.0) -> bool:
    return detector.step([sample(dice, speed=speed) for _ in range(MICRO_BATCHES)])


def found(dice: random.Random, runs: int) -> float:
    """Share of faults that raise an alarm within `STEPS_TO_FIND` steps, `runs` at every speed."""
    hits = 0
    for speed in SPEEDS:
        for _ in range(runs):
            detector = Detector(law(dice))
            for _ in range(HEALTHY_STEPS):
                _step(detector, dice)
            hits += any(_step(detector, dice, speed) for _ in range(STEPS_TO_FIND))
    return hits / (len(SPEEDS) * runs)


def false_alarms(dice: random.Random, runs: int, steps: int) -> float:
    """Alarms in 1,000 steps of healthy devices."""
    alarms = 0
    for _ in range(runs):
        detector = Detector(law(dice))
        before = False
        for _ in range(steps):
            now = _step(detector, dice)
            alarms += now and not before
            before = now
    return alarms / (runs * steps) * 1000
