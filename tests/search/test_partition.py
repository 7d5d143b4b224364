from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.search.partition import even_split, split_equal_layers, split_unlike_layers


def compositions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    if stages == 1:
        yield (layers,)
        return
    for first in range(layers + 1):
        for rest in compositions(layers - first, stages - 1):
            yield (first, *rest)


def value(times: list[float], weight: float) -> float:
    return weight * max(times) + sum(times)


seconds = st.integers(min_value=1, max_value=20).map(lambda n: n / 4)
extras = st.integers(min_value=0, max_value=20).map(lambda n: n / 4)


@st.composite
def equal_problems(draw: st.DrawFn) -> tuple[list[float], list[float], list[int], list[int], int]:
    stages = draw(st.integers(min_value=1, max_value=4))
    size = {"min_size": stages, "max_size": stages}
    return (
        draw(st.lists(seconds, **size)),
        draw(st.lists(extras, **size)),
        draw(st.lists(st.integers(min_value=0, max_value=1), **size)),
        draw(st.lists(st.integers(min_value=0, max_value=9), **size)),
        draw(st.integers(min_value=1, max_value=9)),
    )


@given(equal_problems(), st.integers(min_value=0, max_value=40))
def test_equal_layers_split_as_brute_force(
    problem: tuple[list[float], list[float], list[int], list[int], int], weight: int
) -> None:
    each, extra, least, most, layers = problem
    split, found = split_equal_layers(
        np.array([each]),
        np.array([extra]),
        np.array([least]),
        np.array([most]),
        layers,
        np.array([float(weight)]),
    )
    best = min(
        (
            value([n * c + e for n, c, e in zip(ns, each, extra, strict=True)], weight)
            for ns in compositions(layers, len(each))
            if all(a <= n <= b for a, n, b in zip(least, ns, most, strict=True))
        ),
        default=np.inf,
    )
    assert found[0] == pytest.approx(best)
    if np.isfinite(best):
        chosen = split[0].tolist()
        assert sum(chosen) == layers
        assert all(a <= n <= b for a, n, b in zip(least, chosen, most, strict=True))
        times = [n * c + e for n, c, e in zip(chosen, each, extra, strict=True)]
        assert value(times, weight) == pytest.approx(best)


def test_candidates_of_one_batch_do_not_disturb_each_other() -> None:
    one = split_equal_layers(
        np.array([[1.0, 2.0]]),
        np.zeros((1, 2)),
        np.ones((1, 2), dtype=np.int64),
        np.full((1, 2), 9),
        9,
        np.array([10.0]),
    )
    both = split_equal_layers(
        np.array([[1.0, 2.0], [3.0, 1.0]]),
        np.zeros((2, 2)),
        np.ones((2, 2), dtype=np.int64),
        np.full((2, 2), 9),
        9,
        np.array([10.0, 1.0]),
    )
    assert one[0][0].tolist() == both[0][0].tolist() == [6, 3]
    assert both[0][1].tolist() == [1, 8]


def test_stages_that_do_not_exist_take_no_layers() -> None:
    split, found = split_equal_layers(
        np.array([[1.0, 1.0, 1.0]]),
        np.zeros((1, 3)),
        np.array([[1, 1, 0]]),
        np.array([[9, 9, 0]]),
        8,
        np.array([3.0]),
    )
    assert split[0].tolist() == [4, 4, 0]
    assert found[0] == 3 * 4 + 8


def test_six_layers_with_embedding_and_head_as_heavy_as_one_layer() -> None:
    # ISEEKYAN/Megatron-LM#47: two units of work a stage.
    split, _ = split_equal_layers(
        np.ones((1, 4)),
        np.array([[1.0, 0.0, 0.0, 1.0]]),
        np.array([[0, 1, 1, 0]]),
        np.full((1, 4), 6),
        6,
        np.array([31.0]),
    )
    assert split[0].tolist() == [1, 2, 2, 1]


@given(
    st.lists(st.lists(seconds, min_size=5, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(min_value=1, max_value=5), min_size=4, max_size=4),
    st.integers(min_value=0, max_value=40),
)
def test_unlike_layers_split_as_brute_force(
    each: list[list[float]], most: list[int], weight: int
) -> None:
    stages, layers = len(each), 5
    cost = np.full((stages, layers + 1, layers + 1), np.inf)
    for stage in range(stages):
        for start in range(layers + 1):
            for stop in range(start, min(layers, start + most[stage]) + 1):
                cost[stage, start, stop] = sum(each[stage][start:stop])
    best = np.inf
    for ns in compositions(layers, stages):
        ends = np.cumsum([0, *ns])
        times = [float(cost[k, ends[k], ends[k + 1]]) for k in range(stages)]
        best = min(best, value(times, weight) if np.isfinite(times).all() else np.inf)
    found = split_unlike_layers(cost, weight)
    if np.isinf(best):
        assert found is None
    else:
        assert found is not None
        assert found.value == pytest.approx(best)
        assert sum(found.layers) == layers


def test_unlike_layers_respect_the_least_of_a_stage() -> None:
    cost = np.full((2, 4, 4), np.inf)
    for start in range(4):
        for stop in range(start, 4):
            cost[:, start, stop] = (stop - start) * np.array([1.0, 100.0])
    free = split_unlike_layers(cost, 5.0)
    bound = split_unlike_layers(cost, 5.0, least=(0, 1))
    assert free is not None
    assert free.layers == (3, 0)
    assert bound is not None
    assert bound.layers == (2, 1)


@given(st.integers(min_value=1, max_value=200), st.integers(min_value=1, max_value=40))
def test_an_even_split_is_even_and_complete(layers: int, stages: int) -> None:
    split = even_split(layers, stages)
    assert sum(split) == layers
    assert len(split) == stages
    assert max(split) - min(split) <= 1


def test_thirty_layers_over_four_stages() -> None:
    assert even_split(30, 4) == (7, 8, 8, 7)
