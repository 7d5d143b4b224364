"""The least that a stage of n layers takes, for every n at once.

Where layers are unlike, it is the least over all n consecutive layers that a stage at that place
may hold: a bound that no split of the layers undercuts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.synchronisation import unhidden
from hetcli.search.costs import Family
from hetcli.search.tail import ALONE, FIRST, LAST, MIDDLE

__all__ = ["Fitted", "Tables", "count_within", "exposed_tail"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def exposed_tail(
    tail: Floats,
    forward: Floats,
    backward: Floats,
    layers: Ints,
    *,
    hide_reduce: bool,
    hide_gather: bool,
) -> tuple[Floats, Floats, Floats]:
    """Seconds of reduction and gathering that stick out of the passes, and of the update.

    Args:
        tail: whole seconds of the three, first axis.
        forward: of one micro-batch on the stage.
        backward: the same.
        layers: of the stage.
        hide_reduce: whether gradients are reduced behind the last backward pass.
        hide_gather: whether parameters are gathered behind the first forward pass.
    """
    gather = unhidden(tail[1], forward, layers) if hide_gather else tail[1]
    reduce = unhidden(tail[0], backward, layers) if hide_reduce else tail[0]
    return reduce, gather, tail[2]


def count_within(table: Floats, room: Floats) -> Ints:
    """The most layers whose entry of the table, last axis, is within `room`; -1 where none is."""
    found: Ints = (table <= room[..., None]).sum(axis=-1) - 1
    return found


@dataclass(frozen=True, eq=False)
class Tables:
    """Of every row, choice of what is recomputed and role, by number of layers.

    `seconds` is the least time of a micro-batch without its transfers, `work` the least that all
    micro-batches and what follows them take on the stage, [rows, choices, roles, layers + 1]; the
    last choice is the fastest, and choices that a row does not have are infinite. `after` is the
    least of gathering and update that sticks out, [rows, roles, layers + 1]. None of them ever
    falls with more layers.
    """

    seconds: Floats
    work: Floats
    after: Floats
    # Per unit of work, the mean layer on the first row being one unit: least seconds of a
    # micro-batch, and least of all micro-batches with what follows, [rows].
    unit: Floats
    unit_work: Floats
    # Least seconds of gathering and update per unit, [2, rows].
    unit_after: Floats
    # Least seconds of reduction that stick out of the first stage, whose last pass ends the
    # pipeline, [rows].
    first_reduced: Floats
    # What the first and the last stage do beside their layers: forward, backward, [rows, roles].
    ends: Floats

    @classmethod
    def of(cls, family: Family, kinds: Ints) -> Tables:
        """The tables of a family; `kinds` is the first layer of each kind."""
        rows = family.rows
        most = max(len(row.choices) for row in rows)
        size = rows[0].passes[0].layers.shape[1]
        tail = np.array([row.tail.layers for row in rows])
        tail_ends = np.array([row.tail.ends for row in rows])
        ends = np.array([row.passes[-1].ends for row in rows])
        # Every row with each of its choices, counted from the last one.
        row_of = np.array([at for at, row in enumerate(rows) for _ in row.choices])
        back = np.array(
            [choice - len(row.choices) for row in rows for choice in range(len(row.choices))]
        )
        stages = _Stages(
            family,
            np.array([passes.layers for row in rows for passes in row.passes]),
            ends[row_of],
            tail[row_of],
            tail_ends[row_of],
        )
        found = stages.least(kinds)
        seconds = np.full((len(rows), most, 4, size), np.inf)
        work, after = seconds.copy(), seconds.copy()
        reduced = np.full((len(rows), most), np.inf)
        seconds[row_of, back], work[row_of, back], after[row_of, back] = (
            found[0],
            found[1],
            found[3],
        )
        reduced[row_of, back] = found[2][:, FIRST]
        passes = np.array([row.passes[-1].layers for row in rows])
        unit, unit_work, unit_after = _per_unit(family, np.diff(passes), np.diff(tail))
        return cls(
            seconds=seconds,
            work=work,
            after=after.min(axis=1),
            unit=unit,
            unit_work=unit_work,
            unit_after=unit_after,
            first_reduced=reduced.min(axis=1),
            ends=ends.transpose(1, 0, 2),
        )

    @cached_property
    def cheapest(self) -> Floats:
        """Least seconds that one more layer takes on a stage of each row, [rows]."""
        least: Floats = np.diff(self.seconds[:, -1, MIDDLE]).min(axis=1)
        return least


@dataclass(frozen=True, eq=False)
class Fitted:
    """The tables of a family where every stage recomputes as little as its memory allows.

    `seconds` and `work` are [rows, roles, micro-batches in flight, layers + 1], infinite for layers
    that the stage cannot hold; `alone` is the work of a stage that is the whole pipeline, [rows].
    """

    seconds: Floats
    work: Floats
    alone: Floats

    @classmethod
    def of(cls, tables: Tables, most: Ints, alone: Bools) -> Fitted:
        """The tables for the most layers that a stage holds.

        Args:
            tables: of the family.
            most: [rows, choices, roles, micro-batches in flight].
            alone: whether a stage holds the whole model, [rows, choices].
        """
        size = tables.seconds.shape[-1]
        holds = np.arange(size) <= most[..., None]
        seconds = np.where(holds, tables.seconds[:, :, :, None], np.inf).min(axis=1)
        work = np.where(holds, tables.work[:, :, :, None], np.inf).min(axis=1)
        whole = np.where(alone, tables.work[:, :, ALONE, -1], np.inf).min(axis=1)
        return cls(seconds, work, whole)


def _hides(family: Family) -> bool:
    """Whether parameters are gathered behind the first forward pass."""
    return family.degrees.framework == "megatron"


def _hides_any(family: Family) -> bool:
    """Whether a reduction may hide behind messages that come in, however long it is."""
    return family.degrees.framework == "deepspeed" and family.degrees.overlap_grad_reduce


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """All that stages of each row do, as in `Row`, with a first axis of rows."""

    family: Family
    passes: Floats
    ends: Floats
    tail: Floats
    tail_ends: Floats

    def least(self, kinds: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """`seconds`, `work`, the least reduction [rows, roles], and `after`, for every role.

        Of a collective of s seconds behind a pass of c, with n buckets, sticks out
        s / n + max(0, s - c) (n - 1) / n. Its two cases are linear in s and c, so layers of unlike
        kinds together take at least as much as the lighter of the kinds alone, in either case.
        """
        chunks = self.family.degrees.virtual_stages
        buckets = np.maximum(chunks * np.arange(self.passes.shape[2]), 1)
        m = self.family.micro_batches
        forward, backward = self._of(self.passes, self.ends, kinds)
        reduced, gathered, updated = self._of(self.tail, self.tail_ends, kinds)
        share = (buckets - 1) / buckets
        # What nothing hides sticks out whole.
        behind = backward if self.family.degrees.overlap_grad_reduce else 0.0
        late = (reduced - behind) * share
        if _hides_any(self.family):
            late[:, :, [MIDDLE, LAST, FIRST]] = 0.0
        later = np.zeros_like(gathered)
        gathering = gathered
        if _hides(self.family):
            gathering, later = gathered / buckets, (gathered - forward) * share
        both = forward + backward
        once = reduced / buckets
        always = m * both + updated + once + gathering
        work = np.maximum.reduce(
            [(always + more).min(axis=0) for more in (0.0, late, later, late + later)]
        )
        sticking = np.maximum(once.min(axis=0), (once + late).min(axis=0))
        after = np.maximum(
            (gathering + updated).min(axis=0), (gathering + later + updated).min(axis=0)
        )
        return both.min(axis=0), _rising(work), sticking.min(axis=-1), _rising(after)

    def _of(self, layers: Floats, ends: Floats, kinds: Ints) -> Floats:
        """Seconds with n layers, [items, kinds, rows, roles, layers + 1].

        Where layers are unlike, a stage in the middle may have those of any one kind.
        """
        number = np.arange(layers.shape[2])
        found = np.empty((len(kinds), *layers.shape[:2], 4, layers.shape[2]))
        found[...] = layers[:, :, None, :]
        found[..., LAST, :] = layers[..., -1:] - layers[..., ::-1]
        if len(kinds) > 1:
            for index, at in enumerate(kinds):
                found[index, ..., MIDDLE, :] = (layers[..., at + 1] - layers[..., at])[
                    ..., None
                ] * number
        found += ends[..., None]
        result: Floats = found.transpose(2, 0, 1, 3, 4)
        return result


def _rising(bound: Floats) -> Floats:
    """The bound for as many layers or more.

    More layers may hide more; a bound that falls again would hide smaller stages.
    """
    found: Floats = np.minimum.accumulate(bound[..., ::-1], axis=-1)[..., ::-1]
    return found


def _per_unit(family: Family, passes: Floats, tail: Floats) -> tuple[Floats, Floats, Floats]:
    """`unit`, `unit_work`, `unit_after` from the seconds of each layer, [rows, items, layers]."""
    reference = passes[0].sum(axis=0)
    units = reference / reference.mean()
    forward, backward = passes.transpose(1, 0, 2)
    reduced, gathered, updated = tail.transpose(1, 0, 2)
    late = _sticking_out(gathered, forward) if _hides(family) else gathered
    both = forward + backward
    behind = np.inf if _hides_any(family) else backward
    work = family.micro_batches * both + _sticking_out(reduced, behind) + late + updated
    after = np.array([(late / units).min(axis=1), (updated / units).min(axis=1)])
    return (both / units).min(axis=1), (work / units).min(axis=1), after


def _sticking_out(seconds: Floats, behind: Floats | float) -> Floats:
    """What of each layer's collective no layer hides; 0 where some layers hide that of others."""
    rest = seconds - behind
    found: Floats = np.where(rest.min(axis=1, keepdims=True) >= 0, rest, 0.0)
    return found
