"""Why nothing fits: the candidate that comes nearest, and what it lacks on which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.errors import InfeasibleError
from hetcli.search.costing import Costing
from hetcli.search.families import Problem, families
from hetcli.search.layout import Degrees, Layout, configuration
from hetcli.search.limits import Limits
from hetcli.search.partition import split_equal_layers
from hetcli.search.pools import Pool
from hetcli.search.shapes import shapes
from hetcli.units import format_bytes

__all__ = ["Miss", "infeasible", "nearest_miss"]

Ints = NDArray[np.int64]

# Families and shapes looked at: the nearest miss is an explanation, not an optimum.
MAX_FAMILIES = 400
MAX_SHAPES = 256


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
    """The layout whose fullest device lacks least; None when no rule allows any layout."""
    costing = Costing(problem.model, problem.workload, problem.hardware, problem.pools)
    limits = Limits(problem.model, problem.workload)
    nearest: Miss | None = None
    for number, degrees in enumerate(sorted(families(problem, Counter()), key=_lean)):
        if number == MAX_FAMILIES:
            break
        found = _nearest_of(problem, costing, limits, degrees)
        if found and (nearest is None or found.shortfall_bytes < nearest.shortfall_bytes):
            nearest = found
    return nearest


def _lean(degrees: Degrees) -> tuple[object, ...]:
    """Families that hold least first: recomputing, small micro-batches, many shards."""
    return (
        degrees.recompute != "full",
        degrees.micro_batch_size,
        -degrees.zero_stage,
        -degrees.tensor,
        degrees,
    )


def _nearest_of(
    problem: Problem, costing: Costing, limits: Limits, degrees: Degrees
) -> Miss | None:
    most = np.array(
        [
            pool.group_count(degrees.tensor) // degrees.members
            if costing.runs(degrees, pool)
            else 0
            for pool in problem.pools
        ]
    )
    layers = problem.model.layer_count
    micro_batches = problem.workload.global_batch // (degrees.micro_batch_size * degrees.data)
    deepest = min(layers + 2, micro_batches)
    nearest: Miss | None = None
    for order, every in shapes(problem.pools, most, deepest, problem.options.pipeline_parallel):
        # The deepest pipelines hold least a device.
        counts = every[np.argsort(-every.sum(axis=1), kind="stable")][:MAX_SHAPES]
        for depth in np.unique(counts.sum(axis=1)):
            for row in counts[counts.sum(axis=1) == depth]:
                runs = tuple(
                    (problem.pools[index], int(count))
                    for index, count in zip(order, row, strict=True)
                )
                found = _fill(limits, degrees, runs, layers, micro_batches)
                if nearest is None or found.shortfall_bytes < nearest.shortfall_bytes:
                    nearest = found
                if len(every) > 1:
                    break
    return nearest


def _fill(
    limits: Limits,
    degrees: Degrees,
    runs: tuple[tuple[Pool, int], ...],
    layers: int,
    micro_batches: int,
) -> Miss:
    """Spread the layers so that the fullest device lacks as little as possible."""
    stages = [pool for pool, count in runs for _ in range(count)]
    depth = len(stages)
    empty = limits.peaks(degrees, stages, [0] * depth, micro_batches)
    # What one layer adds, seen from a stage of a few: the layers' own working space counts once.
    some = min(2, layers)
    filled = [
        limits.peaks_of_stage(degrees, pool, stage, depth, some, micro_batches)
        for stage, pool in enumerate(stages)
    ]
    room = np.array([limits.room(pool) for pool in stages], dtype=np.float64)
    slope = np.maximum((np.array(filled) - np.array(empty)) / some, 1.0)
    base = np.array(empty) - room
    # The bottleneck may be negative bytes on some stages; lift all by the same amount.
    lift = max(0.0, -float(base.min()))
    split, _ = split_equal_layers(
        slope[None],
        (base + lift)[None],
        np.zeros((1, depth), np.int64),
        np.full((1, depth), layers),
        layers,
        np.full((1, depth), 1e6),
    )
    counts = tuple(int(n) for n in split[0])
    peaks = limits.peaks(degrees, stages, counts, micro_batches)
    worst = max(range(depth), key=lambda stage: peaks[stage] - room[stage])
    return Miss(Layout(degrees, runs, counts), worst, peaks[worst], int(room[worst]))


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
    recompute = f", {degrees.recompute} recompute" if degrees.recompute != "none" else ""
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
