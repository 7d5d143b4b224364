"""The search of the grid space: best first, so that the bound of what is left proves the answer.

Everything waits in one queue, ordered by a bound on the value of what may come of it: degrees (a
bound that needs no shape), shapes of one order and depth (one NumPy expression for all of them),
split and estimated plans. The least entry is refined first; a plan is predicted in full only when
its estimate is the least of all. When nothing in the queue can beat the plans that are kept, the
search is complete.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import Configuration
from hetcli.perf.prediction import Prediction
from hetcli.perf.step import predict
from hetcli.search.bounds import family_bound, shape_bounds, unit_seconds
from hetcli.search.costing import Costing, Family
from hetcli.search.evaluate import (
    estimate_steps,
    most_layers,
    polish,
    split_plainly,
    split_shapes,
    split_unlike,
    stages_of,
)
from hetcli.search.families import Problem, families, precisions
from hetcli.search.layout import Degrees, Layout, configuration
from hetcli.search.limits import Limits, Rooms
from hetcli.search.partition import even_split
from hetcli.search.requirements import Requirements
from hetcli.search.shapes import shapes

__all__ = ["Found", "Grid", "Scored"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SECONDS_PER_HOUR = 3600.0
# Shapes that are split together: enough to pay for the calls, few enough not to waste them.
BATCH = 64


@dataclass(frozen=True, slots=True)
class Scored:
    """A plan with its prediction; `value` is what is minimised (seconds, or dollars a step)."""

    value: float
    layout: Layout
    configuration: Configuration
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search, best plan first; no plan of the space beats `bound`."""

    plans: tuple[Scored, ...]
    bound: float
    seen: int
    scored: int
    pruned: Counter[str]
    complete: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Shapes:
    """Shapes of one family, order and depth, by ascending bound of their value."""

    family: Family
    order: tuple[int, ...]
    counts: Ints
    bounds: Floats
    after: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """One shape with the split that minimises its bound."""

    family: Family
    order: tuple[int, ...]
    counts: Ints
    split: Ints


_Item = Degrees | _Shapes | _Shape | Layout


