"""The search of the grid space: best first, with a bound that proves what is left out.

Families of degrees are ordered by a bound that needs no shape; a family's shapes are bounded in one
NumPy expression; only shapes whose bound beats the worst of the plans kept are split into layers,
estimated, and the best of them predicted in full. What the prediction says is what counts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import Configuration
from hetcli.perf.prediction import Prediction
from hetcli.perf.step import predict
from hetcli.search.bounds import family_bound, shape_bounds, unit_seconds
from hetcli.search.costing import Costing, Family
from hetcli.search.evaluate import estimate_steps, split_shapes, split_unlike, stages_of
from hetcli.search.families import Problem, families
from hetcli.search.layout import Degrees, Layout, configuration
from hetcli.search.limits import Limits
from hetcli.search.shapes import shapes

__all__ = ["Found", "Grid", "Scored"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SECONDS_PER_HOUR = 3600.0
# Shapes of a family whose unlike layers are split exactly, one by one.
UNLIKE_SPLITS = 8
# Plans of a family that are predicted in full.
PREDICTED_PER_FAMILY = 2


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
    """Shapes of one order and depth with their bounds."""

    order: tuple[int, ...]
    counts: Ints
    bounds: Floats
    after: Floats


@dataclass(eq=False)
class Grid:
    """One search."""

    problem: Problem
    costing: Costing = field(init=False)
    limits: Limits = field(init=False)
    plans: list[Scored] = field(default_factory=list)
    pruned: Counter[str] = field(default_factory=Counter)
    seen: int = 0
    scored: int = 0
    # Least bound of everything that was looked at: the certificate.
    bound: float = np.inf

    def __post_init__(self) -> None:
        problem = self.problem
        self.costing = Costing(problem.model, problem.workload, problem.hardware, problem.pools)
        self.limits = Limits(problem.model, problem.workload)
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
    def threshold(self) -> float:
        """A candidate must beat this value to enter the ranking."""
        top = self.problem.options.top
        return self.plans[top - 1].value if len(self.plans) >= top else np.inf

    def run(self) -> Found:
        """Search the whole space, or as much as the time limit allows."""
        limit = self.problem.options.time_limit_s
        deadline = np.inf if limit is None else time.monotonic() + limit
        complete = True
        ranked = sorted(
            ((self._family_bound(degrees), degrees) for degrees in self._families()),
            key=lambda item: (item[0], item[1]),
        )
        for position, (bound, degrees) in enumerate(ranked):
            if bound >= self.threshold:
                self.bound = min(self.bound, bound)
                self.pruned["degrees slower than the plans kept"] += len(ranked) - position
                break
            if time.monotonic() > deadline:
                self.bound = min(self.bound, bound)
                complete = False
                break
            self._expand(degrees)
        best = self.plans[0].value if self.plans else np.inf
        return Found(
            tuple(self.plans),
            min(self.bound, best),
            self.seen,
            self.scored,
            self.pruned,
            complete,
        )

    def _families(self) -> Iterator[Degrees]:
        for degrees in families(self.problem, self.pruned):
            self.seen += 1
            yield degrees

    # --- bounds ---------------------------------------------------------------------------------

    def _most_stages(self, degrees: Degrees) -> Ints:
        return np.array(
            [
                pool.group_count(degrees.tensor) // degrees.members
                if self.costing.runs(degrees, pool)
                else 0
                for pool in self.problem.pools
            ]
        )

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
        if self.problem.workload.objective == "cost":
            # Whatever the shape, every layer is computed somewhere, at no less than that price.
            price = np.array([self._price(index, degrees) for index in range(len(most))])
            return float(micro_batches * self.layers * (unit * price)[most > 0].min())
        return family_bound(
            unit, most, self.layers, micro_batches, self.problem.options.pipeline_parallel
        )

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
        price = np.array([self._price(index, degrees) for index in order])
        dollars: Floats = seconds * (counts @ price)
        return dollars

    # --- one family -----------------------------------------------------------------------------

    def _expand(self, degrees: Degrees) -> None:
        family = self.costing.family(degrees)
        candidates: list[tuple[float, Layout]] = []
        for group in self._bounded_shapes(family):
            candidates += self._split(family, group)
        candidates.sort(key=lambda item: (item[0], _key(item[1])))
        for value, layout in candidates[:PREDICTED_PER_FAMILY]:
            if value < self.threshold:
                self._predict(layout)

    def _bounded_shapes(self, family: Family) -> Iterator[_Shapes]:
        """Shapes that may beat the plans kept, the most promising order first."""
        degrees = family.degrees
        unit = self._unit_seconds(degrees)
        most = self._most_stages(degrees)
        deepest = min(self.layers + 2, family.micro_batches)
        fixed = self.problem.options.pipeline_parallel
        roomiest = self._roomiest(degrees, most, pipelined=fixed != 1)
        groups = []
        for order, every in shapes(self.problem.pools, most, deepest, fixed):
            self.seen += len(every)
            room = every @ roomiest[list(order)]
            counts = every[room >= self.layers]
            self.pruned["memory of the pools"] += len(every) - len(counts)
            if not len(counts):
                continue
            pipeline, after = shape_bounds(family, unit, self.layers, order, counts)
            bounds = self._value(pipeline + after, degrees, order, counts)
            groups.append(_Shapes(order, counts, bounds, after))
        groups.sort(key=lambda group: (float(group.bounds.min()), group.order))
        for group in groups:
            keep = group.bounds < self.threshold
            dropped = group.bounds[~keep]
            if dropped.size:
                self.bound = min(self.bound, float(dropped.min()))
                self.pruned["shape slower than the plans kept"] += dropped.size
            counts = group.counts[keep]
            depths = counts.sum(axis=1)
            for depth in np.unique(depths):
                same = depths == depth
                yield _Shapes(
                    group.order, counts[same], group.bounds[keep][same], group.after[keep][same]
                )

    def _roomiest(self, degrees: Degrees, most: Ints, *, pipelined: bool) -> Ints:
        """Layers that fit on a middle stage of each pool with one micro-batch in flight."""
        return np.array(
            [
                max(
                    0,
                    int(
                        self.limits.most_layers(
                            degrees, self.problem.pools[index], 1, pipelined=pipelined
                        )[0, 0]
                    ),
                )
                if count
                else 0
                for index, count in enumerate(most)
            ]
        )

    def _split(self, family: Family, group: _Shapes) -> list[tuple[float, Layout]]:
        """Layouts of a group of shapes with their estimated values."""
        pools = self.problem.pools
        stages = stages_of(family, pools, group.order, group.counts)
        split, pipeline = split_shapes(family, stages, self.limits, pools, self.layers)
        fits = np.isfinite(pipeline)
        self.pruned["memory of a stage"] += int((~fits).sum())
        if not fits.any():
            return []
        degrees = family.degrees
        bounds = group.bounds
        if self.equal_layers and degrees.virtual_stages == 1:
            tight = self._value(pipeline + group.after, degrees, group.order, group.counts)
            bounds = np.maximum(bounds, tight)
        self.bound = min(self.bound, float(bounds[fits].min()))
        seconds = np.where(fits, estimate_steps(family, stages, split), np.inf)
        values = self._value(seconds, degrees, group.order, group.counts)
        self.scored += int(fits.sum())
        best = np.argsort(values, kind="stable")
        count = PREDICTED_PER_FAMILY if self.equal_layers else UNLIKE_SPLITS
        layouts = []
        for row in best[:count]:
            if not values[row] < np.inf:
                break
            runs = tuple(
                (pools[index], int(number))
                for index, number in zip(group.order, group.counts[row], strict=True)
            )
            if self.equal_layers:
                layers = tuple(int(n) for n in split[row])
                layouts.append((float(values[row]), Layout(degrees, runs, layers)))
                continue
            exact = split_unlike(family, stages, int(row), self.limits, pools)
            if exact is None:
                self.pruned["memory of a stage"] += 1
                continue
            found = estimate_steps(family, stages, np.tile(exact, (len(split), 1)))
            value = float(self._value(found, degrees, group.order, group.counts)[row])
            layouts.append((value, Layout(degrees, runs, exact)))
        return layouts

    # --- whole predictions ----------------------------------------------------------------------

    def _predict(self, layout: Layout) -> None:
        problem = self.problem
        whole = configuration(layout, problem.workload)
        prediction = predict(
            whole, model=problem.model, workload=problem.workload, hardware=problem.hardware
        )
        if prediction.worst_device.headroom_bytes < problem.workload.memory_margin:
            self.pruned["memory of a stage"] += 1
            return
        value = prediction.step_time_s
        if problem.workload.objective == "cost":
            assert prediction.cost_per_step is not None
            value = prediction.cost_per_step
        self.plans.append(Scored(value, layout, whole, prediction))
        self.plans.sort(key=lambda plan: (plan.value, _key(plan.layout)))


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
