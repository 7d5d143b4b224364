"""On clusters small enough to look at every candidate, the search finds what that finds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from brute_force import brute_force, small_problem

from hetcli.search.grid import Grid
from hetcli.search.miss import CLOSE_BYTES, nearest_miss
from hetcli.search.options import PlanOptions

# Problems with up to 125 candidates; of the last ones nothing fits.
FITTING = (2, 13, 14, 15, 22, 43, 59, 70, 71, 90, 93)
TOO_LARGE = (1, 91, 96)


@pytest.mark.parametrize("seed", FITTING)
def test_the_plan_is_the_best_of_all_candidates_and_the_bound_holds(seed: int) -> None:
    problem = small_problem(random.Random(seed))
    best, layout, _ = brute_force(problem)
    found = Grid(problem).run()
    assert layout is not None
    assert found.plans[0].value == pytest.approx(best, rel=1e-12)
    assert found.bound <= best * (1 + 1e-12)
    assert found.complete
    assert found.seen == found.scored + sum(found.pruned.values())


@pytest.mark.parametrize(("seed", "stages"), [(13, 2), (13, 3), (71, 3), (7, 3)])
def test_pipelines_of_deepspeed_are_the_best_too(seed: int, stages: int) -> None:
    # Messages block both ends there, and the best split may leave an end without a layer.
    options = PlanOptions(target="deepspeed", pipeline_parallel=stages)
    problem = replace(small_problem(random.Random(seed)), options=options)
    best, _, _ = brute_force(problem)
    found = Grid(problem).run()
    assert found.plans[0].value == pytest.approx(best, rel=1e-12)
    assert found.bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("seed", TOO_LARGE)
def test_the_nearest_miss_lacks_least_of_all_candidates(seed: int) -> None:
    problem = small_problem(random.Random(seed))
    best, layout, lack = brute_force(problem)
    miss = nearest_miss(problem)
    assert layout is None
    assert best == float("inf")
    assert not Grid(problem).run().plans
    assert miss is not None
    assert lack <= miss.shortfall_bytes <= lack + CLOSE_BYTES