@dataclass(eq=False)
class Grid:
    """One search."""

    problem: Problem
    costing: Costing = field(init=False)
    limits: Limits = field(init=False)
    requirements: Requirements = field(init=False)
    plans: list[Scored] = field(default_factory=list)
    pruned: Counter[str] = field(default_factory=Counter)
    seen: int = 0
    scored: int = 0
    # Least bound of everything that was split: with the queue's, the certificate.
    bound: float = np.inf
    _queue: list[tuple[float, int, _Item]] = field(default_factory=list)
    _tickets: count[int] = field(default_factory=count)
    _mappings: set[object] = field(default_factory=set)

    def __post_init__(self) -> None:
        problem = self.problem
        self.costing = Costing(problem.model, problem.workload, problem.hardware, problem.pools)
        self.limits = Limits(problem.model, problem.workload)
        self.requirements = Requirements(
            problem.options, problem.workload, problem.hardware, problem.pools
        )
        self.requirements.check()
        if problem.workload.objective == "cost":
            _check_prices(problem)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.problem.model.layer_count

    @property
    def equal_layers(self) -> bool:
        """Whether all layers are alike."""
        return len({run.layer for run in self.problem.model.layers}) == 1

    @property
    def _uniform(self) -> bool:
        """Whether every stage must have the same number of layers, as far as they divide."""
        return self.problem.options.uniform_layers

    @property
    def threshold(self) -> float:
        """What does not beat this value does not enter the ranking."""
        top = self.problem.options.top
        return self.plans[top - 1].value if len(self._mappings) >= top else np.inf

    def run(self) -> Found:
        """Search the whole space, or as much as the time limit allows."""
        limit = self.problem.options.time_limit_s
        deadline = np.inf if limit is None else time.monotonic() + limit
        for degrees in families(self.problem, self.pruned):
            self.seen += 1
            self._push(self._family_bound(degrees), degrees)
        complete = True
        while self._queue:
            value, _, item = heapq.heappop(self._queue)
            if value >= self.threshold or not value < np.inf:
                self.bound = min(self.bound, value)
                self._count_pruned(item)
                continue
            if time.monotonic() > deadline:
                self.bound = min(self.bound, value)
                complete = False
                break
            if isinstance(item, Degrees):
                self._shape(item)
            elif isinstance(item, _Shapes):
                self._split(item)
            elif isinstance(item, _Shape):
                self._improve(item)
            else:
                self._predict(item)
        best = self.plans[0].value if self.plans else np.inf
        return Found(
            tuple(self.plans), min(self.bound, best), self.seen, self.scored, self.pruned, complete
        )

    def _push(self, value: float, item: _Item) -> None:
        heapq.heappush(self._queue, (value, next(self._tickets), item))

    def _count_pruned(self, item: _Item) -> None:
        if isinstance(item, Degrees):
            self.pruned["degrees slower than the plans kept"] += 1
        elif isinstance(item, _Shapes):
            self.pruned["shape slower than the plans kept"] += len(item.counts)

    # --- degrees --------------------------------------------------------------------------------

    def _most_stages(self, degrees: Degrees) -> Ints:
        held = [
            pool.group_count(degrees.tensor) // degrees.members
            if self.costing.runs(degrees, pool)
            else 0
            for pool in self.problem.pools
        ]
        return np.minimum(held, self.requirements.most_stages(degrees))

    def _unit_seconds(self, degrees: Degrees) -> Floats:
        """Seconds of one unit layer on every pool; infinite where the family cannot run."""
        found = [
            self.costing.passes(degrees, pool) if self.costing.runs(degrees, pool) else None
            for pool in self.problem.pools
        ]
        totals = [None if p is None else p.forward + p.backward for p in found]
        reference = next(total for total in totals if total is not None)
        return np.array(
            [np.inf if total is None else unit_seconds(total, reference) for total in totals]
        )

    def _family_bound(self, degrees: Degrees) -> float:
        most = self._most_stages(degrees)
        if not most.any():
            return np.inf
        unit = self._unit_seconds(degrees)
        micro_batches = self._micro_batches(degrees)
        # Whatever the shape, every layer is computed somewhere, at no less than that price.
        prices = [
            self._price(index, degrees) * unit[index] for index in map(int, np.flatnonzero(most))
        ]
        dollars = micro_batches * self.layers * min(prices)
        seconds = family_bound(
            unit, most, self.layers, micro_batches, self.problem.options.pipeline_parallel
        )
        bounds = np.array([seconds]), np.array([dollars])
        if not self.requirements.keep_bounds(*bounds, self.pruned).all():
            return np.inf
        return seconds if self.problem.workload.objective == "throughput" else dollars

    def _micro_batches(self, degrees: Degrees) -> int:
        return self.problem.workload.global_batch // (degrees.micro_batch_size * degrees.data)

    def _price(self, pool: int, degrees: Degrees) -> float:
        """Dollars a second of one stage on a pool."""
        hourly = self.problem.pools[pool].node.price_per_device_hour or 0.0
        return hourly * degrees.devices_per_stage / SECONDS_PER_HOUR

    def _value(
        self, seconds: Floats, degrees: Degrees, order: Sequence[int], counts: Ints
    ) -> Floats:
        """What is minimised: the seconds, or the dollars of the devices in them."""
        if self.problem.workload.objective == "throughput":
            return seconds
        return self._dollars(seconds, degrees, order, counts)

    def _dollars(
        self, seconds: Floats, degrees: Degrees, order: Sequence[int], counts: Ints
    ) -> Floats:
        price = np.array([self._price(index, degrees) for index in order])
        dollars: Floats = seconds * (counts @ price)
        return dollars

    # --- shapes ---------------------------------------------------------------------------------

    def _shape(self, degrees: Degrees) -> None:
        """Queue all shapes of a family that its pools can hold; they are seen in its place."""
        self.seen -= 1
        most = self._most_stages(degrees)
        family = self.costing.family(degrees)
        fixed = self.problem.options.pipeline_parallel
        deepest = min(self.layers + 2, family.micro_batches, int(most.sum()))
        rooms = Rooms.of(self.limits, self.problem.pools, degrees, most, deepest)
        unit = self._unit_seconds(degrees)
        every = shapes(
            self.problem.pools,
            most,
            deepest,
            fixed,
            precisions(self.problem)[degrees.precision],
        )
        for order, counts in every:
            self.seen += len(counts)
            roomy = counts[rooms.layers(order, counts) >= self.layers]
            self.pruned["memory of the pools"] += len(counts) - len(roomy)
            roomy = roomy[self.requirements.keep_shapes(degrees, order, roomy, self.pruned)]
            if not len(roomy):
                continue
            pipeline, after = shape_bounds(family, unit, self.layers, order, roomy)
            dollars = self._dollars(pipeline + after, degrees, order, roomy)
            kept = self.requirements.keep_bounds(pipeline + after, dollars, self.pruned)
            if not kept.any():
                continue
            roomy, after = roomy[kept], after[kept]
            bounds = self._value(pipeline[kept] + after, degrees, order, roomy)
            depths = roomy.sum(axis=1)
            for depth in np.unique(depths):
                same = np.flatnonzero(depths == depth)
                same = same[np.argsort(bounds[same], kind="stable")]
                self._push(
                    float(bounds[same[0]]),
                    _Shapes(family, order, roomy[same], bounds[same], after[same]),
                )

    def _split(self, group: _Shapes) -> None:
        """Split the layers of the most promising shapes, and queue what may become a plan."""
        worth = int(np.searchsorted(group.bounds, self.threshold))
        cut = min(worth, BATCH)
        if cut < len(group.counts):
            rest = _Shapes(
                group.family,
                group.order,
                group.counts[cut:],
                group.bounds[cut:],
                group.after[cut:],
            )
            self._push(float(rest.bounds[0]), rest)
        if not cut:
            return
        family, pools = group.family, self.problem.pools
        counts, bounds, after = group.counts[:cut], group.bounds[:cut], group.after[:cut]
        stages = stages_of(family, pools, group.order, counts)
        even = even_split(self.layers, stages.depth) if self._uniform else None
        split, pipeline = split_shapes(family, stages, self.limits, pools, self.layers, even)
        fits = np.isfinite(pipeline)
        self.pruned["memory of a stage"] += int((~fits).sum())
        self.scored += int(fits.sum())
        if not fits.any():
            return
        degrees = family.degrees
        if self.equal_layers:
            tight = self._value(pipeline + after, degrees, group.order, counts)
            bounds = np.maximum(bounds, tight)
        self.bound = min(self.bound, float(bounds[fits].min()))
        for row in np.flatnonzero(fits & (bounds < self.threshold)):
            self._push(
                float(bounds[row]), _Shape(family, group.order, counts[row : row + 1], split[row])
            )

    def _improve(self, shape: _Shape) -> None:
        """Find the best split of a shape, and queue the plan with its estimate."""
        family, pools = shape.family, self.problem.pools
        stages = stages_of(family, pools, shape.order, shape.counts)
        if self._uniform:
            split = shape.split
            seconds = float(estimate_steps(family, stages, split[None])[0])
        elif self.equal_layers:
            most = most_layers(family, stages, self.limits, pools)[0]
            plain = split_plainly(family, stages, self.limits, pools, self.layers)
            split, seconds = polish(family, stages, most, [shape.split, plain[0]])
        else:
            exact = split_unlike(family, stages, self.limits, pools)
            if exact is None:
                self.pruned["memory of a stage"] += 1
                self.scored -= 1
                return
            split = np.array(exact)
            seconds = float(estimate_steps(family, stages, split[None])[0])
        value = self._value(np.array([seconds]), family.degrees, shape.order, shape.counts)
        runs = tuple(
            (pools[index], int(number))
            for index, number in zip(shape.order, shape.counts[0], strict=True)
        )
        self._push(float(value[0]), Layout(family.degrees, runs, tuple(int(n) for n in split)))

    # --- whole predictions ----------------------------------------------------------------------

    def _predict(self, layout: Layout) -> None:
        problem = self.problem
        whole = configuration(layout, problem.workload)
        prediction = predict(
            whole, model=problem.model, workload=problem.workload, hardware=problem.hardware
        )
        broken = self.requirements.broken_by(whole, prediction)
        if prediction.worst_device.headroom_bytes < problem.workload.memory_margin:
            broken = "memory of a stage"
        if broken is not None:
            self.pruned[broken] += 1
            self.scored -= 1
            return
        value = prediction.step_time_s
        if problem.workload.objective == "cost":
            assert prediction.cost_per_step is not None
            value = prediction.cost_per_step
        self.plans.append(Scored(value, layout, whole, prediction))
        self.plans.sort(key=lambda plan: (plan.value, _key(plan.layout)))
        self._mappings.add((layout.degrees, layout.stages))


def _key(layout: Layout) -> tuple[object, ...]:
    """A total order of layouts, so that equal values are ranked the same way every time."""
    return (
        layout.stages,
        layout.degrees,
        tuple((pool.index, count) for pool, count in layout.runs),
        layout.layers,
    )


def _check_prices(problem: Problem) -> None:
    without = sorted(
        {pool.node.group for pool in problem.pools if pool.node.price_per_device_hour is None}
    )
    if without:
        raise ConfigurationError(
            "the cheapest plan is asked for, but not every price is known",
            why=f"no price_per_hour for {', '.join(without)}",
            fix="give these node groups a price_per_hour, or --objective throughput",
        )
