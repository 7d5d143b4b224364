"""Lower bounds on step time that are cheap enough to look at every candidate.

All rest on facts about 1F1B with m micro-batches over p stages, where stage k takes t_k for a
micro-batch, its messages included. Stage k works m t_k, and its gradients, parameters and update
follow. And micro-batches pass through all stages before and after that (`hetcli.search.passing`).
With model chunks they pass through the first chunks only, and messages hide behind the computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.search.costs import Family
from hetcli.search.passing import (
    chunk_rates,
    highest_chunk_rates,
    highest_rates,
    highest_warm_up_rates,
    layer_rates,
    pipeline_bounds,
    warm_up_rates,
)
from hetcli.search.tables import Fitted, Tables, count_within
from hetcli.search.tail import ALONE, FIRST, LAST, MIDDLE

__all__ = [
    "MixRooms",
    "after_pipeline",
    "family_bound",
    "has_room",
    "is_regular",
    "made_within",
    "mix_bounds",
    "row_caps",
    "row_rooms",
    "shape_bounds",
    "uniform_bound",
    "uniform_bounds",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Seconds in place of none, where something is divided by them.
TINY = 1e-30


def family_bound(family: Family, tables: Tables, deepest: int, stages: int | None) -> float:
    """Seconds that no pipeline of a family beats, whatever its stages, order and split.

    Args:
        family: degrees and their costs.
        tables: of the family.
        deepest: most stages of a pipeline.
        stages: their number where it is fixed.
    """
    found = np.full(deepest + 1, np.inf)
    if family.degrees.virtual_stages == 1:
        found[1] = tables.work[:, -1, ALONE, -1].min()
    found[2:] = _several(family, tables, deepest)
    return float(found.min() if stages is None else found[stages])


def _several(family: Family, tables: Tables, deepest: int) -> Floats:
    """The bounds over all pipelines of 2, 3, .. stages."""
    m, layers = family.micro_batches, family.layers
    found = np.full(deepest - 1, np.inf)
    send = _least_send(family)
    each = np.minimum.reduce(
        [
            tables.work[:, -1, role] + (m * ways * send)[:, None]
            for role, ways in ((MIDDLE, 2), (FIRST, 1), (LAST, 1))
        ]
    )[:, 1:]
    # Every stage takes its share within the step; each entry is room for one more layer.
    order = np.argsort(each, axis=None)
    room = np.cumsum(np.repeat(family.most, layers)[order])
    enough = int(np.searchsorted(room, layers))
    if enough == len(room):
        return found
    plain = family.degrees.virtual_stages == 1
    even = family.degrees.virtual_stages if not plain and family.even_chunks else None
    # What the ends do is added below where it is waited for by all.
    ends = (
        0.0
        if plain
        else float(
            (tables.ends.sum(axis=0) / tables.unit[:, None]).min(axis=0)[[FIRST, LAST]].sum()
        )
    )
    several = pipeline_bounds(
        tables.unit, family.most, layers, ends, m, deepest, family.first_chunk, even
    )[1:]
    if plain:
        first, last = (tables.ends[:, :, role].sum(axis=0).min() for role in (FIRST, LAST))
        several += 2 * np.arange(1, len(several) + 1) * send.min() + first + last
    several += tables.first_reduced.min()
    found[: len(several)] = np.maximum(several, each.ravel()[order[enough]])
    return found


def _least_send(family: Family) -> Floats:
    """The fastest way to send from or to a stage of each row; 0 where none blocks it, [rows]."""
    send = np.minimum(family.luckiest.min(axis=0), family.luckiest.min(axis=1))
    return _blocking(family, _finite(np.minimum(family.least_send, send)))


def is_regular(family: Family, rows: Ints, counts: Ints) -> Bools:
    """Whether all stages of a run are placed alike, [candidates, runs]."""
    pool = family.pool[rows]
    total = (counts[:, None, :] * (pool[:, None, :] == pool[:, :, None])).sum(axis=2)
    found: Bools = total <= family.regular[rows]
    return found


def shape_bounds(family: Family, tables: Tables, rows: Ints, counts: Ints) -> Floats:
    """Seconds that no split of the layers beats, for many shapes, [candidates].

    Args:
        family: degrees and their costs.
        tables: of the family.
        rows: of each run along the pipeline, [candidates, runs].
        counts: stages of each run, all at least 1.
    """
    m, layers = family.micro_batches, family.layers
    stages = counts.sum(axis=1)
    alone = stages == 1
    first, last = rows[:, 0], rows[:, -1]
    unit, work = tables.unit[rows], tables.unit_work[rows]
    sends = _sends(family, rows, counts)
    within, across = (_blocking(family, each) for each in sends)
    chunks = family.degrees.virtual_stages
    plain = chunks == 1
    head = np.where(alone, tables.ends[:, first, ALONE], tables.ends[:, first, FIRST])
    tail = np.where(alone, 0.0, tables.ends[:, last, LAST])

    def capacity(price: Floats) -> Floats:
        """Units of work that the time spent on transfers and ends is worth, in all stages."""
        found: Floats = (2 * within / price).sum(axis=1)
        found = found + (across * (1 / price[:, :-1] + 1 / price[:, 1:])).sum(axis=1)
        found += head.sum(axis=0) / price[:, 0] + tail.sum(axis=0) / price[:, -1]
        return found

    # What the ends compute may hide collectives of the layers.
    hidden = head.sum(axis=0) / work[:, 0] + tail.sum(axis=0) / work[:, -1]
    spent = m * capacity(work) - hidden
    found: Floats = (layers + spent) / (counts / work).sum(axis=1)
    if plain:
        total = layers * unit.min(axis=1) + head.sum(axis=0) + tail.sum(axis=0)
        total = total + 2 * (within.sum(axis=1) + across.sum(axis=1))
        passing = total + (layers + capacity(unit)) / layer_rates(m, counts, unit)
    else:
        rates = chunk_rates(m, counts, unit, family.first_chunk)
        passing = (layers + capacity(unit)) / rates
        path = layers * unit.min(axis=1) + head.sum(axis=0) + tail.sum(axis=0)
        path += 2 * chunks * sum(each.sum(axis=1) for each in sends)
        if family.even_chunks:
            path += layers / warm_up_rates(m, counts, unit, chunks)
        passing = np.maximum(passing, path)
    reduced, follows = after_pipeline(tables, layers, rows, counts)
    longest: Floats = np.maximum(found, passing + reduced + follows)
    return longest


def mix_bounds(family: Family, tables: Tables, counts: Ints) -> Floats:
    """Seconds that no order of a mix and no split beats, [candidates].

    Args:
        family: degrees and their costs.
        tables: of the family.
        counts: stages of each row, [candidates, rows].
    """
    m, layers = family.micro_batches, family.layers
    used = counts > 0
    # Two stages wait for each boundary.
    supports, which = _supports(counts)
    sends = (
        2 * _within(family, np.arange(counts.shape[1])[None], counts),
        np.array([2 * sum(_gaps(family, each)) for each in supports])[which],
    )
    inside, across = (_blocking(family, each) for each in sends)

    several = counts.sum(axis=1) > 1

    def least(each: Floats) -> Floats:
        """The least on the rows that a mix uses."""
        result: Floats = np.where(used, each, np.inf).min(axis=1)
        return result

    def ends(price: Floats | float) -> Floats:
        """What the first and the last stage do beside their layers, at least."""
        alone, first, last = (
            least(tables.ends[:, :, role].sum(axis=0) / price) for role in (ALONE, FIRST, LAST)
        )
        return np.where(several, first + last, alone)

    def capacity(price: Floats) -> Floats:
        """Units of work that the time spent on transfers and ends is worth, in all stages."""
        dearest = np.where(used, price, 0.0).max(axis=1)
        result: Floats = (inside / price).sum(axis=1) + across / dearest + ends(price)
        return result

    hidden = tables.ends.sum(axis=0).max(axis=1) / tables.unit_work
    lost = 2 * np.where(used, hidden, 0.0).max(axis=1)
    rates = (counts / tables.unit_work).sum(axis=1)
    found: Floats = (layers + m * capacity(tables.unit_work) - lost) / rates
    if family.degrees.virtual_stages == 1:
        passing = layers * least(tables.unit) + inside.sum(axis=1) + across + ends(1.0)
        passing += (layers + capacity(tables.unit)) / highest_rates(m, counts, tables.unit)
    else:
        rates = highest_chunk_rates(m, counts, tables.unit, family.first_chunk)
        passing = (layers + capacity(tables.unit)) / rates
        chunks = family.degrees.virtual_stages
        path = layers * least(tables.unit) + ends(1.0)
        path += chunks * (sends[0].sum(axis=1) + sends[1])
        if family.even_chunks:
            path += layers / highest_warm_up_rates(m, counts, tables.unit, chunks)
        passing = np.maximum(passing, path)
    reduced = least(tables.first_reduced)
    updating = layers / (counts / np.maximum(tables.unit_after[1], TINY)).sum(axis=1)
    longest: Floats = np.maximum(found, passing + np.where(several, reduced, 0.0) + updating)
    return longest


def uniform_bound(family: Family, tables: Tables, deepest: int) -> float:
    """Seconds that no pipeline of a family beats whose stages all have as many layers.

    The slowest of p stages is at best that on the p-th fastest place of all.
    """
    fastest = np.argsort(tables.unit, kind="stable")
    places = np.repeat(tables.unit[fastest], np.minimum(family.most[fastest], deepest))[:deepest]
    each = family.layers // np.arange(1, len(places) + 1)
    return float(family.micro_batches * (each * places).min(initial=np.inf))


def uniform_bounds(family: Family, tables: Tables, counts: Ints) -> Floats:
    """Seconds that mixes do not beat whose stages all have as many layers, [candidates]."""
    slowest = np.where(counts > 0, tables.unit, 0.0).max(axis=1)
    found: Floats = family.micro_batches * (family.layers // counts.sum(axis=1)) * slowest
    return found


def row_caps(family: Family, fitted: Fitted, seconds: Floats | float, gap: float = 0.0) -> Ints:
    """Layers that no stage exceeds in a step of so many seconds.

    [.., rows, micro-batches in flight] for seconds [..]. It is for stages with a neighbour: each
    sends one way at least, in `gap` seconds or more.
    """
    m = family.micro_batches
    step = np.asarray(seconds, dtype=np.float64)[..., None]
    send = _least_send(family)
    far = np.maximum(send, gap) if family.degrees.virtual_stages == 1 else send
    caps = [
        count_within(fitted.work[:, role], (step - m * (far + other))[..., None])
        for role, other in ((MIDDLE, send), (FIRST, 0.0), (LAST, 0.0))
    ]
    found: Ints = np.maximum.reduce(caps)
    return found


def made_within(family: Family, fitted: Fitted, counts: Ints, seconds: float) -> Bools:
    """Whether mixes are made for a step of so many seconds, [candidates]: their rows have room."""
    room = row_rooms(row_caps(family, fitted, seconds))
    held = room[np.arange(len(room)), np.minimum(counts, room.shape[1] - 1)].sum(axis=1)
    # Without room for a layer, only the ends can be of a row.
    ends = ((counts <= 2) | (room[:, -1] > 0)).all(axis=1)
    alone = counts @ (fitted.alone <= seconds).astype(np.int64) > 0
    found: Bools = np.where(counts.sum(axis=1) > 1, ends & (held >= family.layers), alone)
    return found


def row_rooms(caps: Ints) -> Ints:
    """Layers that the last 0, 1, .. stages of a pipeline hold, each at most its `caps`.

    [.., rows, stages + 1]; no other stages of the row hold more, since no others hold fewer
    micro-batches.
    """
    found = np.zeros((*caps.shape[:-1], caps.shape[-1] + 1), dtype=np.int64)
    np.cumsum(np.maximum(caps, 0), axis=-1, out=found[..., 1:])
    return found


def has_room(family: Family, fitted: Fitted, deepest: int) -> bool:
    """Whether the pools, each full of the rows that hold most, have memory for all layers."""
    if np.isfinite(fitted.alone).any():
        return True
    room = row_rooms(row_caps(family, fitted, np.inf))
    stages = np.minimum(family.most, deepest)
    return bool(room[np.arange(len(room)), stages].sum() >= family.layers)


@dataclass(frozen=True, slots=True, eq=False)
class MixRooms:
    """How many layers mixes can hold in a step of some time, whatever their order.

    `gaps[i]` are seconds of a boundary that mixes with the rows of `supports[i]` have in every
    order, or a slower one; `support` is that of each mix.
    """

    family: Family
    fitted: Fitted
    counts: Ints
    supports: Bools
    support: Ints
    gaps: Floats

    @classmethod
    def of(cls, family: Family, fitted: Fitted, counts: Ints) -> MixRooms:
        """For mixes [candidates, rows]."""
        supports, which = _supports(counts)
        gaps = np.array([max(_gaps(family, each), default=0.0) for each in supports])
        gaps = _blocking(family, gaps)
        return cls(family, fitted, counts, supports, which, gaps)

    def layers(self, seconds: Floats) -> Ints:
        """Layers that have room at most in steps of so many seconds, [steps, candidates]."""
        caps = np.maximum(row_caps(self.family, self.fitted, seconds), 0)
        room = row_rooms(caps)
        rows = np.arange(self.counts.shape[1])
        found = np.array([each[rows, self.counts].sum(axis=1) for each in room])
        lost = np.zeros((len(seconds), len(self.gaps)), dtype=np.int64)
        for gap in np.unique(self.gaps[self.gaps > 0]):
            # Two stages wait for it.
            far = np.maximum(row_caps(self.family, self.fitted, seconds, float(gap)), 0)
            less = (caps - far).min(axis=-1)
            for index in np.flatnonzero(self.gaps == gap):
                lost[:, index] = 2 * less[:, self.supports[index]].min(axis=1)
        return found - lost[:, self.support]


def _supports(counts: Ints) -> tuple[Bools, Ints]:
    """Which rows mixes use, each combination once, and that of every mix."""
    bits = 1 << np.arange(counts.shape[1])
    _, first, which = np.unique((counts > 0) @ bits, return_index=True, return_inverse=True)
    return counts[first] > 0, which.ravel()


def _gaps(family: Family, used: Bools) -> list[float]:
    """Seconds of the boundaries of the best tree that joins the pools of the rows used.

    In every order of the pools the boundaries together take as long, and the slowest of them is
    as slow, or slower.
    """
    left = list({int(family.pool[row]): int(row) for row in np.flatnonzero(used)}.values())
    joined, gaps = [left.pop()], []
    while left:
        gap, following = min(
            (float(family.least_across[one, other]), other) for one in joined for other in left
        )
        gaps.append(gap)
        left.remove(following)
        joined.append(following)
    return gaps


def _finite(seconds: Floats) -> Floats:
    """Seconds, 0 where there is no such transfer."""
    found: Floats = np.where(np.isfinite(seconds), seconds, 0.0)
    return found


def _blocking(family: Family, seconds: Floats) -> Floats:
    """Seconds for which a transfer blocks each stage that waits for it."""
    return seconds * family.waits if family.waits else np.zeros_like(seconds)


def _sends(family: Family, rows: Ints, counts: Ints) -> tuple[Floats, Floats]:
    """Seconds of all boundaries inside each run, and of those between runs, one direction."""
    regular = is_regular(family, rows, counts)
    one, other = rows[:, :-1], rows[:, 1:]
    across = np.where(regular[:, :-1], family.send[one, other], family.luckiest[one, other])
    return _within(family, rows, counts), across


def _within(family: Family, rows: Ints, counts: Ints) -> Floats:
    """Seconds of all boundaries inside each run, one direction, [candidates, runs]."""
    per_node = np.array([row.per_node or 0 for row in family.rows])[rows]
    leaving = np.where(per_node > 0, (counts - 1) // np.maximum(per_node, 1), counts - 1)
    staying = counts - 1 - leaving

    def seconds(number: Ints, each: Floats) -> Floats:
        result: Floats = np.where(number > 0, number * np.where(number > 0, each, 0.0), 0.0)
        return result

    alike = seconds(staying, family.inside[rows]) + seconds(leaving, np.diagonal(family.send)[rows])
    lucky = seconds(counts - 1, family.least_send[rows])
    found: Floats = np.where(is_regular(family, rows, counts), alike, lucky)
    return found


def after_pipeline(tables: Tables, layers: int, rows: Ints, counts: Ints) -> tuple[Floats, Floats]:
    """Least seconds that follow the last backward pass of shapes, twice [candidates].

    The first stage has it and reduces then. Gathering and update come after that and are waited for
    by all: on the largest stage they take at least what they would on an average one.
    """
    late, update = tables.unit_after[:, rows]
    updating = layers / (counts / np.maximum(update, TINY)).sum(axis=1)
    stages = counts.sum(axis=1)
    first, last = rows[:, 0], rows[:, -1]
    head = np.where(stages == 1, tables.ends[0, first, ALONE], tables.ends[0, first, FIRST])
    tail = np.where(stages == 1, 0.0, tables.ends[0, last, LAST])
    hidden = head / np.maximum(late[:, 0], TINY) + tail / np.maximum(late[:, -1], TINY)
    shown = (layers - hidden) / (counts / np.maximum(late, TINY)).sum(axis=1)
    gathering = np.where((late > 0).all(axis=1), np.maximum(shown, 0.0), 0.0)
    return np.where(stages > 1, tables.first_reduced[first], 0.0), updating + gathering
