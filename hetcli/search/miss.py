"""Why nothing fits: the candidate that comes nearest, and what it lacks on which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetcli.errors import InfeasibleError
from hetcli.search.costing import Costing
from hetcli.search.families import Problem, families, recomputes
from hetcli.search.layout import Degrees, Layout, configuration
from hetcli.search.leaf import least_bottleneck_of
from hetcli.search.limits import Limits, Rooms
from hetcli.search.mixes import mixes, ordered
from hetcli.search.pools import Pool
from hetcli.search.ranges import by_number
from hetcli.search.splits import least_layers
from hetcli.units import format_bytes

__all__ = ["Miss", "infeasible", "nearest_miss"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Shapes that are made at a time, and how closely a shortfall is known before splits are weighed.
SHAPES = 20_000
CLOSE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Miss:
    """A layout that does not fit: its fullest stage, what that needs and what it has, bytes."""

    layout: Layout
    stage: int
    peak_bytes: int
    room_bytes: int

    @property
    def shortfall_bytes(self) -> int:
        """What is missing on the binding device."""
        return self.peak_bytes - self.room_bytes


def nearest_miss(problem: Problem) -> Miss | None:
    """The layout whose fullest device lacks least; None when no rule allows any layout.

    Shortfalls are compared to the MiB.
    """
    costing = Costing(problem)
    limits = Limits(problem.model, problem.workload)
    nearest: Miss | None = None
    for degrees in sorted(families(problem, Counter()), key=_lean):
        found = _Shapes.of(problem, costing, limits, degrees).nearest(nearest)
        if found and (nearest is None or found.shortfall_bytes < nearest.shortfall_bytes):
            nearest = found
    return nearest


def _lean(degrees: Degrees) -> tuple[object, ...]:
    """Families that hold least first: small micro-batches, many shards."""
    return (degrees.micro_batch_size, -degrees.zero_stage, -degrees.tensor, degrees)


@dataclass(frozen=True, slots=True, eq=False)
class _Shapes:
    """All shapes of one family, each pool recomputing as much as it may.

    `pools` and `degrees` are those of each row, `runs` pairs of rows and stages of each run.
    `peaks[r]` are the bytes of stages of row r, as `Limits.peaks` gives them, with a pipeline and
    without.
    """

    problem: Problem
    limits: Limits
    micro_batches: int
    pools: tuple[Pool, ...]
    degrees: tuple[Degrees, ...]
    runs: tuple[tuple[Ints, Ints], ...]
    peaks: Sequence[tuple[Floats, Floats]]

    @classmethod
    def of(cls, problem: Problem, costing: Costing, limits: Limits, degrees: Degrees) -> _Shapes:
        """The shapes that the rules allow."""
        layers = problem.model.layer_count
        pools = tuple(pool for pool in problem.pools if costing.runs(degrees, pool))
        own = tuple(replace(degrees, recompute=recomputes(problem, pool)[0]) for pool in pools)
        most = np.array(
            [pool.group_count(degrees.tensor) // degrees.members for pool in pools], dtype=np.int64
        )
        micro_batches = costing.micro_batches(degrees)
        deepest = int(min(layers + 2, micro_batches, most.sum()))
        if degrees.zero_stage > 1:
            deepest = min(deepest, 1)
        where = np.array([pool.index for pool in pools], dtype=np.int64)
        room = np.full((len(pools), deepest + 1), layers)
        made = mixes(where, most, room, layers, deepest, costing.apart)
        counts = made.counts
        stages = problem.options.pipeline_parallel
        if stages is not None:
            counts = counts[counts.sum(axis=1) == stages]
        runs = tuple(
            (rows, number) for rows, number, _ in ordered(counts, where, costing.orders, SHAPES)
        )
        peaks = [
            (
                limits.peaks(row, pool, deepest, pipelined=True),
                limits.peaks(row, pool, 1, pipelined=False),
            )
            for row, pool in zip(own, pools, strict=True)
        ]
        return cls(problem, limits, micro_batches, pools, own, runs, peaks)

    def nearest(self, known: Miss | None) -> Miss | None:
        """The nearest miss, if it is nearer than the known one."""
        if not self.runs:
            return None
        high = float(max(table.max() for pair in self.peaks for table in pair))
        if known is not None:
            high = float(known.shortfall_bytes - CLOSE_BYTES)
        shape = self._fitting(high)
        if shape is None:
            return None
        low = -float(max(self.limits.room(pool) for pool in self.pools))
        while high - low > CLOSE_BYTES:
            middle = (low + high) / 2
            better = self._fitting(middle)
            if better is None:
                low = middle
            else:
                high, shape = middle, better
        return self._split(*shape)

    def _fitting(self, lent: float) -> tuple[Ints, Ints] | None:
        """The first shape that holds all layers if every device had `lent` bytes more."""
        room = [self.limits.room(pool) + lent for pool in self.pools]
        most = np.array(
            [
                (table <= free).sum(axis=2) - 1
                for (table, _), free in zip(self.peaks, room, strict=True)
            ]
        )
        single = np.array(
            [
                (table[3, 0] <= free).sum() - 1
                for (_, table), free in zip(self.peaks, room, strict=True)
            ]
        )
        rooms = Rooms.of_tables(most, single)
        for rows, counts in self.runs:
            fits = np.flatnonzero(rooms.layers(rows, counts) >= self.problem.model.layer_count)
            if fits.size:
                return rows[fits[0]], counts[fits[0]]
        return None

    def _split(self, rows: Ints, counts: Ints) -> Miss:
        """Spread the layers so that the fullest device lacks as little as possible."""
        row = np.repeat(rows, counts)
        depth = len(row)
        least = least_layers(depth)
        lacking, peaks = [], []
        for stage, index in enumerate(row):
            peak = self.limits.range_peaks(
                self.degrees[index],
                self.pools[index],
                ((min(self.micro_batches, depth - stage),),),
                first=stage == 0,
                last=stage == depth - 1,
                pipelined=depth > 1,
            )
            start, stop = np.ogrid[: len(peak), : len(peak)]
            legal = stop - start >= least[stage]
            lacking.append(np.where(legal, peak - self.limits.room(self.pools[index]), np.inf))
            peaks.append(peak)
        split = least_bottleneck_of([by_number(each) for each in lacking])
        assert split is not None
        stops = np.cumsum(split)
        needs = [
            float(lacking[at][stop - n, stop])
            for at, (n, stop) in enumerate(zip(split, stops, strict=True))
        ]
        worst = int(np.argmax(needs))
        pool = self.pools[row[worst]]
        layout = Layout(
            replace(self.degrees[0], recompute="none"),
            tuple((self.pools[at], int(n)) for at, n in zip(rows, counts, strict=True)),
            tuple(int(number) for number in split),
            tuple(self.degrees[at].recompute for at in row),
        )
        needed = int(peaks[worst][stops[worst] - split[worst], stops[worst]])
        return Miss(layout, worst, needed, self.limits.room(pool))


def infeasible(
    problem: Problem, pruned: Mapping[str, int], seen: int, miss: Miss | None
) -> InfeasibleError:
    """The negative answer in three parts: what, by which rules, and what comes nearest."""
    what = f"no plan of {problem.model.name} fits on {problem.hardware.name}"
    rules = ", ".join(f"{count} by {rule}" for rule, count in sorted(pruned.items()) if count)
    why = f"{seen} candidates seen" + (f": {rules}" if rules else "")
    if miss is None:
        return InfeasibleError(
            what,
            why=f"{why}; no degrees satisfy the rules of batch, heads and nodes",
            fix="fix fewer degrees, or a global batch with more divisors",
        )
    degrees = miss.layout.degrees
    stage = configuration(miss.layout, problem.workload).stages[miss.stage]
    device = stage.replicas[0].devices[0]
    pool = [pool for pool, count in miss.layout.runs for _ in range(count)][miss.stage]
    margin = format_bytes(problem.workload.memory_margin)
    choice = miss.layout.stage_recompute[miss.stage]
    recompute = f", {choice} recompute" if choice != "none" else ""
    if miss.shortfall_bytes <= 0:
        need = f"fits, but a rule forbids it: {why}"
    else:
        need = (
            f"needs {format_bytes(miss.peak_bytes)} of the {format_bytes(miss.room_bytes)} that "
            f"{device} ({pool.device_type.name}) has beside the margin of {margin}: "
            f"short by {miss.shortfall_bytes / 1024**3:.2f} GiB"
        )
    return InfeasibleError(
        what,
        why=why,
        fix=f"nearest miss: tp{degrees.tensor} pp{miss.layout.stages} dp{degrees.data} "
        f"mbs{degrees.micro_batch_size}{recompute}, layers "
        f"{','.join(map(str, miss.layout.layers))}; stage {miss.stage} {need}",
    )
