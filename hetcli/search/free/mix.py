"""Which pipelines to mix: a linear program over all sets of stages, then integers by HiGHS.

In a step of T seconds a set of stages does a whole number of micro-batches, so the most sequences
that any mix does in T is a linear program: columns are pipelines, rows are the devices of each
pool, by width of the groups that fit into a node. A T at which that is less than the global batch
bounds every mix from below. Real pipelines, their layers split, then replace the sets, and an
integer program says how many of each: the fastest mix is the least T in which it does the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from hetcli.search.free.columns import Column, best_columns
from hetcli.search.free.costs import Kind, PipelineCosts
from hetcli.search.free.sets import Sets
from hetcli.search.free.share import share, slowest

__all__ = ["Mix", "Mixer", "Rows"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Columns that join the linear program at once, and sets whose micro-batches are counted at once.
JOINING = 200
COUNTED = 2048
# Sets that are split at once, rounds of that, and pipelines of the integer program.
SPLIT = 128
MOST_ROUNDS = 6
MOST_SPLIT = 600
MOST_COLUMNS = 200
# More than what any pipeline does is worth beside its price.
BEFORE_ALL = 1e3
# Steps for which pipelines are kept, as shares of the one that they are ranked for.
SHORTER = (1.0, 0.9, 0.8, 0.7)
# How often pipelines are ranked anew for a shorter step, and how much shorter it must be.
MOST_RANKINGS = 3
CLOSER = 0.02
# The share of the batch for which another set is worth splitting.
WORTHWHILE = 1e-3
# Nodes and gap of one integer program: a worse mix is a worse plan, not a wrong one.
INTEGER_NODES = 200
INTEGER_GAP = 2e-3
# Relative accuracy of the bound and of the mix.
ACCURACY = 4e-3
# Relative slack with which sequences are enough.
ENOUGH = 1e-6
# Times that a step is doubled in the search of one that suffices.
MOST_DOUBLINGS = 12


@dataclass(frozen=True, slots=True)
class Mix:
    """The pipelines, each as often as it is taken, and the step time that their columns say."""

    pipelines: tuple[Column, ...]
    step_s: float


@dataclass(frozen=True, eq=False)
class Rows:
    """What the pipelines share: groups of at least a width in a pool, or devices of a quota.

    A mix may not use more than `limits`; `uses` are what one stage of each kind takes.
    """

    uses: Floats
    limits: Floats

    @classmethod
    def of(cls, kinds: Sequence[Kind], quotas: Sequence[tuple[Sequence[bool], int]]) -> Rows:
        """Rows of all pools of `kinds`; a quota is which kinds count, and how many devices."""
        uses, limits = [], []
        for pool in dict.fromkeys(kind.pool for kind in kinds):
            widths = sorted({kind.tensor for kind in kinds if kind.pool is pool} | {1})
            for width in widths:
                uses.append(
                    [float(kind.tensor // width) if kind.pool is pool else 0.0 for kind in kinds]
                )
                limits.append(float(pool.group_count(width)))
        for counted, devices in quotas:
            uses.append(
                [
                    float(kind.tensor) if counts else 0.0
                    for kind, counts in zip(kinds, counted, strict=True)
                ]
            )
            limits.append(float(devices))
        return cls(np.array(uses), np.array(limits))


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The most sequences that a fractional mix does in a step, and how often it takes each set.

    `reduced` is what every set does beyond what its devices are worth, at most about 0.
    """

    sequences: float
    taken: dict[int, float]
    reduced: Floats


