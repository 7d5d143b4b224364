"""When the stages of one split are done at the earliest: close to what the simulation finds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hetcli.search.passing import warm_up_works

__all__ = ["finish_bounds", "interleaved_bounds"]

Floats = NDArray[np.float64]


def finish_bounds(passes: Floats, micro_batches: int) -> Floats:
    """Seconds before which no stage of 1F1B is done with its last backward, [candidates, stages].

    `passes` are the forward and backward seconds of a micro-batch with the sends that follow,
    [2, candidates, stages]. As in `lower_bound_1f1b`: the first micro-batch comes to a stage
    through those before it; there it works m(f + b), and waits for a round trip through the
    stages after it when the first micro-batch is under way, and again when the last one is, for as
    long as the other micro-batches do not fill. And no stage is done before the next one.
    """
    forward, backward = passes
    both = forward + backward
    stages, m = both.shape[1], micro_batches
    before = np.cumsum(forward, axis=1) - forward
    further = both.sum(axis=1, keepdims=True) - np.cumsum(both, axis=1)
    warm_up = np.arange(stages - 1, -1, -1)
    filled = np.minimum(warm_up, m - 1)
    first = np.maximum(further - filled * forward, 0)
    last = np.maximum(further - filled * backward, 0)
    gaps = np.where(m - 1 > warm_up, first + last, np.maximum(first, last))
    own = before + m * both + gaps
    # Seconds from a stage's end to the first one's, at least.
    after = np.cumsum(backward, axis=1) - backward
    latest = np.maximum.accumulate((own + after)[:, ::-1], axis=1)[:, ::-1]
    found: Floats = latest - after
    return found


def interleaved_bounds(each: Floats, send: Floats, wrap: float, micro_batches: int) -> Floats:
    """Seconds before which no stage is done with its last backward, [candidates, stages].

    A stage works on all its chunks, m times. Before, it waits for what the first micro-batch does
    in the first chunk of the stages before it; and its first backward waits for that micro-batch to
    go through all chunks and back, which only the forwards of the warm-up fill. In the end it is
    the same with the last micro-batch and the last backwards.

    Args:
        each: forward and backward seconds of each chunk, [2, chunks, candidates, stages].
        send: of one message at each boundary, [stages - 1].
        wrap: of one from the last stage to the first.
        micro_batches: of a replica.
    """
    chunks, stages = each.shape[1], each.shape[3]
    works, whole = warm_up_works(stages, chunks, micro_batches)
    out = np.append(send, 0.0)
    if stages == 2:
        # There is one boundary only.
        wrap = float(send[0])
    through = each[:, 0] + out
    before, after = np.cumsum(through, axis=2) - through
    path = each.sum(axis=(1, 3))[..., None] + chunks * send.sum() + (chunks - 1) * wrap
    back = each[::-1, -1] + out
    behind = np.cumsum(back[..., ::-1], axis=2)[..., ::-1] - each[::-1, -1]
    filled = (works.T[None, :, None, :] * each).sum(axis=1)
    first, last = path + behind - filled
    first, last = np.maximum(first, before), np.maximum(last, after)
    waits = np.where(whole, np.maximum(first + after, before + last), first + last)
    total = waits + micro_batches * each.sum(axis=(0, 1))
    found: Floats = np.maximum.accumulate(total[:, ::-1], axis=1)[:, ::-1] - after
    return found
