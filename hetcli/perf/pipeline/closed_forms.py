"""Makespans without simulation: exact for equal stages, bounds of 1F1B for unequal ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.rules import default_chunks

__all__ = [
    "equal_stage_makespan",
    "lower_bound_1f1b",
    "sailor_estimate_1f1b",
    "upper_bound_1f1b",
]

Floats = NDArray[np.float64]


def equal_stage_makespan(
    schedule: ScheduleName,
    stages: int,
    micro_batches: int,
    forward_s: float,
    backward_s: float,
    virtual_stages: int | None = None,
    *,
    weight_s: float | None = None,
) -> float | None:
    """Return the exact makespan where all stages (and chunks) are equal and transfers take no time.

    `forward_s`, `backward_s` and, inside that, `weight_s` are a whole stage's seconds for one
    micro-batch. None where no exact form is known: simulate then. With m micro-batches, p stages:

    - gpipe, 1f1b: (m + p - 1)(f + b) (arXiv 1811.06965; 2104.04473, section 2.2.1).
    - interleaved, v chunks, any group size: (m + (p - 1)/v)(f + b) (2104.04473, section 2.2.2).
    - zb-h1, m >= p, w not longer than forward or input gradients: bubble (p - 1)(f + b - 2w)
      (2401.10241, section 2.3: T_F + T_B - T_W).
    - zb-v, f = b - w = w, m >= 2p - 1: only the stagger of p - 1 chunk forwards is left.
    - wave, f = b, p divides m: (m + (p - 1)/v)(f + b) (by the drawings of 2308.15762).
    - bidirectional, f = b, p divides m: bubble of p - 2 chunk forwards (2107.06925, table 2; with
      more chunks 2410.19367).

    The numbers must be legal for the schedule (`check_schedule`).
    """
    chunks = default_chunks(schedule) if virtual_stages is None else virtual_stages
    p, m, both = stages, micro_batches, forward_s + backward_s
    if schedule in ("gpipe", "1f1b"):
        return (m + p - 1) * both
    if schedule == "interleaved":
        return (m + (p - 1) / chunks) * both
    if schedule == "zb-h1" and weight_s is not None and m >= p:
        if weight_s <= min(forward_s, backward_s - weight_s):
            return m * both + (p - 1) * (both - 2 * weight_s)
        return None
    if schedule == "zb-v" and m >= 2 * p - 1 and forward_s == weight_s == backward_s / 2:
        return m * both + (p - 1) * forward_s / 2
    if forward_s == backward_s and m % p == 0:
        if schedule == "wave":
            return (m + (p - 1) / chunks) * both
        if schedule == "bidirectional":
            return m * both + (p - 2) * forward_s / (chunks // 2)
    return None


def lower_bound_1f1b(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    send_s: ArrayLike | None,
    micro_batches: int,
    *,
    return_s: ArrayLike | None = None,
    overlap: bool = True,
) -> Floats:
    """Return [candidates] seconds that 1F1B cannot beat, tight for equal stages.

    Arrays as `makespan_1f1b_batch` takes them. Of every stage s: the first micro-batch comes to it
    through the stages before; it works m(f + b); between its first forward and its first backward
    lies a round trip through the stages after, of which only the other p - 1 - s forwards of the
    warm-up fill a part, and the same again with backwards between its last forward and its last
    backward; then the last gradient goes back to the first stage. The two gaps are the same gap
    where the micro-batches are too few to tell them apart: then only one counts.
    """
    forward, backward, down, up = _arrays(forward_s, backward_s, send_s, return_s, overlap=overlap)
    stages, m = forward.shape[1], micro_batches
    before = _sum_before(forward[:, :-1] + down)
    after = _sum_before(backward[:, :-1] + up)
    ahead = forward[:, 1:] + backward[:, 1:] + down + up
    round_trip = _sum_before(ahead[:, ::-1])[:, ::-1]
    warm_up = np.arange(stages - 1, -1, -1)
    fill = np.minimum(warm_up, m - 1)
    first = np.maximum(round_trip - fill * forward, 0)
    last = np.maximum(round_trip - fill * backward, 0)
    gaps = np.where(m - 1 > warm_up, first + last, np.maximum(first, last))
    bounds: Floats = (before + m * (forward + backward) + gaps + after).max(axis=1)
    return bounds


def upper_bound_1f1b(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    send_s: ArrayLike | None,
    micro_batches: int,
    *,
    return_s: ArrayLike | None = None,
) -> Floats:
    """Return [candidates] seconds that 1F1B never exceeds, with or without overlap.

    f_0 + b_0 + (m + p - 2) max(f + b), where f and b include the stage's own sends. Proof: let a
    critical path make its last turn from forwards to backwards at stage t. Besides one forward and
    one backward at each of the stages 0 to t it has x pairs of a forward and a backward of one
    stage, y single forwards (in warm-ups) and z single backwards (in cool-downs), and following
    the micro-batch numbers along it gives x + y + z = m - 1 + p - 1 - t. None of them takes more
    than the longest f + b, and neither does any of the pairs at stages 1 to t.
    """
    forward, backward, _, _ = _arrays(forward_s, backward_s, send_s, return_s, overlap=False)
    both = forward + backward
    bounds: Floats = both[:, 0] + (micro_batches + both.shape[1] - 2) * both.max(axis=1)
    return bounds


def sailor_estimate_1f1b(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    send_s: ArrayLike | None,
    micro_batches: int,
    *,
    return_s: ArrayLike | None = None,
) -> Floats:
    """Return [candidates] the estimate of Sailor (arXiv 2504.17096): slowest stage, plus one pass.

    (m - 1) max(compute + transfer) + sum of compute + sum of transfers, a stage's transfer being
    the activation that it sends on and the gradient that it sends back. An estimate, not a bound:
    it misses what warm-ups of unequal stages cost, and it charges transfers that overlap.
    """
    forward, backward, _, _ = _arrays(forward_s, backward_s, send_s, return_s, overlap=False)
    both = forward + backward
    estimate: Floats = (micro_batches - 1) * both.max(axis=1) + both.sum(axis=1)
    return estimate


def _arrays(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    send_s: ArrayLike | None,
    return_s: ArrayLike | None,
    *,
    overlap: bool,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Forward, backward, and both directions' sends; a send that blocks is part of the work."""
    forward = np.asarray(forward_s, dtype=np.float64)
    backward = np.asarray(backward_s, dtype=np.float64)
    if forward.ndim != 2 or forward.shape != backward.shape:
        raise ValueError(f"{forward.shape} and {backward.shape} are not [candidates, stages] twice")
    edges = (forward.shape[0], forward.shape[1] - 1)
    down = np.zeros(edges) if send_s is None else np.asarray(send_s, dtype=np.float64)
    up = down if return_s is None else np.asarray(return_s, dtype=np.float64)
    if down.shape != edges or up.shape != edges:
        raise ValueError(f"transfers have shape {down.shape} and {up.shape}, not {edges}")
    if overlap:
        return forward, backward, down, up
    free = np.zeros(edges)
    forward = forward + np.pad(down, ((0, 0), (0, 1)))
    backward = backward + np.pad(up, ((0, 0), (1, 0)))
    return forward, backward, free, free


def _sum_before(steps: Floats) -> Floats:
    """[candidates, n + 1]: the sum of all entries before each position."""
    sums: Floats = np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
    return sums
