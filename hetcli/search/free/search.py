"""The search of the free space, and its certificate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.chains import chains
from hetcli.perf.configuration import Configuration, TrainingPrecision
from hetcli.perf.filling import pipeline_time
from hetcli.perf.prediction import Prediction
from hetcli.perf.rules import can_talk, legal_tensor_parallel, runs_attention, supports
from hetcli.perf.step import predict
from hetcli.search.families import Problem, precisions
from hetcli.search.free.columns import Column
from hetcli.search.free.costs import Kind, PipelineCosts, Setting
from hetcli.search.free.layout import Order, configuration, merged
from hetcli.search.free.mix import Mix, Mixer, Rows
from hetcli.search.free.sets import MOST_POOLS, counts_of, sets_of
from hetcli.search.free.share import share
from hetcli.search.pools import Pool
from hetcli.search.requirements import Requirements
from hetcli.spec.workload import RecomputeChoice

__all__ = ["FreeFound", "FreePlan", "search_free"]

Ints = NDArray[np.int64]

# Micro-batch sizes that are mixed.
SIZES = (1, 2, 4, 8, 16)
# Replicas of a pipeline that are taken at once: their states are sharded over so many.
REPLICAS = (1, 4, 16)
# Up to so many pools all parts of them are looked at, else single ones and all of them.
MOST_JOINED = 3
# How often the columns' synchronisation is corrected by a prediction, and what is close enough.
CORRECTIONS = 3
# Mixes of one round that are placed and predicted.
MOST_PLACED = 3
CLOSE = 0.01


@dataclass(frozen=True, slots=True)
class FreePlan:
    """A mix as a configuration with its prediction; in `placed` every shape is a pipeline."""

    configuration: Configuration
    prediction: Prediction
    placed: Configuration


@dataclass(frozen=True, slots=True)
class FreeFound:
    """The result, best plan first; no mix takes a step of less than `bound_s`.

    `joined` is the number of kinds of nodes that a pipeline may lie on: fewer where there are too
    many for all sets of stages to be weighed.
    """

    plans: tuple[FreePlan, ...]
    bound_s: float
    seen: int
    scored: int
    joined: int


def search_free(problem: Problem, *, known_s: float) -> FreeFound:
    """The best mixes of pipelines that take less than `known_s` seconds, if there are any.

    Args:
        problem: with a throughput objective; context and expert parallelism are not mixed.
        known_s: the step time of a plan that is known already, infinite without one.
    """
    costs = PipelineCosts(problem)
    wholes = [
        _Space(problem, costs, precision, pools)
        for precision in precisions(problem)
        for pools in _talking(problem, precision)
    ]
    start_s = known_s
    if np.isinf(known_s):
        start_s = min((each.enough_s for each in wholes), default=np.inf)
    seen = sum(each.top.seen for each in wholes)
    joined = min((each.joined for each in wholes), default=MOST_POOLS)
    if np.isinf(start_s):
        return FreeFound((), known_s, seen, 0, joined)
    bounds = [each.top.bound(start_s) for each in wholes]
    found: dict[Configuration, FreePlan] = {}
    scored = 0
    for bound_s, whole in sorted(zip(bounds, wholes, strict=True), key=lambda pair: pair[0]):
        for space in whole.parts():
            if bound_s >= known_s or not space.top.suffices(min(start_s, known_s)):
                continue
            for plan in space.plans(bound_s, start_s, known_s):
                found[plan.configuration] = plan
                known_s = min(known_s, plan.prediction.step_time_s)
            scored += space.scored
    return FreeFound(
        tuple(sorted(found.values(), key=lambda plan: plan.prediction.step_time_s)),
        min(bounds),
        seen,
        scored,
        joined,
    )


def _talking(problem: Problem, precision: TrainingPrecision) -> list[tuple[Pool, ...]]:
    """Pools that have the precision and the attention, those together that can all talk."""
    usable = [
        pool
        for pool in problem.pools
        if supports(pool.device_type.gpu, precision)
        and runs_attention(problem.framework, pool.device_type.gpu, problem.workload.attention, 1)
    ]
    found: dict[tuple[Pool, ...], None] = {}
    for pool in usable:
        group = [pool]
        for other in usable:
            if other is not pool and all(
                can_talk(problem.hardware, other.node, member.node) for member in group
            ):
                group.append(other)
        found[tuple(sorted(group, key=lambda each: each.index))] = None
    return list(found)


def _requirements(problem: Problem) -> Requirements:
    return Requirements(problem.options, problem.workload, problem.hardware, problem.pools)


@dataclass(eq=False)
class _Space:
    """The mixes of one precision on the devices of some pools."""

    problem: Problem
    costs: PipelineCosts
    precision: TrainingPrecision
    pools: tuple[Pool, ...]
    scored: int = 0

    @cached_property
    def kinds(self) -> list[Kind]:
        """Every pool with every tensor degree that fits into its nodes."""
        fixed = self.problem.options.tensor_parallel
        degrees = legal_tensor_parallel(self.problem.model) if fixed is None else [fixed]
        return [
            self.costs.kind(pool, degree)
            for pool in self.pools
            for degree in degrees
            if pool.groups_per_node(degree)
        ]

    def parts(self) -> Iterator[_Space]:
        """This and what it is on fewer pools: who synchronises with whom is the price of a mix."""
        yield self
        sizes = range(len(self.pools) - 1, 0, -1) if len(self.pools) <= MOST_JOINED else (1,)
        needed = precisions(self.problem)[self.precision]
        for size in sizes:
            for pools in combinations(self.pools, size):
                if needed & {pool.index for pool in pools} and len(pools) < len(self.pools):
                    yield _Space(self.problem, self.costs, self.precision, pools)

    @cached_property
    def _counts(self) -> Ints:
        alone = Setting(self.precision, 1, "none")
        return counts_of(self.costs, _settings(self.problem, alone), self.kinds)

    @property
    def joined(self) -> int:
        """Kinds of nodes that a pipeline may lie on, as far as there are so many."""
        most = int((self._counts > 0).sum(axis=1).max())
        return MOST_POOLS if most >= min(MOST_POOLS, len(self.pools)) else most

    def _mixer(self, shared: Sequence[Setting]) -> Mixer:
        """Mixes of pipelines whose states and gradients are `shared` in these ways."""
        settings = [each for one in shared for each in _settings(self.problem, one)]
        sets = [sets_of(self.costs, each, self.kinds, self._counts) for each in settings]
        quotas = [
            ([bool(counted[kind.pool.index]) for kind in self.kinds], devices)
            for counted, devices in _requirements(self.problem).quotas
        ]
        rows = Rows.of(self.kinds, quotas)
        return Mixer(self.costs, rows, sets, self.problem.workload.global_batch)

    @cached_property
    def top(self) -> Mixer:
        """Any mix, its states sharded over as many pipelines as there can be.

        That needs the least memory: a bound for all.
        """
        devices = sum(pool.device_count for pool in self.problem.pools)
        holders = min(self.problem.workload.global_batch, devices)
        return self._mixer([Setting(self.precision, 1, "none", holders)])

    @cached_property
    def enough_s(self) -> float:
        """A step in which some fractional mix does the batch; infinite where nothing fits."""
        return self.top.enough()

    def plans(self, bound_s: float, start_s: float, known_s: float) -> Iterator[FreePlan]:
        """Mixes of less than `known_s`, predicted."""
        expected = sum(self.top.relaxed(min(start_s, known_s)).taken.values())
        places = tuple(pool.index for pool in self.pools)
        mixer = self._mixer(
            [
                Setting(self.precision, 1, "none", number, number, max(2, round(expected)), places)
                for number in REPLICAS
                if number <= max(1.0, expected)
            ]
        )
        yield from self._corrected(mixer, bound_s, known_s)
        self.scored += mixer.scored

    def _corrected(self, mixer: Mixer, bound_s: float, known_s: float) -> Iterator[FreePlan]:
        """Plans of one mixer: what a mix really costs shows once its pipelines have places."""
        for _ in range(CORRECTIONS):
            finite = np.isfinite(known_s)
            mixes = mixer.mixes(bound_s, known_s) if finite else mixer.any_mixes(bound_s)
            tried = [(mix, _plans(self.problem, self.costs, mix)) for mix in mixes[:MOST_PLACED]]
            pairs = [(mix, plan) for mix, plans in tried for plan in plans]
            if not pairs:
                return
            yield from (plan for _, plan in pairs)
            mix, best = min(pairs, key=lambda pair: pair[1].prediction.step_time_s)
            real_s, parts = best.prediction.step_time_s, best.prediction.breakdown
            known_s = min(known_s, real_s)
            if real_s <= mix.step_s * (1 + CLOSE):
                return
            timed = _timed(self.problem, self.costs, mix.pipelines, best.placed)
            mixer.correct(
                dict(zip(mix.pipelines, timed, strict=True)), parts.data_parallel + parts.optimizer
            )


def _settings(problem: Problem, shared: Setting) -> list[Setting]:
    """`shared` with every micro-batch size and what may be recomputed."""
    options, batch = problem.options, problem.workload.global_batch
    sizes = SIZES if options.micro_batch_size is None else (options.micro_batch_size,)
    choices: tuple[RecomputeChoice, ...] = ("none", "full")
    if options.recompute is not None:
        choices = (options.recompute,)
    return [
        replace(shared, micro_batch_size=size, recompute=choice)
        for size in sizes
        if size <= batch
        for choice in choices
    ]


def _plans(problem: Problem, costs: PipelineCosts, mix: Mix) -> list[FreePlan]:
    """The mix placed and predicted, with micro-batches shared by what the schedule really takes."""
    batch = problem.workload.global_batch
    counts = share(mix.pipelines, batch)
    if counts is None:
        return []
    plans = []
    for order in get_args(Order):
        whole = configuration(problem, _shapes(mix.pipelines, counts), order)
        if whole is None:
            continue
        plans.append(_predicted(problem, whole))
        again = share(_timed(problem, costs, mix.pipelines, whole), batch)
        if again is not None and again != counts:
            moved = configuration(problem, _shapes(mix.pipelines, again), order)
            if moved is not None:
                plans.append(_predicted(problem, moved))
    requirements = _requirements(problem)
    return [
        plan
        for plan in plans
        if plan.prediction.worst_device.headroom_bytes >= problem.workload.memory_margin
        and requirements.broken_by(plan.configuration, plan.prediction) is None
    ]


def _shapes(pipelines: Sequence[Column], counts: Sequence[int]) -> list[tuple[Column, list[int]]]:
    """Equal pipelines together, the one with the most micro-batches first."""
    shapes: dict[Column, list[int]] = {}
    for column, number in zip(pipelines, counts, strict=True):
        shapes.setdefault(column, []).append(number)
    return [(column, sorted(numbers, reverse=True)) for column, numbers in shapes.items()]


def _timed(
    problem: Problem,
    costs: PipelineCosts,
    pipelines: Sequence[Column],
    configuration: Configuration,
) -> list[Column]:
    """The columns with the fill that the simulated schedule of their shape has."""
    fills: dict[Column, float] = {}
    shapes = dict.fromkeys(pipelines)
    for column, pipeline in zip(shapes, configuration.pipelines, strict=True):
        found = chains(configuration, pipeline, problem.hardware, costs.costs)
        time = pipeline_time(found, configuration.schedule)
        number = time.slowest.micro_batches
        fills[column] = time.makespan_s - number * column.pace_s
    return [replace(column, fill_s=fills[column]) for column in pipelines]


def _predicted(problem: Problem, placed: Configuration) -> FreePlan:
    whole = merged(placed)
    prediction = predict(
        whole, model=problem.model, workload=problem.workload, hardware=problem.hardware
    )
    return FreePlan(whole, prediction, placed)
