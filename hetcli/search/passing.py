"""What 1F1B takes at least where the stages of a run take equally long for a layer.

With m micro-batches over p stages, t_k seconds of one on stage k with its messages, and S of one
through all stages: while the first micro-batch is under way, and again while the last one is, stage
k waits for the stages after it for as long as the micro-batches that it holds, p - k of them, do
not fill. So the step takes at least S + (m - p + k) t_k + sum of t_j over j > k, and where m = p,
at least S + (m - 1) / 2 t_0 (`lower_bound_1f1b` has the proof's terms).

With chunks of the model a micro-batch that comes to stage k for the first time, or leaves it for
the last one, passes only the first chunks of the stages before: the step takes at least m t_k and a
part c of the sum of t_j over j < k, where the first chunk is the part c of a stage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from hetcli.perf.rules import interleaving_is_legal

__all__ = [
    "chunk_rates",
    "highest_chunk_rates",
    "highest_rates",
    "layer_rates",
    "pipeline_bounds",
    "stage_weights",
    "warm_up_works",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


# What rounding may do to a product of many factors, as a share of it.
_ROUNDING = 1e-9


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


def chunk_rates(micro_batches: int, counts: Ints, unit: Floats, part: float) -> Floats:
    """Layers that stages with several chunks can hold for every second of a step, [candidates].

    The same programme: from the last stage on, the prices so far lack of 1 / (c unit) what shrinks
    by 1 - c / m at every stage.

    Args:
        micro_batches: of a replica.
        counts: stages of each run, [candidates, runs].
        unit: seconds of a layer of all chunks on each run, [candidates, runs].
        part: c, the part of a stage that its first chunk is.
    """
    found = np.zeros(len(counts))
    for run in reversed(range(counts.shape[1])):
        filled = -np.expm1(counts[:, run] * np.log1p(-part / micro_batches))
        found += np.maximum(1 / (part * unit[:, run]) - found, 0) * filled
    return found


def highest_chunk_rates(micro_batches: int, counts: Ints, unit: Floats, part: float) -> Floats:
    """The same for the best order of the stages, the fastest first; some kinds may be missing."""
    fastest = np.argsort(unit, kind="stable")
    each = np.broadcast_to(unit[fastest], counts.shape)
    return chunk_rates(micro_batches, counts[:, fastest], each, part)


def warm_up_rates(micro_batches: int, counts: Ints, unit: Floats, chunks: int) -> Floats:
    """Layers that stages with several chunks can hold for every second beyond S, [candidates].

    While the first micro-batch goes through all chunks and back, stage k does w_k forwards only,
    and w_k backwards after its last forward (`warm_up_works`), of its m v: the step takes at least
    S + (m - w_k / v) t_k and the last chunks of the stages after it, 1 / v of them. Again it is the
    dual of the linear programme, stage by stage.

    Args:
        micro_batches: of a replica.
        counts: stages of each run, [candidates, runs].
        unit: seconds of a layer of all chunks on each run, [candidates, runs].
        chunks: v; they must be alike.
    """
    stages = counts.sum(axis=1)
    # v (m - w_k / v), of the first stage; it grows by two from stage to stage.
    weight = chunks * micro_batches - 2 * (stages - 1) - (chunks - 1) * stages - 1
    short = weight < 2
    weight = np.where(short, 2, weight)
    found = np.zeros(len(counts))
    for run in range(counts.shape[1]):
        stop = weight + 2 * counts[:, run]
        left = np.exp(
            gammaln((stop - 1) / 2)
            - gammaln(stop / 2)
            - gammaln((weight - 1) / 2)
            + gammaln(weight / 2)
        )
        found += np.maximum(chunks / unit[:, run] - found, 0) * (1 - left)
        weight = stop
    # With so few micro-batches nothing is said of the first stages.
    found[short] = np.inf
    return found * (1 + _ROUNDING)


def highest_warm_up_rates(micro_batches: int, counts: Ints, unit: Floats, chunks: int) -> Floats:
    """The same for the best order of the stages, the fastest first; some kinds may be missing."""
    fastest = np.argsort(unit, kind="stable")
    each = np.broadcast_to(unit[fastest], counts.shape)
    return warm_up_rates(micro_batches, counts[:, fastest], each, chunks)


def warm_up_works(stages: int, chunks: int, micro_batches: int) -> tuple[Ints, Bools]:
    """Forwards of each chunk that every stage does before its first backward, [stages, chunks].

    As many backwards of each chunk follow its last forward (`schedules.py`, interleaved). Also
    whether these are all forwards, [stages].
    """
    number = 2 * np.arange(stages - 1, -1, -1) + (chunks - 1) * stages + 1
    order = np.arange(chunks * micro_batches) // stages % chunks
    each = order[:, None] == np.arange(chunks)
    counted = np.concatenate([np.zeros((1, chunks), dtype=np.int64), np.cumsum(each, axis=0)])
    return counted[np.minimum(number, len(order))], number >= len(order)


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
    unit: Floats,
    most: Ints,
    layers: int,
    ends: float,
    micro_batches: int,
    deepest: int,
    part: float = 1.0,
    even_chunks: int | None = None,
) -> Floats:
    """Seconds that no pipeline of 1, 2, .. stages beats, from what its layers alone take.

    Args:
        unit: seconds of a micro-batch on each pool, the mean layer of one pool being a unit.
        most: stages that each pool holds.
        layers: of the model.
        ends: what the ends of the pipeline do beside them, in units of a layer.
        micro_batches: of a replica.
        deepest: most stages of a pipeline.
        part: what a stage's first chunk is of the stage; 1 without chunks.
        even_chunks: how many chunks a stage has, if they are alike.
    """
    fastest = np.argsort(unit, kind="stable")[: int((most > 0).sum())]
    unit, most = unit[fastest], most[fastest]
    number = np.arange(1, min(deepest, int(most.sum())) + 1)
    counts = np.clip(number[:, None] - (np.cumsum(most) - most), 0, most)
    if part < 1:
        found: Floats = (layers + ends) / highest_chunk_rates(micro_batches, counts, unit, part)
        if even_chunks is not None:
            rates = highest_warm_up_rates(micro_batches, counts, unit, even_chunks)
            found = np.maximum(found, (layers + ends) * unit[0] + layers / rates)
        legal = [
            each > 1 and interleaving_is_legal(each, micro_batches) for each in number.tolist()
        ]
        within: Floats = np.where(legal, found, np.inf)
        return within
    working = micro_batches * (layers + ends) / (counts / unit).sum(axis=1)
    passing = (layers + ends) * (unit[0] + 1 / highest_rates(micro_batches, counts, unit))
    longest: Floats = np.maximum(working, passing)
    return longest
