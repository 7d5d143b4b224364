"""1F1B of many candidates at once, all stages of all of them in step: fast enough for a search.

Where every work takes one unit, 1F1B keeps to slots: stage s of p does forward i in slot s + i
while no backward has come back to it, and in slot 2i + s after that; it does backward i in slot
2p - 1 - s + 2i. A work waits for works of earlier slots only, however long they really take, so the
works of one slot can be computed together.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["finish_1f1b"]

Floats = NDArray[np.float64]

# Rounds from one look at the clocks to the next.
_ROUNDS: Final = 8
# What rounding may do to differences of clocks, as a share of the clocks.
_ROUNDING: Final = 1e-13


def finish_1f1b(forward_s: ArrayLike, backward_s: ArrayLike, micro_batches: int) -> Floats:
    """Return [candidates, stages]: when each stage is done with its last backward and its message.

    `forward_s` and `backward_s` are a micro-batch's seconds, [candidates, stages], each together
    with the message that follows and blocks the stage: it is what `simulate` finds for the 1F1B
    schedule without overlap.

    A round (a forward and a backward of every stage) is the same function of the clocks each time,
    made of sums and maxima. So when all clocks of a candidate have moved by one and the same time,
    they will in every further round, and the rounds left are added up instead of computed.
    """
    forward = np.ascontiguousarray(np.asarray(forward_s, np.float64).T)
    backward = np.ascontiguousarray(np.asarray(backward_s, np.float64).T)
    stages, candidates = forward.shape
    m, p = micro_batches, stages
    # One array of clocks: of the stages, of the messages that stage s received last from stage
    # s - 1, and of those that stage s sent back last. The outermost inputs are there at once.
    clocks = np.zeros((3 * p + 2, candidates))
    free, ahead, back = clocks[:p], clocks[p : 2 * p + 1], clocks[2 * p + 1 :]
    moving = np.r_[:p, p + 1 : 3 * p + 1]

    def go(kind: Floats, come: Floats, leave: Floats, stages: slice) -> None:
        clock = free[stages]
        np.maximum(clock, come[stages], out=clock)
        clock += kind[stages]
        leave[stages] = clock

    seen: Floats | None = None
    slot, end = 0, 2 * (m + p - 1)
    while slot < end:
        if slot < p:
            go(forward, ahead, ahead[1:], slice(max(0, slot - m + 1), slot + 1))
            slot += 1
            continue
        # All rounds between slots 2p and 2m are alike.
        if slot % 2 == 0 and 2 * p <= slot <= 2 * m - 2:
            phase = (slot // 2 - p) % _ROUNDS
            if phase == 0:
                seen = clocks.copy()
            elif phase == 1 and seen is not None:
                moved = clocks[moving] - seen[moving]
                if (np.ptp(moved, axis=0) <= _ROUNDING * clocks.max(axis=0)).all():
                    rounds = (2 * m - slot) // 2
                    clocks[moving] += rounds * moved[:1]
                    slot += 2 * rounds
                    seen = None
                    continue
        least = max(0, 2 * p - slot, slot - 2 * m + 1)
        go(forward, ahead, ahead[1:], slice(least + (slot - least) % 2, p, 2))
        least = max(0, 2 * p - 1 - slot)
        go(
            backward,
            back[1:],
            back,
            slice(least + (slot + 1 - least) % 2, min(p, end + 1 - slot), 2),
        )
        slot += 1
    finish: Floats = np.ascontiguousarray(free.T)
    return finish
