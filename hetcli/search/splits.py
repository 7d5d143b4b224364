"""Split the layers of many shapes at once: a bound for each, and a split that comes near to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.search.bounds import is_regular
from hetcli.search.costs import Family
from hetcli.search.partition import fill
from hetcli.search.passing import stage_weights
from hetcli.search.tables import Fitted, Tables, count_within
from hetcli.search.tail import ALONE, FIRST, LAST, MIDDLE

__all__ = ["Stages", "least_layers", "split_shapes", "stages_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Halvings of the distance between a bound and what is known to be possible.
HALVINGS = 5
# Times that what must be on a stage follows from what the others can hold.
ROUNDS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Shapes of one depth, stage by stage.

    `row` is the kind of each stage, [candidates, stages]; `send` the seconds of each boundary, one
    direction, [candidates, stages - 1]; `alike` whether all stages of a shape are placed alike, so
    that these times are those of the prediction.
    """

    row: Ints
    send: Floats
    alike: Bools

    @property
    def depth(self) -> int:
        """Stages of each candidate."""
        return int(self.row.shape[1])

    def roles(self) -> Ints:
        """The role of every stage, [stages]."""
        role = np.full(self.depth, MIDDLE)
        role[0], role[-1] = FIRST, LAST
        return role if self.depth > 1 else np.array([ALONE])


def stages_of(family: Family, rows: Ints, counts: Ints) -> Stages:
    """Lay out shapes of one depth, given by the rows and the stages of their runs."""
    depth = int(counts[0].sum())
    ends = np.cumsum(counts, axis=1)
    position = np.arange(depth)
    run = (position[None, :, None] >= ends[:, None, :]).sum(axis=2)
    row = np.take_along_axis(rows, run, axis=1)
    start = np.take_along_axis(ends - counts, run, axis=1)
    regular = np.take_along_axis(is_regular(family, rows, counts), run, axis=1)
    one, other = row[:, :-1], row[:, 1:]
    per_node = np.array([each.per_node or 0 for each in family.rows])[one]
    place = position[:-1] - start[:, :-1] + 1
    same = run[:, :-1] == run[:, 1:]
    inside = same & (per_node > 0) & (place % np.maximum(per_node, 1) != 0)
    alike = np.where(inside, family.inside[one], family.send[one, other])
    lucky = np.where(same, family.least_send[one], family.luckiest[one, other])
    return Stages(row, np.where(regular[:, :-1], alike, lucky), np.asarray(regular.all(axis=1)))


