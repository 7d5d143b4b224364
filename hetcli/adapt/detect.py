"""Tell a slow device from a long batch.

A micro-batch of sequences of lengths l takes alpha * sum(l) + beta * sum(l^2): projections grow
with the tokens, attention with the square (ResiHP, arXiv 2605.06374). The law is fitted while all
is well; afterwards only what it does not explain can raise an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, nnls

__all__ = [
    "BatchLaw",
    "Detector",
    "Sample",
    "Verdict",
    "explain",
    "fit_law",
    "threshold",
]

# Median absolute deviation to standard deviation of a normal distribution.
_MAD: Final = 1.4826
# Least spread assumed: clocks and kernels vary at least this much, however short the calibration.
_LEAST_SPREAD: Final = 0.01
# One reading counts at most this many standard deviations: a hiccup is no slow device.
_MOST: Final = 4.0
# Steps between two false alarms: 0.3 in 1,000 steps at most, aimed at ten times as few.
_STEPS_BETWEEN_FALSE_ALARMS: Final = 10 * 1000 / 0.3
# Siegmund's correction for the overshoot of a random walk (Sequential Analysis, 1985, ch. X).
_OVERSHOOT: Final = 1.166
# A slow-down of this much is to be found; smaller ones are found later.
_SLOWDOWN: Final = 1.05


class Sample(NamedTuple):
    """One micro-batch on one device: the lengths of its sequences and the seconds it took."""

    lengths: Sequence[int]
    seconds: float


@dataclass(frozen=True, slots=True)
class BatchLaw:
    """Seconds of a micro-batch: `per_token_s` a token, `per_square_s` for each squared length.

    `spread` is the standard deviation of log(measured / law) on healthy micro-batches.
    """

    per_token_s: float
    per_square_s: float
    spread: float

    def seconds(self, lengths: Sequence[int]) -> float:
        """What a micro-batch should take."""
        return self.per_token_s * sum(lengths) + self.per_square_s * sum(n * n for n in lengths)

    def residual(self, sample: Sample) -> float:
        """log(measured / law): 0 is as it should be, 0.1 a tenth slower."""
        return math.log(sample.seconds / self.seconds(sample.lengths))


def fit_law(samples: Sequence[Sample]) -> BatchLaw:
    """The law of healthy micro-batches, robustly: hiccups among them don't count.

    Raises ValueError for fewer than 8 samples, which could not tell noise from law.
    """
    if len(samples) < 8:
        raise ValueError(f"{len(samples)} micro-batches are too few to fit a law; give 8 or more")
    table = np.array(
        [[sum(each.lengths), sum(n * n for n in each.lengths)] for each in samples], dtype=float
    )
    seconds = np.array([each.seconds for each in samples])
    weights = 1 / seconds
    for _ in range(10):
        scale = table.max(axis=0)
        found, _ = nnls(table / scale * weights[:, None], seconds * weights)
        fitted = table @ (found / scale)
        off = np.log(seconds / fitted)
        spread = _spread(off)
        # Huber's weights: what lies far off pulls no harder than what lies at 1.5 deviations.
        pull = np.minimum(1.0, 1.5 * spread / np.maximum(np.abs(off), 1e-12))
        weights = np.sqrt(pull) / seconds
    per_token, per_square = found / scale
    return BatchLaw(float(per_token), float(per_square), spread)


def _spread(values: NDArray[np.float64]) -> float:
    deviation = float(np.median(np.abs(values - np.median(values))))
    return max(_MAD * deviation, _LEAST_SPREAD)


def threshold(allowance: float, steps: float = _STEPS_BETWEEN_FALSE_ALARMS) -> float:
    """The level of a cumulative sum that noise reaches once in `steps` steps.

    Siegmund's approximation: steps = (exp(2kb) - 2kb - 1) / 2k^2 with k the allowance a step and
    b = level + 1.166, all in standard deviations.
    """

    def excess(level: float) -> float:
        reach = 2 * allowance * (level + _OVERSHOOT)
        return (math.exp(reach) - reach - 1) / (2 * allowance**2) - steps

    return float(brentq(excess, 0.0, 100.0 / allowance))


class Detector:
    """A one-sided cumulative sum over the residuals of one device (Page, 1954).

    Each step counts how far its residual is above half the slow-down that is looked for; the sum
    never falls below zero, and an alarm is raised when it passes the threshold.
    """

    def __init__(self, law: BatchLaw) -> None:
        self._law = law
        self._allowance = max(0.5 * math.log(_SLOWDOWN) / law.spread, 0.5)
        self._threshold = threshold(self._allowance)
        self._sum = 0.0
        self._since: list[float] = []

    def step(self, samples: Sequence[Sample]) -> bool:
        """Take one step's micro-batches; True while the device is slow."""
        residual = float(np.median([self._law.residual(each) for each in samples]))
        # The median of n readings has about 1.25 / sqrt(n) of their spread.
        spread = self._law.spread * (1.0 if len(samples) == 1 else 1.2533 / math.sqrt(len(samples)))
        spread = max(spread, _LEAST_SPREAD)
        score = max(-_MOST, min(_MOST, residual / spread))
        self._sum = max(0.0, self._sum + score - self._allowance)
        if self._sum == 0.0:
            self._since.clear()
        else:
            self._since.append(residual)
        return self._sum > self._threshold

    @property
    def slowness(self) -> float:
        """How many times as long as it should the device takes since the sum began to grow."""
        return math.exp(float(np.median(self._since))) if self._since else 1.0


class Verdict(NamedTuple):
    """What explains slow steps: one device, all of a node, or the link between two."""

    kind: str
    names: tuple[str, ...]
    slowness: float


def explain(
    compute: Mapping[tuple[str, int], float],
    transfers: Mapping[tuple[str, str], float],
    *,
    least: float = 1.1,
) -> tuple[Verdict, ...]:
    """Who is slow, worst first.

    `compute` is each device's (node, index) own computing time over its law's; `transfers` the time
    of messages between two nodes over what was measured before. Waiting for others must be in
    neither. A node all of whose devices are slow is named as a whole.
    """
    found: list[Verdict] = []
    nodes: dict[str, list[tuple[int, float]]] = {}
    for (node, index), ratio in compute.items():
        nodes.setdefault(node, []).append((index, ratio))
    for node, devices in nodes.items():
        slow = [(index, ratio) for index, ratio in devices if ratio >= least]
        if len(slow) == len(devices) > 1:
            found.append(Verdict("node", (node,), max(ratio for _, ratio in slow)))
        else:
            found += [Verdict("device", (f"{node}:{index}",), ratio) for index, ratio in slow]
    found += [Verdict("link", pair, ratio) for pair, ratio in transfers.items() if ratio >= least]
    return tuple(sorted(found, key=lambda each: (-each.slowness, each.names)))
