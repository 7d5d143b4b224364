"""What 1F1B takes at least where the stages of a run take equally long for a layer.

With m micro-batches over p stages, t_k seconds of one on stage k with its messages, and S of one
through all stages: while the first micro-batch is under way, and again while the last one is, stage
k waits for the stages after it for as long as the micro-batches that it holds, p - k of them, do
not fill. So the step takes at least S + (m - p + k) t_k + sum of t_j over j > k, and where m = p,
at least S + (m - 1) / 2 t_0 (`lower_bound_1f1b` has the proof's terms).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["highest_rates", "layer_rates", "pipeline_bounds", "stage_weights"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def stage_weights(stages: int, micro_batches: int) -> tuple[Floats, Floats]:
    """The factor of t_k in the bound of every stage, and whether later stages count there."""
    weights = np.arange(micro_batches - stages, micro_batches, dtype=np.float64)
    behind = (weights > 0).astype(np.float64)
    return np.where(weights > 0, weights, (micro_batches - 1) / 2), behind


def layer_rates(micro_batches: int, counts: Ints, unit: Floats) -> Floats:
    """Layers that the stages can hold for every second of a step beyond S, [candidates].

    It is the optimum of the linear programme over the t_k; its dual is solved stage by stage, and
    over a run of equal stages in closed form: what the prices of the stages so far lack of
    1 / unit shrinks by (w - 1) / w at a stage of weight w.

    Args:
        micro_batches: at least as many as stages.
        counts: stages of each run, [candidates, runs], at least 1.
        unit: seconds of a layer on each run, [candidates, runs].
    """
    weight = micro_batches - counts.sum(axis=1)
    full = weight == 0
    alone = np.zeros(len(counts))
    with np.errstate(divide="ignore"):
        alone[full] = 2 / np.multiply(micro_batches - 1, unit[full, 0])
    counts = counts.copy()
    counts[:, 0] -= full
    return alone + _priced(np.maximum(weight, 1), counts, 1 / unit)


def highest_rates(micro_batches: int, counts: Ints, unit: Floats) -> Floats:
    """The same for the best order of the stages, [candidates]; no stages of a kind may be there.

    Of two neighbours the faster one had better be first: it never lowers the prices.
    """
    weight = micro_batches - counts.sum(axis=1)
    fastest = np.argsort(unit, kind="stable")
    counts, rate = counts[:, fastest], 1 / unit[fastest]
    found = _priced(np.maximum(weight, 1), counts, np.broadcast_to(rate, counts.shape))
    full = weight == 0
    with np.errstate(divide="ignore"):
        best = np.where(counts > 0, rate, 0.0).max(axis=1)
        found[full] = best[full] * (1 + 2 / np.float64(micro_batches - 1))
    return found


def _priced(weight: Ints, counts: Ints, rate: Floats) -> Floats:
    """The sum of the prices of all stages; the first one has `weight`."""
    found = np.zeros(len(counts))
    for run in range(counts.shape[1]):
        number = counts[:, run]
        left = np.where(number > 0, (weight - 1) / np.maximum(weight + number - 1, 1), 1.0)
        found += np.maximum(rate[:, run] - found, 0) * (1 - left)
        weight = weight + number
    return found


def pipeline_bounds(
    unit: Floats, most: Ints, layers: int, micro_batches: int, deepest: int, *, passes: bool
) -> Floats:
    """Seconds that no pipeline of 1, 2, .. stages beats, from what its layers alone take.

    Args:
        unit: seconds of a micro-batch on each pool, the mean layer of one pool being a unit.
        most: stages that each pool holds.
        layers: of the model.
        micro_batches: of a replica.
        deepest: most stages of a pipeline.
        passes: whether the stages run 1F1B; else only their work counts.
    """
    fastest = np.argsort(unit, kind="stable")[: int((most > 0).sum())]
    unit, most = unit[fastest], most[fastest]
    number = np.arange(1, min(deepest, int(most.sum())) + 1)
    counts = np.clip(number[:, None] - (np.cumsum(most) - most), 0, most)
    working: Floats = micro_batches * layers / (counts / unit).sum(axis=1)
    if not passes:
        return working
    passing = layers * unit[0] + layers / highest_rates(micro_batches, counts, unit)
    found: Floats = np.maximum(working, passing)
    return found