def least_layers(depth: int, chunks: int = 1) -> Ints:
    """Only the first and the last stage may be without layers, unless it is the only one.

    With several chunks no chunk is empty.
    """
    least = np.ones(depth, dtype=np.int64)
    if chunks == 1:
        least[0] = least[-1] = 0
    return least


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """What does not change while a bound is looked for."""

    family: Family
    layers: int
    least: Ints
    most: Ints
    send: Floats
    # Of every stage by number of layers, [candidates, stages, layers + 1].
    seconds: Floats
    work: Floats
    follows: Floats
    base: Floats
    # Least seconds of the first stage's reduction, and of what follows that.
    reduced: Floats
    after: Floats
    # Least seconds of a layer on each stage, and of all layers on the best of them.
    price: Floats
    units: Floats
    cheapest_first: Ints
    # Of the stages in the bound on what passes through them, and whether later ones count there.
    weights: Floats
    behind: Floats

    @classmethod
    def of(
        cls,
        family: Family,
        tables: Tables,
        fitted: Fitted,
        stages: Stages,
        exactly: Ints | None,
        after: tuple[Floats, Floats],
    ) -> _Batch:
        depth, m, layers = stages.depth, family.micro_batches, family.layers
        both = np.zeros(stages.row.shape)
        weights, behind = stage_weights(depth, m)
        if family.waits:
            both[:, :-1] += family.waits * stages.send
            both[:, 1:] += family.waits * stages.send
        roles = stages.roles()
        held = np.minimum(m, np.arange(depth, 0, -1)) - 1
        if depth > 1:
            seconds = fitted.seconds[stages.row, roles, held]
            work = fitted.work[stages.row, roles, held]
        else:
            # A whole pipeline holds all layers, or nothing of use; its work says it all.
            work = np.zeros((*stages.row.shape, layers + 1))
            work[:, :, -1] = fitted.alone[stages.row]
            seconds = np.where(np.isfinite(work), 0.0, np.inf)
        most = np.isfinite(seconds).sum(axis=2) - 1
        least = least_layers(depth, family.degrees.virtual_stages)
        if exactly is not None:
            least, most = exactly, np.minimum(most, exactly)
        if depth == 1:
            least = np.array([layers])
        return cls(
            family=family,
            layers=layers,
            least=np.broadcast_to(least, stages.row.shape),
            most=most,
            send=both,
            seconds=seconds,
            work=work,
            follows=tables.after[stages.row, roles],
            base=(seconds[:, :, 0] + both).sum(axis=1),
            reduced=after[0],
            after=after[1],
            price=tables.cheapest[stages.row],
            units=layers * tables.unit[stages.row].min(axis=1),
            cheapest_first=np.argsort(tables.cheapest[stages.row], axis=1, kind="stable"),
            weights=weights,
            behind=behind,
        )

    def of_rows(self, keep: Bools | Ints) -> _Batch:
        """Some of the candidates."""
        return _Batch(
            self.family,
            self.layers,
            self.least[keep],
            self.most[keep],
            self.send[keep],
            self.seconds[keep],
            self.work[keep],
            self.follows[keep],
            self.base[keep],
            self.reduced[keep],
            self.after[keep],
            self.price[keep],
            self.units[keep],
            self.cheapest_first[keep],
            self.weights,
            self.behind,
        )

    def caps(self, seconds: Floats) -> Ints:
        """Layers that each stage may hold in a step of `seconds` [candidates].

        What the others cannot hold, a stage must; that makes the pipeline longer, and leaves less
        for each.
        """
        least, after = self.least, self.after
        caps = self._caps(seconds, least, after)
        for _ in range(ROUNDS):
            fits = self.fits(caps)
            if not fits.any():
                break
            spare = caps.sum(axis=1, keepdims=True) - self.layers
            least = np.where(fits[:, None], np.maximum(least, caps - spare), least)
            after = np.where(fits, np.maximum(after, self._slowest_after(caps)), after)
            caps = np.where(fits[:, None], self._caps(seconds, least, after), caps)
        return caps

    def _caps(self, seconds: Floats, least: Ints, after: Floats) -> Ints:
        m = self.family.micro_batches
        limit = (seconds - self.reduced - after)[:, None]
        smallest = np.take_along_axis(self.seconds, least[:, :, None], axis=2)[:, :, 0] + self.send
        before = np.cumsum(smallest, axis=1) - smallest
        # The stage's own micro-batches: with its own collectives, or between those passes that the
        # stages before it begin and end the pipeline with, of their first chunks only.
        before = before * self.family.first_chunk
        working = np.minimum(
            count_within(self.seconds, (limit - before) / m - self.send),
            count_within(self.work, seconds[:, None] - m * self.send),
        )
        caps = np.minimum(working, self.most)
        if self.family.degrees.virtual_stages > 1:
            return caps
        further = smallest.sum(axis=1, keepdims=True) - before - smallest
        passing = self._least_pass(least, np.maximum(caps, least))[:, None] + further * self.behind
        with np.errstate(divide="ignore", invalid="ignore"):
            room = (limit - passing) / self.weights - self.send
        room = np.where(self.weights > 0, room, np.where(limit >= passing, np.inf, -1.0))
        return np.minimum(caps, count_within(self.seconds, room))

    def _slowest_after(self, caps: Ints) -> Floats:
        """Least seconds of gathering and update on the stage with most of them, [candidates].

        The layers take at least as long there as the last of them that has to be somewhere.
        """
        number = np.arange(self.follows.shape[2])
        held = (number >= 1) & (number <= caps[:, :, None])
        follows = np.where(held, self.follows, np.inf)
        flat = follows.reshape(len(follows), -1)
        found: Floats = np.partition(flat, self.layers - 1, axis=1)[:, self.layers - 1]
        return np.where(np.isfinite(found), found, 0.0)

    def _least_pass(self, least: Ints, caps: Ints) -> Floats:
        """Least seconds of one micro-batch through all stages."""
        order = self.cheapest_first
        split = fill(order, least, caps, self.layers)
        found: Floats = self.base + np.maximum((split * self.price).sum(axis=1), self.units)
        return found

    def fits(self, caps: Ints) -> Bools:
        """Whether all layers have room."""
        found: Bools = (caps >= self.least).all(axis=1) & (caps.sum(axis=1) >= self.layers)
        return found


def split_shapes(
    family: Family,
    tables: Tables,
    fitted: Fitted,
    stages: Stages,
    after: tuple[Floats, Floats],
    bounds: Floats,
    top: Floats,
    exactly: Ints | None = None,
) -> tuple[Ints, Floats, Bools]:
    """A split of the layers of every shape, and the seconds that no split of it beats.

    Args:
        family: degrees and their costs.
        tables: of the family.
        fitted: the same within the memory of the stages.
        stages: the shapes.
        after: seconds of the first stage's reduction, and of what follows, in any case,
            each [candidates].
        bounds: seconds that no split beats, as known so far, [candidates].
        top: seconds within which a split is looked for, [candidates]; may be infinite.
        exactly: the only split that is allowed, where there is one.

    Returns:
        Splits, [candidates, stages], their bounds, [candidates], infinite where no split is within
        `top`, and whether the layers fit at all.
    """
    whole = _Batch.of(family, tables, fitted, stages, exactly, after)
    found = np.full(len(stages.row), np.inf)
    split = np.zeros(stages.row.shape, dtype=np.int64)
    holds = whole.fits(whole.most)
    rows = np.flatnonzero(holds)
    if not rows.size:
        return split, found, holds
    batch = whole.of_rows(rows)
    low, high = bounds[rows].copy(), top[rows]
    kept = batch.fits(batch.caps(high))
    if not kept.any():
        return split, found, holds
    if not kept.all():
        rows, batch, low, high = rows[kept], batch.of_rows(kept), low[kept], high[kept]
    for _ in range(HALVINGS):
        middle = np.where(np.isfinite(high), (low + high) / 2, 2 * low)
        enough = batch.fits(batch.caps(middle))
        high[enough] = middle[enough]
        low[~enough] = middle[~enough]
    found[rows] = low
    split[rows] = fill(batch.cheapest_first, batch.least, batch.caps(high), family.layers)
    return split, found, holds
