"""What the stages of one shape need with any layers, and what the rest of the pipeline needs.

Tables are by the first layer of a stage and the number of its layers, so that few numbers are
enough where few layers are of use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.search.exact import Exact
from hetcli.search.tables import exposed_tail

__all__ = ["Ranges", "Rest", "by_number", "stops"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def stops(layers: int, most: int) -> Ints:
    """The layer after n layers from layer i on, [layers + 1, most + 1], at most the last one."""
    found: Ints = np.minimum(np.arange(layers + 1)[:, None] + np.arange(most + 1), layers)
    return found


def by_number(table: Floats) -> Floats:
    """A table by first layer and layer after the last one as one by number; infinite beyond."""
    layers = len(table) - 1
    start, number = np.ogrid[: layers + 1, : layers + 1]
    found: Floats = np.where(start + number <= layers, table[start, stops(layers, layers)], np.inf)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The stages of a shape with n layers from layer i on, [.., stages, layers + 1, most + 1].

    Each is on the first chain and alone on its node. `passes` are the forward and the backward
    seconds of a micro-batch, the sends that follow included where they block; `seconds` both
    together, infinite where the stage cannot hold the layers, or must have more; `through` what the
    first and the last micro-batch take before they go on from the stage; `after` the reduction,
    gathering and update that stick out. With chunks, `again` is what both take in the last chunk,
    and `filled` the forwards and backwards at the two ends (`warm_up_works`), [stages, ..].
    """

    passes: Floats
    seconds: Floats
    through: Floats
    after: Floats
    again: Floats
    filled: Floats

    @classmethod
    def of(cls, exact: Exact, most: int) -> Ranges:
        """With up to `most` layers on a stage."""
        layers = exact.layers
        start, number = np.arange(layers + 1)[:, None], np.arange(most + 1)
        stop = stops(layers, most)
        legal = np.zeros((exact.depth, *stop.shape), dtype=np.bool_)
        work, first = np.zeros((2, 2, *legal.shape))
        again, filled = np.zeros((2, *legal.shape))
        works = exact.warm_up[0]
        needed = number >= exact.least[:, None, None]
        for choice, furthest in enumerate(exact.stop):
            within = needed & (start + number <= furthest[:, :, None])
            table = exact.passes[:, choice, 0]
            work = np.where(within, table[..., stop] - table[..., start], work)
            if exact.virtual_stages > 1:
                each = exact.chunks[:, choice, :, 0]
                table = each[:, 0]
                first = np.where(within, table[..., stop] - table[..., start], first)
                table = each[:, -1].sum(axis=0)
                again = np.where(within, table[..., stop] - table[..., start], again)
                table = (each * works.T[..., None]).sum(axis=(0, 1))
                filled = np.where(within, table[..., stop] - table[..., start], filled)
            legal |= within
        work += exact.received(exact.ends[:, 0], 0)[..., None, None]
        tail = exact.tail[..., stop] - exact.tail[..., start] + exact.tail_ends[..., None, None]
        routed = exact.routed[stop] > exact.routed[start]
        after = exposed_tail(
            tail + exact.experts[..., None, None] * routed,
            work[0],
            work[1],
            np.broadcast_to(exact.virtual_stages * number, stop.shape),
            hide_reduce=exact.hide_reduce,
            hide_gather=exact.hide_gather,
        )
        work, first = np.moveaxis(work, 1, -1), np.moveaxis(first, 1, -1)
        through = np.moveaxis(exact.through(work, first, 0), -1, 1)
        passes = through if exact.virtual_stages == 1 else np.moveaxis(work, -1, 1)
        return cls(
            passes=passes,
            seconds=np.where(legal, passes.sum(axis=0), np.inf),
            through=through,
            again=again,
            filled=filled + (exact.warm_up_ends if exact.virtual_stages > 1 else 0.0),
            after=np.where(legal, np.array(after), np.inf),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """What the stages from one on need for the layers from one on, [stages + 1, layers + 1].

    `total` is the least seconds of a micro-batch through all of them, `twice` that of two, the
    second one only in the last of several chunks, and `slowest` the least that the slowest of them
    can take. From when the first micro-batch comes to them, `step` is the least
    until the last one has gone, and `reduced` until the last of them has reduced its gradients.
    `gathered` and `updated` are the least of the largest gathering and update.
    """

    total: Floats
    twice: Floats
    slowest: Floats
    step: Floats
    reduced: Floats
    gathered: Floats
    updated: Floats

    @classmethod
    def of(cls, exact: Exact, ranges: Ranges) -> Rest:
        """From the last stage to the first one."""
        depth, size, most = ranges.seconds.shape
        weights, later = exact.weights
        stop = stops(size - 1, most - 1)
        found = np.full((7, depth + 1, size), np.inf)
        found[:, -1, -1] = 0.0, 0.0, -np.inf, 0.0, 0.0, 0.0, 0.0
        for stage in reversed(range(depth)):
            seconds, ahead = ranges.seconds[stage], ranges.through[0, stage]
            whole = ranges.through[:, stage].sum(axis=0)
            reduce, gather, update = ranges.after[:, stage]
            total, twice, slowest, step, reduced, gathered, updated = found[:, stage + 1, stop]
            again = seconds if exact.virtual_stages == 1 else ranges.again[stage]
            own = weights[stage] * seconds
            if later[stage]:
                own += later[stage] * total
            done = own - exact.send_back(stage)
            found[:, stage] = [
                each.min(axis=1)
                for each in (
                    seconds + total,
                    seconds + again + twice,
                    np.maximum(seconds, slowest),
                    np.maximum(own, whole + step),
                    np.maximum(done + reduce, ahead + reduced),
                    np.maximum(gather, gathered),
                    np.maximum(update, updated),
                )
            ]
        return cls(*found)
