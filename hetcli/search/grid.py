"""The search of the grid space: best first, so that the bound of what is left proves the answer.

Everything waits in one queue, ordered by a bound on the value of what may come of it: degrees,
families with the costs of their stages, mixes of stages, shapes (mixes in an order), and shapes
with a bound over all their splits. The least entry is refined first; of a shape whose turn has come
the best split is found. When nothing in the queue can beat the best plan, that is proven.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.rules import interleaving_is_legal
from hetcli.search.bounds import (
    MixRooms,
    after_pipeline,
    family_bound,
    has_room,
    made_within,
    mix_bounds,
    row_caps,
    row_rooms,
    shape_bounds,
    uniform_bound,
    uniform_bounds,
)
from hetcli.search.costing import Costing
from hetcli.search.costs import Family
from hetcli.search.depths import Depths
from hetcli.search.entries import Interleaved, Item, Mixed, Open, Shape, Shapes, size
from hetcli.search.exact import Exact, exact_of
from hetcli.search.families import Problem, families, precisions
from hetcli.search.found import Found, predicted
from hetcli.search.incumbents import Incumbents
from hetcli.search.layout import Degrees
from hetcli.search.leaf import best_split, least_bottleneck, polished
from hetcli.search.limits import Limits
from hetcli.search.mixes import mixes, ordered
from hetcli.search.partition import even_split
from hetcli.search.requirements import Requirements
from hetcli.search.splits import split_shapes, stages_of
from hetcli.search.tables import Fitted, Tables
from hetcli.search.tail import ALONE
from hetcli.search.worth import Worth, check_prices

__all__ = ["Grid"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Stages of shapes that are split together: enough to pay for the calls, not to fill the caches.
BATCH = 1024
# Mixes that are put in order together, and shapes that are made of them at a time.
MIXES = 512
SHAPES = 20_000
# How far above its bound a family is looked into at first, and how much further each time.
WINDOW = 1.05
GROWTH = 3
# Nearer to its bound no family is looked into: too many mixes there are not looked at whole.
NARROW = 1.005
# Step times between a family's bound and the top of its window at which mixes are looked at.
STEPS = 8
# Shapes that are made, and shapes whose splits are weighed one by one, before the search gives up
# the proof: what a few seconds allow.
MOST_SHAPES = 3_000_000
MOST_LEAVES = 3_000


@dataclass(eq=False)
class Grid:
    """One search."""

    problem: Problem
    costing: Costing = field(init=False)
    limits: Limits = field(init=False)
    requirements: Requirements = field(init=False)
    worth: Worth = field(init=False)
    depths: Depths = field(init=False)
    pruned: Counter[str] = field(default_factory=Counter)
    scored: int = 0
    incumbents: Incumbents = field(init=False)
    # The least bound of what was given up.
    _given_up: float = np.inf
    _shapes_made: int = 0
    _leaves: int = 0
    # How near plans of each depth came to their bounds at best.
    _reached: dict[int, float] = field(default_factory=dict)
    _queue: list[tuple[float, int, Item]] = field(default_factory=list)
    _tickets: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        problem = self.problem
        self.costing = Costing(problem)
        self.limits = Limits(problem.model, problem.workload)
        self.requirements = Requirements(
            problem.options, problem.workload, problem.hardware, problem.pools
        )
        self.requirements.check()
        self.depths = Depths(problem, self.costing, self.requirements)
        self.worth = Worth(problem, self.requirements)
        self.incumbents = Incumbents(self.requirements, self.worth)
        if problem.workload.objective == "cost":
            check_prices(problem)

    def run(self) -> Found:
        """Search the whole space, or as much as the user and the limit on work allow.

        What Ctrl-C finds under way goes back into the queue: the bound holds for it too.
        """
        deadline = time.monotonic() + (self.problem.options.time_limit_s or np.inf)
        for degrees in families(self.problem, self.pruned):
            self._push(self.depths.least(degrees), degrees)
            chunks = self.depths.chunks(degrees)
            if chunks:
                self._push(self.depths.least(degrees, chunks), Interleaved(degrees, chunks))
        interrupted = False
        while self._queue:
            value, _, item = self._queue[0]
            if value >= self.incumbents.threshold or not value < np.inf or self._is_over(deadline):
                break
            heapq.heappop(self._queue)
            try:
                self._refine(value, item)
            except KeyboardInterrupt:
                self._push(value, item)
                interrupted = True
                break
        left = min((value for value, _, _ in self._queue), default=np.inf)
        complete = not min(left, self._given_up) < self.incumbents.threshold
        stopped = left < self.incumbents.threshold
        why = "left when the search stopped" if stopped else "slower than the plans kept"
        for value, _, item in self._queue:
            self.pruned[why if value < np.inf else "memory of the pools"] += size(item)
        plans = predicted(self.problem, self.requirements, self.incumbents.plans)
        bound = min(left, self._given_up, *(best.value for best in plans[:1]))
        seen = self.scored + sum(self.pruned.values())
        pruned = +self.pruned  # without zeros
        return Found(plans, bound, seen, self.scored, pruned, complete, interrupted)

    def _refine(self, value: float, item: Item) -> None:
        """Replace an entry of the queue by what it consists of."""
        if isinstance(item, Degrees):
            self._cost(value, item)
        elif isinstance(item, Interleaved):
            for chunks in item.chunks:
                degrees = replace(item.degrees, virtual_stages=chunks)
                self._push(self.depths.least(degrees), degrees)
        elif isinstance(item, Open):
            (self._mix if item.fitted else self._fit)(value, item)
        elif isinstance(item, Mixed):
            self._order(item)
        elif isinstance(item, Shapes):
            self._split(item)
        else:
            self._weigh(value, item)

    def _is_over(self, deadline: float) -> bool:
        """Whether the search stops: never without a plan, unless the user's time is up."""
        if time.monotonic() > deadline:
            return True
        spent = self._shapes_made > MOST_SHAPES or self._leaves > MOST_LEAVES
        return spent and self.incumbents.threshold < np.inf

    def _push(self, value: float, item: Item) -> None:
        heapq.heappush(self._queue, (value, next(self._tickets), item))

    # --- degrees and families -------------------------------------------------------------------

    def _cost(self, value: float, degrees: Degrees) -> None:
        """Queue a family with the costs of its stages."""
        most = self.depths.most_stages(degrees)
        family = self.costing.family(degrees, most)
        tables = Tables.of(family, self.costing.kinds(degrees.virtual_stages))
        if self.worth.is_time:
            stages = self.problem.options.pipeline_parallel
            deepest = self.depths.deepest(degrees, most)
            value = max(value, family_bound(family, tables, deepest, stages))
            if self.problem.options.uniform_layers:
                value = max(value, uniform_bound(family, tables, deepest))
        self._push(value, Open(family, tables, None, 0.0, WINDOW))

    def _fit(self, value: float, home: Open) -> None:
        """Queue a family with what its stages can hold."""
        family, degrees = home.family, home.family.degrees
        deepest = self.depths.deepest(degrees, self.depths.most_stages(degrees))
        choices = home.tables.seconds.shape[1]
        most = np.full((len(family.rows), choices, 4, deepest), -1, dtype=np.int64)
        alone = np.zeros((len(family.rows), choices), dtype=np.bool_)
        slowest = self._slowest()
        for index, row in enumerate(family.rows):
            for back, choice in enumerate(reversed(row.choices), start=1):
                own = replace(degrees, recompute=choice)
                if deepest > 1:
                    most[index, -back] = self.limits.most_layers(
                        own, row.pool, deepest, pipelined=True
                    )
                whole = home.tables.work[index, -back, ALONE, -1] <= slowest
                if degrees.virtual_stages == 1 and whole:
                    alone[index, -back] = self.limits.holds_all(own, row.pool)
                if most[index, -back, :3].min() >= family.layers and alone[index, -back]:
                    # Nothing has to be recomputed.
                    break
        fitted = Fitted.of(home.tables, most, alone)
        room = has_room(family, fitted, deepest)
        self._push(value if room else np.inf, replace(home, fitted=fitted))

    # --- mixes and shapes -----------------------------------------------------------------------

    def _slowest(self) -> float:
        """Seconds from which a step is of no use, whatever devices it is on."""
        most = self.requirements.most_seconds
        return min(most, self.incumbents.threshold) if self.worth.is_time else most

    def _mix(self, value: float, home: Open) -> None:
        """Queue the mixes of a family whose bound is near its own; the others wait."""
        family = home.family
        throughput = self.worth.is_time
        # A mix costs what its devices do, which its layers alone say nothing of.
        top = (
            min(self.incumbents.threshold, value * home.window)
            if throughput
            else self.incumbents.threshold
        )
        seconds = min(top if throughput else np.inf, self.requirements.most_seconds)
        counts, complete, all_made = self._made(home, seconds)
        if not complete and throughput and home.window > NARROW:
            # Too many at once: a part of the window has fewer.
            self._push(value, replace(home, window=1 + (home.window - 1) / 3))
            return
        if not complete:
            self._given_up = min(self._given_up, value)
        rows = np.broadcast_to(np.arange(len(family.rows)), counts.shape)
        rate = self.worth.rate(family, rows, counts)
        bounds = np.maximum(mix_bounds(family, home.tables, counts), 0.0)
        if self.problem.options.uniform_layers:
            bounds = np.maximum(bounds, uniform_bounds(family, home.tables, counts))
        value_of = self.worth.value(bounds, rate)
        if throughput and np.isfinite(top):
            near = value_of < top
            raised = self._whole_layers(home, counts[near], max(value, home.floor), top)
            value_of[near] = np.maximum(value_of[near], raised)
        if home.floor and home.fitted:
            # Those without room at the floor are new, whatever their bounds are.
            made = made_within(family, home.fitted, counts, home.floor)
            value_of = np.where(made, value_of, np.maximum(value_of, home.floor))
        further = value_of >= top
        if top < self.incumbents.threshold and seconds < self.requirements.most_seconds:
            if further.any() or not all_made:
                self._push(top, replace(home, floor=top, window=1 + GROWTH * (home.window - 1)))
        else:
            self.pruned["slower than the plans kept"] += int(further.sum())
        kept = np.flatnonzero(~further & (value_of >= home.floor))
        kept = kept[self._legal(family, counts[kept], self.pruned)]
        kept = kept[self.requirements.keep_bounds(bounds[kept], (bounds * rate)[kept], self.pruned)]
        order = kept[np.argsort(value_of[kept], kind="stable")]
        if order.size:
            bounds = np.maximum(value_of[order], value)
            self._push(float(bounds[0]), Mixed(home, counts[order], bounds))

    def _made(self, home: Open, seconds: float) -> tuple[Ints, bool, bool]:
        """The mixes that may do a step in so many seconds.

        Also whether these are all of them, and whether more time would not make more.
        """
        family, fitted = home.family, home.fitted
        assert fitted is not None
        alone = fitted.alone <= seconds
        all_alone = bool(alone.sum() == np.isfinite(fitted.alone).sum())
        deepest = self.depths.deepest(family.degrees, self.depths.most_stages(family.degrees))
        single = np.eye(len(alone), dtype=np.int64)[alone]
        if deepest < 2:
            return single, True, all_alone
        caps = row_caps(family, fitted, seconds)
        made = mixes(
            family.pool, family.most, row_rooms(caps), family.layers, deepest, self.costing.apart
        )
        several = made.counts[made.counts.sum(axis=1) > 1]
        all_made = all_alone and bool((caps >= row_caps(family, fitted, np.inf)).all())
        return np.concatenate([single, several]), made.complete, all_made

    def _whole_layers(self, home: Open, counts: Ints, low: float, high: float) -> Floats:
        """Seconds below which the stages of mixes have no room for all layers, [candidates]."""
        assert home.fitted is not None
        seconds = np.linspace(low, high, STEPS + 1)
        held = MixRooms.of(home.family, home.fitted, counts).layers(seconds)
        # More time never has less room.
        lacking = ((held < home.family.layers) & (counts.sum(axis=1) > 1)).sum(axis=0)
        found: Floats = np.concatenate([[0.0], seconds])[lacking]
        return found

    def _legal(self, family: Family, counts: Ints, pruned: Counter[str]) -> Ints:
        """Which mixes keep the rules of framework, precision, fixed stages and requirements."""
        options, degrees = self.problem.options, family.degrees
        depth = counts.sum(axis=1)
        keep = np.ones(len(counts), dtype=np.bool_)
        if options.pipeline_parallel is not None:
            keep &= depth == options.pipeline_parallel
        if degrees.virtual_stages > 1:
            m = self.costing.micro_batches(degrees)
            legal = [
                p > 1 and interleaving_is_legal(p, m) for p in range(int(depth.max(initial=0)) + 1)
            ]
            keep &= np.array(legal)[depth]
        by_pool = np.zeros((len(counts), len(self.problem.pools)), dtype=np.int64)
        np.add.at(by_pool.T, family.pool, counts.T)
        wanted = precisions(self.problem)[degrees.precision]
        keep &= (by_pool[:, sorted(wanted)] > 0).any(axis=1)
        kept = np.flatnonzero(keep)
        every = range(len(self.problem.pools))
        found: Ints = kept[self.requirements.keep_shapes(degrees, every, by_pool[kept], pruned)]
        return found

    def _order(self, mixed: Mixed) -> None:
        """Queue the shapes of the most promising mixes."""
        home, family = mixed.home, mixed.home.family
        worth = self._worth(mixed.bounds)
        cut = min(worth, MIXES)
        if cut < worth:
            rest = replace(mixed, counts=mixed.counts[cut:worth], bounds=mixed.bounds[cut:worth])
            self._push(float(rest.bounds[0]), rest)
        if not cut:
            return
        found: dict[tuple[int, int], list[tuple[Ints, Ints, Floats]]] = {}
        for rows, counts, complete in ordered(
            mixed.counts[:cut], family.pool, self.costing.orders, SHAPES
        ):
            self._shapes_made += len(rows)
            if not complete:
                self._given_up = min(self._given_up, float(mixed.bounds[0]))
            rate = self.worth.rate(family, rows, counts)
            bounds = shape_bounds(family, home.tables, rows, counts)
            value = np.maximum(self.worth.value(bounds, rate), mixed.bounds[0])
            kept = value < self.incumbents.threshold
            self.pruned["slower than the plans kept"] += int((~kept).sum())
            kept[kept] = self.requirements.keep_bounds(
                bounds[kept], (bounds * rate)[kept], self.pruned
            )
            depth = counts.sum(axis=1)
            for p in np.unique(depth[kept]):
                same = kept & (depth == p)
                part = (rows[same], counts[same], value[same])
                found.setdefault((int(p), rows.shape[1]), []).append(part)
        for parts in found.values():
            rows, counts, value = (np.concatenate(each) for each in zip(*parts, strict=True))
            self._push_shapes(home, rows, counts, value)

    def _worth(self, bounds: Floats) -> int:
        """How many of the ascending bounds are below the threshold; the others are counted out."""
        worth = int(np.searchsorted(bounds, self.incumbents.threshold))
        self.pruned["slower than the plans kept"] += len(bounds) - worth
        return worth

    def _push_shapes(self, home: Open, rows: Ints, counts: Ints, value: Floats) -> None:
        if len(value):
            order = np.argsort(value, kind="stable")
            shapes = Shapes(home, rows[order], counts[order], value[order])
            self._push(float(shapes.bounds[0]), shapes)

    # --- splits ---------------------------------------------------------------------------------

    def _split(self, group: Shapes) -> None:
        """Bound the splits of the most promising shapes, and queue what may become a plan."""
        home, family = group.home, group.home.family
        worth = self._worth(group.bounds)
        depth = int(group.counts[0].sum())
        cut = min(worth, max(1, BATCH // depth))
        if cut < worth:
            rest = slice(cut, worth)
            self._push_shapes(home, group.rows[rest], group.counts[rest], group.bounds[rest])
        if not cut:
            return
        rows, counts, bounds = group.rows[:cut], group.counts[:cut], group.bounds[:cut]
        rate = self.worth.rate(family, rows, counts)
        stages = stages_of(family, rows, counts)
        uniform = self.problem.options.uniform_layers
        assert home.fitted is not None
        split, seconds, holds = split_shapes(
            family,
            home.tables,
            home.fitted,
            stages,
            after_pipeline(home.tables, family.layers, rows, counts),
            self.worth.seconds(bounds, rate),
            self.worth.useful_seconds(rate, self.incumbents.threshold),
            np.array(even_split(family.layers, stages.depth)) if uniform else None,
        )
        self.pruned["memory of a stage"] += int((~holds).sum())
        value = self.worth.value(seconds, rate)
        useful = np.isfinite(value)
        self.pruned["slower than the plans kept"] += int((holds & ~useful).sum())
        found = np.flatnonzero(useful)
        shapes = [(float(value[at]), Shape(home, rows[at], counts[at], split[at])) for at in found]
        for entry in shapes:
            self._push(*entry)
        if shapes:
            self._try(*min(shapes, key=lambda entry: entry[0]))

    def _try(self, value: float, shape: Shape) -> None:
        """Weigh one split of a shape at once if plans like it came near enough to their bounds.

        A good plan that is known early rules out much.
        """
        depth = int(shape.counts.sum())
        if value * self._reached.get(depth, 1.0) >= self.incumbents.threshold:
            return
        exact = self._exact(shape)
        start = self._start(exact, shape.split)
        if start is None:
            return
        seconds = float(exact.seconds(start[None])[0])
        if not self.problem.options.uniform_layers:
            start, seconds = polished(exact, start)
        rate = self.worth.rate(shape.home.family, shape.rows[None], shape.counts[None])
        self.incumbents.keep(shape, exact, start, seconds, float(rate[0]))
        reached = float(self.worth.value(np.array([seconds]), rate)[0]) / value
        self._reached[depth] = min(self._reached.get(depth, np.inf), reached)

    def _weigh(self, value: float, shape: Shape) -> None:
        """Find the best split of a shape."""
        home = shape.home
        self._leaves += 1
        exact = self._exact(shape)
        rate = self.worth.rate(home.family, shape.rows[None], shape.counts[None])
        start = self._start(exact, shape.split)
        if start is None:
            self.pruned["memory of a stage"] += 1
            return
        if self.problem.options.uniform_layers:
            self.scored += 1
            self.incumbents.keep(
                shape, exact, start, float(exact.seconds(start[None])[0]), float(rate[0])
            )
            return
        useful = float(self.worth.useful_seconds(rate, self.incumbents.threshold)[0])
        if not useful < np.inf:
            split, useful = polished(exact, start)
            self.incumbents.keep(shape, exact, split, useful, float(rate[0]))
        bound = float(self.worth.seconds(np.array([value]), rate)[0])
        found = best_split(exact, useful, bound)
        if found.layers is not None:
            self.incumbents.keep(shape, exact, found.layers, found.seconds, float(rate[0]))
        elif found.bound < useful:
            split, seconds = polished(exact, start)
            self.incumbents.keep(shape, exact, split, seconds, float(rate[0]))
            raised = float(self.worth.value(np.array([found.bound]), rate)[0])
            if raised > value:
                # Another plan may say by then that it is of no use.
                self._push(raised, shape)
                return
            self._given_up = min(self._given_up, value)
        self.scored += 1

    def _exact(self, shape: Shape) -> Exact:
        family = shape.home.family
        stages = stages_of(family, shape.rows[None], shape.counts[None])
        return exact_of(self.costing, family, self.limits, shape.rows, shape.counts, stages)

    def _start(self, exact: Exact, split: Ints) -> Ints | None:
        """A split that fits, to begin with; None if there is none."""
        if self.problem.options.uniform_layers:
            split = np.array(even_split(exact.layers, exact.depth))
        if split.sum() == exact.layers and exact.fits(split[None])[0]:
            return split
        return None if self.problem.options.uniform_layers else least_bottleneck(exact)
