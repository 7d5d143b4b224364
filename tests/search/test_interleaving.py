"""Pipelines with several model chunks a stage: the best is found, and nothing beats the bounds."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from brute_force import brute_force, small_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from hetcli.errors import ConfigurationError
from hetcli.perf.pipeline.slots import finish_interleaved
from hetcli.search import PlanOptions
from hetcli.search.families import Problem, check_request
from hetcli.search.finish import interleaved_bounds
from hetcli.search.grid import Grid
from hetcli.search.passing import chunk_rates, warm_up_rates
from hetcli.spec.model.architecture import LayerRun, MoeFeedForward

Floats = NDArray[np.float64]

# Problems whose best plan has several chunks a stage.
PROBLEMS = [(40, 2), (66, 2), (77, 2), (78, 2), (85, 2), (99, 2), (57, 3), (78, 3), (107, 4)]
# The same with experts in all layers but so many.
UNLIKE = [(66, 2, 1), (77, 2, 5), (85, 2, 4), (85, 2, 1), (78, 3, 6)]


def with_experts(problem: Problem, dense: int) -> Problem:
    """The same, with experts in all layers but the first ones."""
    (run,) = problem.model.layers
    experts = MoeFeedForward(experts=4, top_k=2, expert_size=run.layer.feed_forward.size // 2)
    layers = (
        LayerRun(count=dense, layer=run.layer),
        LayerRun(
            count=run.count - dense, layer=run.layer.model_copy(update={"feed_forward": experts})
        ),
    )
    return replace(problem, model=problem.model.model_copy(update={"layers": layers}))


@pytest.mark.parametrize(("seed", "stages"), PROBLEMS)
def test_the_plan_is_the_best_of_all_candidates(seed: int, stages: int) -> None:
    options = PlanOptions(pipeline_parallel=stages)
    problem = replace(small_problem(random.Random(seed)), options=options)
    best, layout, _ = brute_force(problem)
    assert layout is not None
    assert layout.degrees.virtual_stages > 1
    found = Grid(problem).run()
    assert found.plans[0].value == pytest.approx(best, rel=1e-12)
    assert found.bound <= best * (1 + 1e-12)
    assert found.complete


@pytest.mark.parametrize(("seed", "stages", "dense"), UNLIKE)
def test_chunks_of_unlike_layers_are_the_best_too(seed: int, stages: int, dense: int) -> None:
    options = PlanOptions(pipeline_parallel=stages)
    problem = replace(with_experts(small_problem(random.Random(seed)), dense), options=options)
    best, layout, _ = brute_force(problem)
    assert layout is not None
    assert layout.degrees.virtual_stages > 1
    found = Grid(problem).run()
    assert found.plans[0].value == pytest.approx(best, rel=1e-12)
    assert found.bound <= best * (1 + 1e-12)


def test_chunks_have_as_many_layers() -> None:
    options = PlanOptions(virtual_stages=5)
    problem = replace(small_problem(random.Random(22)), options=options)
    with pytest.raises(ConfigurationError, match="do not divide 12 layers") as raised:
        check_request(problem)
    assert raised.value.fix == "--virtual-stages 4"


@settings(deadline=None)
@given(
    st.integers(2, 6),
    st.integers(2, 4),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.1, 2.0]),
    st.integers(0, 2**32 - 1),
)
def test_no_pipeline_is_done_before_the_bound(
    stages: int, chunks: int, groups: int, sending: float, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    each = dice.random((2, chunks, 3, stages)) ** 2
    send = sending * dice.random(stages)
    bounds = interleaved_bounds(each, send[:-1], float(send[-1]), groups * stages)
    forward, backward = np.moveaxis(each, 1, -1)
    finish = finish_interleaved(forward, backward, send, groups * stages)
    assert (bounds <= finish * (1 + 1e-12)).all()


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0.1, 10)), min_size=1, max_size=3),
    st.integers(2, 4),
    st.integers(2, 6),
)
def test_rates_solve_the_linear_programme(
    runs: list[tuple[int, float]], chunks: int, groups: int
) -> None:
    counts = np.array([[number for number, _ in runs]])
    unit = np.array([[seconds for _, seconds in runs]])
    stages = int(counts.sum())
    m = groups * stages
    each = np.repeat(unit[0], counts[0])
    passing, warming = np.zeros((2, stages, stages))
    for stage in range(stages):
        held = 2 * (stages - 1 - stage) + (chunks - 1) * stages + 1
        passing[stage, stage], passing[stage, :stage] = m, 1 / chunks
        warming[stage, stage], warming[stage, stage + 1 :] = m - held / chunks, 1 / chunks
    rate = chunk_rates(m, counts, unit, 1 / chunks)[0]
    assert rate == pytest.approx(1 / least_step(passing, each), rel=1e-6)
    rate = warm_up_rates(m, counts, unit, chunks)[0]
    assert rate == pytest.approx(1 / least_step(warming, each), rel=1e-6)


def least_step(weights: Floats, unit: Floats) -> float:
    """The least of the largest row of weights times seconds, for one layer in all stages."""
    stages = len(unit)
    solved = linprog(
        [1.0, *[0.0] * stages],
        A_ub=np.column_stack([-np.ones(stages), weights]),
        b_ub=np.zeros(stages),
        A_eq=[[0.0, *(1 / unit)]],
        b_eq=[1.0],
    )
    return float(solved.fun)