@dataclass(eq=False)
class Mixer:
    """The linear and integer programs over the sets of all settings.

    A column is as many pipelines at once as its setting says; the states of these are sharded over
    each other.
    """

    costs: PipelineCosts
    rows: Rows
    found: Sequence[Sets]
    batch: int
    scored: int = 0
    _use: Floats = field(init=False)
    _size: Floats = field(init=False)
    _pace: Floats = field(init=False)
    _pass: Floats = field(init=False)
    _starts: Ints = field(init=False)
    # Which sets take as many devices of every kind: one number for each such class.
    _devices: Ints = field(init=False)
    _plain: Floats = field(init=False)
    _sync: float = 1.0
    _table: tuple[Ints, list[Column], Floats] | None = None
    _known: dict[int, Column | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        used: dict[int, Floats] = {}
        for each in self.found:
            if id(each.counts) not in used:
                used[id(each.counts)] = each.counts @ self.rows.uses.T
        self._use = np.concatenate(
            [used[id(each.counts)] * each.setting.replicas for each in self.found]
        )
        self._pass = np.concatenate([each.pass_s for each in self.found])
        self._pace = np.concatenate([each.work / each.speeds.sum(axis=1) for each in self.found])
        self._size = np.concatenate(
            [np.full(len(each.counts), float(each.setting.sequences)) for each in self.found]
        )
        _, classes = np.unique(self._use, axis=0, return_inverse=True)
        self._devices = classes.reshape(-1).astype(np.int64)
        kinds = np.concatenate([(each.counts > 0).sum(axis=1) for each in self.found])
        self._plain = np.where(kinds == 1, BEFORE_ALL, 0.0)
        self._starts = np.cumsum([0, *(len(each.counts) for each in self.found)])
        kept = np.concatenate([each.fit for each in self.found])
        kept &= (self._use <= self.rows.limits).all(axis=1)
        self._pass[~kept] = np.inf

    @property
    def seen(self) -> int:
        """Sets that may hold the model."""
        return int(np.isfinite(self._pass).sum())

    # --- the bound ------------------------------------------------------------------------------

    def relaxed(self, step_s: float) -> Relaxed:
        """The most sequences of any fractional mix in `step_s`, rounded up if at all."""
        most, counted = self._promises(step_s)
        active = self._seed(most, JOINING)
        joined = np.zeros(len(most), dtype=np.bool_)
        joined[active] = True
        if not len(active):
            return Relaxed(0.0, {}, most)
        worth = ENOUGH * self.batch
        while True:
            rough = active[~counted[active]]
            if len(rough):
                self._count(rough, step_s, most, counted)
            solved = self._solve(active, most[active])
            if solved is None:
                return Relaxed(0.0, {}, most)
            value, numbers, price = solved
            reduced = most - price
            while len(rough := np.flatnonzero((reduced > worth) & ~counted)):
                self._count(_largest(reduced, rough, COUNTED), step_s, most, counted)
                reduced = most - price
            more = np.flatnonzero((reduced > worth) & ~joined)
            if not len(more):
                taken = {
                    int(row): float(number)
                    for row, number in zip(active, numbers, strict=True)
                    if number > SMALLEST
                }
                return Relaxed(value, taken, reduced)
            more = _largest(reduced, more, JOINING)
            joined[more] = True
            active = np.concatenate([active, more])

    def _seed(self, most: Floats, number: int) -> Ints:
        """Sets with the most sequences for the share of the devices that they take."""
        part = (self._use / np.maximum(self.rows.limits, SMALLEST)).max(axis=1)
        return _largest(most / part, np.flatnonzero(most), number)

    def _solve(self, active: Ints, done: Floats) -> tuple[float, Floats, Floats] | None:
        """The linear program over some sets: its value, how often each, what the rows cost all."""
        use = self._use[active].T
        result = linprog(-done, A_ub=use, b_ub=self.rows.limits, method="highs")
        if result.x is None or result.fun is None:
            return None
        prices = -np.asarray(result.ineqlin.marginals, dtype=np.float64)
        price: Floats = self._use @ prices
        return float(-result.fun), np.asarray(result.x, dtype=np.float64), price

    def _count(self, rows: Ints, step_s: float, most: Floats, counted: NDArray[np.bool_]) -> None:
        """Replace what sets do at their pace by whole micro-batches in a pipeline."""
        for sets, chosen, own in self._members(rows):
            most[chosen] = sets.setting.sequences * sets.micro_batches(step_s, own)
        counted[rows] = True

    def suffices(self, step_s: float) -> bool:
        """Whether some fractional mix does the batch in a step of `step_s`."""
        return self.relaxed(step_s).sequences >= self.batch * (1 - ENOUGH)

    def bound(self, known_s: float) -> float:
        """Seconds of a step that no mix beats, at most `known_s`."""
        low, high = 0.0, known_s
        if not self.suffices(high):
            return high
        # Down by halves to a step that is too short, then closer.
        low = high / 2
        while self.suffices(low):
            low, high = low / 2, low
        while high > low * (1 + ACCURACY):
            middle = (low * high) ** 0.5
            if self.suffices(middle):
                high = middle
            else:
                low = middle
        return low

    def enough(self) -> float:
        """A step in which some fractional mix does the batch; infinite where nothing fits."""
        possible = np.isfinite(self._pass)
        if not possible.any():
            return np.inf
        step_s = float((self._pass + self.batch / self._size * self._pace)[possible].min())
        for _ in range(MOST_DOUBLINGS):
            if self.relaxed(step_s).sequences >= self.batch:
                return step_s
            step_s *= 2
        return np.inf

    # --- real pipelines -------------------------------------------------------------------------

    def mixes(self, bound_s: float, known_s: float) -> list[Mix]:
        """Whole mixes of less than `known_s`, the fastest first; none where there is none.

        The synchronisation that the columns expect is inside.
        """
        found: list[Mix] = []
        step_s = known_s
        for _ in range(MOST_RANKINGS):
            faster = self._faster(self._columns(step_s), bound_s, step_s)
            if not faster:
                break
            found += faster
            best_s = min(mix.step_s for mix in faster)
            if best_s > step_s * (1 - CLOSER):
                break
            # Shorter steps are filled by other pipelines.
            step_s = best_s
        return sorted(dict.fromkeys(found), key=lambda mix: mix.step_s)

    def any_mixes(self, bound_s: float) -> list[Mix]:
        """The fastest mixes where no plan is known that they must beat."""
        step_s = bound_s
        for _ in range(MOST_DOUBLINGS):
            step_s *= 2
            found = self.mixes(bound_s, step_s)
            if found:
                return found
        return []

    def _faster(self, columns: Sequence[Column], low: float, high: float) -> list[Mix]:
        """Whole mixes of some pipelines, each found in a shorter step than the one before."""
        mixes: list[Mix] = []
        step_s = high
        while high > low * (1 + ACCURACY):
            found = self._integers(columns, step_s)
            if found is not None:
                mixes.append(found)
                high = min(step_s, found.step_s)
            elif not mixes:
                break
            else:
                low = step_s
            step_s = (low * high) ** 0.5
        return mixes

    def correct(self, placed: Mapping[Column, Column], after_s: float) -> None:
        """Learn from a mix that was predicted: what its pipelines take where they are `placed`, and
        what follows the last backward pass, in proportion for all pipelines."""
        self._table = None
        expected = max(column.after_s for column in placed)
        factor = after_s / expected if expected else 1.0
        for row, column in self._known.items():
            if column is not None:
                there = placed.get(column, column)
                self._known[row] = replace(there, after_s=there.after_s * factor)
        self._sync *= factor

    def _columns(self, step_s: float) -> list[Column]:
        """Pipelines of the best fractional mix, and the best ones of other sets of devices.

        Sets are split as long as their bound promises more than the pipelines that are there.
        """
        most, counted = self._promises(step_s)
        more = np.array(sorted(self.relaxed(step_s).taken), dtype=np.int64)
        worth = WORTHWHILE * self.batch
        price = np.zeros(len(most))
        for _ in range(MOST_ROUNDS):
            self._split(more, step_s)
            rows, _, done = self._real(step_s)
            solved = self._solve(rows, done) if len(rows) else None
            if solved is None:
                more = self._seed(most, JOINING)
                more = more[[int(row) not in self._known for row in more]]
            else:
                price = solved[2]
                near = np.flatnonzero(~counted & (most - price > worth))
                self._count(_largest(most - price, near, COUNTED), step_s, most, counted)
                lack = most - price
                lack[list(self._known)] = -np.inf
                more = _largest(lack, np.flatnonzero(lack > worth), SPLIT)
            if not len(more):
                break
        # For every number of devices of each kind the sets that promise most, one a size; first
        # those of one kind, which fill what others leave.
        value = np.where(most > 0, most / np.maximum(price, SMALLEST), -np.inf) + self._plain
        first = self._first(self._devices * (self.batch + 1) + self._size.astype(np.int64), most)
        first = _largest(value, first[most[first] > 0], MOST_SPLIT)
        self._split(first[[int(row) not in self._known for row in first]], step_s)
        rows, columns, done = self._real(step_s)
        value = done / np.maximum(price[rows], SMALLEST) + self._plain[rows]
        kept = np.zeros(len(rows), dtype=np.bool_)
        for shorter in SHORTER:
            _, _, left = self._real(step_s * shorter)
            best = self._first(self._devices[rows], left)
            kept[best[left[best] > 0]] = True
        return [columns[at] for at in _largest(value, np.flatnonzero(kept), MOST_COLUMNS)]

    @staticmethod
    def _first(classes: Ints, values: Floats) -> Ints:
        """For every class the position of the largest of `values`; ties by position."""
        order = np.lexsort((np.arange(len(values)), -values, classes))
        starts = np.flatnonzero(np.diff(classes[order], prepend=-1))
        return order[starts]

    def _real(self, step_s: float) -> tuple[Ints, list[Column], Floats]:
        """The sets that are pipelines already, those, and what they do in a step."""
        if self._table is None:
            real = [(row, column) for row, column in self._known.items() if column is not None]
            numbers = [
                (each.overhead_s, each.pace_s, each.setting.sequences, each.depth)
                for _, each in real
            ]
            self._table = (
                np.array([row for row, _ in real], dtype=np.int64),
                [column for _, column in real],
                np.array(numbers, dtype=np.float64).reshape(-1, 4).T,
            )
        rows, columns, (overhead, pace, size, depth) = self._table
        number = np.floor((step_s - overhead) / pace * (1 + SMALLEST))
        return rows, columns, np.where(number >= depth, size * number, 0.0)

    def _promises(self, step_s: float) -> tuple[Floats, NDArray[np.bool_]]:
        """The sequences of every set at its pace, and which of them are counted in a pipeline."""
        most = np.where(self._pass <= step_s, self._size * step_s / self._pace, 0.0)
        return most, most == 0

    def _done(self, column: Column, step_s: float) -> float:
        """Sequences of a pipeline in a step, in whole micro-batches; 0 if it is not filled."""
        number = int(column.micro_batches(step_s) * (1 + SMALLEST))
        return float(column.setting.sequences * number * (number >= column.depth))

    def _split(self, rows: Ints, step_s: float) -> None:
        """Make pipelines of sets: the best split and order of each."""
        chosen: list[int] = []
        wanted: list[float] = []
        members = []
        for sets, positions, own in self._members(rows):
            chosen += [int(row) for row in positions]
            wanted += [max(float(number), 1.0) for number in sets.micro_batches(step_s, own)]
            members += [(sets.setting, sets.stages(int(row))) for row in own]
        self.scored += len(chosen)
        self._table = None
        for row, column in zip(chosen, best_columns(self.costs, members, wanted), strict=True):
            self._known[row] = column and replace(column, after_s=column.after_s * self._sync)

    def _integers(self, columns: Sequence[Column], step_s: float) -> Mix | None:
        """A whole mix that does the batch in `step_s`, with the time that it really takes."""
        pairs = [(column, done) for column in columns if (done := self._done(column, step_s))]
        if not pairs:
            return None
        use = np.array([self._uses(column) for column, _ in pairs]).T
        sequences = np.array([done for _, done in pairs])
        # The fewest that suffice: what is too much would have to be taken back.
        result = milp(
            sequences,
            integrality=np.ones(len(pairs), dtype=np.int64),
            bounds=Bounds(0, np.inf),
            constraints=[
                LinearConstraint(use, -np.inf, self.rows.limits),
                LinearConstraint(sequences[None, :], self.batch, np.inf),
            ],
            options={"node_limit": INTEGER_NODES, "mip_rel_gap": INTEGER_GAP},
        )
        if result.x is None:
            return None
        taken = [
            column
            for (column, _), number in zip(pairs, result.x, strict=True)
            for _ in range(round(number) * column.setting.replicas)
        ]
        counts = share(taken, self.batch)
        if counts is None:
            return None
        return Mix(tuple(taken), slowest(taken, counts))

    def _uses(self, column: Column) -> Floats:
        kinds = self.found[0].kinds
        counts = np.zeros(len(kinds))
        for kind, count in column.runs:
            counts[kinds.index(kind)] += count
        used: Floats = self.rows.uses @ counts * column.setting.replicas
        return used

    def _members(self, rows: Ints) -> Iterator[tuple[Sets, Ints, Ints]]:
        """Rows by their sets: which, where in all rows, and where among their own."""
        home = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(home):
            chosen = rows[home == number]
            yield self.found[number], chosen, chosen - self._starts[number]


# A number that is nothing beside micro-batches, pipelines and seconds.
SMALLEST = 1e-9


def _largest(values: Floats, among: Ints, number: int) -> Ints:
    """The positions `among` of the largest values, largest first; ties in order of position."""
    if len(among) > number:
        among = np.sort(among[np.argpartition(-values[among], number)[:number]])
    ordered: Ints = among[np.argsort(-values[among], kind="stable")]
    return ordered
