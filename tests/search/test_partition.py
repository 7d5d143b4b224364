from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.search.partition import even_split, split_equal_layers, split_unlike_layers


def compositions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    if stages == 1:
        yield (layers,)
        return
    for first in range(layers + 1):
        for rest in compositions(layers - first, stages - 1):
            yield (first, *rest)


def value(times: Sequence[float], weight: Sequence[float]) -> float:
    return max(w * t for w, t in zip(weight, times, strict=True)) + sum(times)


seconds = st.integers(min_value=1, max_value=20).map(lambda n: n / 4)
extras = st.integers(min_value=0, max_value=20).map(lambda n: n / 4)
weights = st.integers(min_value=0, max_value=40).map(float)

Problem = tuple[list[float], list[float], list[int], list[int], list[float], int]


@st.composite
def equal_problems(draw: st.DrawFn) -> Problem:
    stages = draw(st.integers(min_value=1, max_value=4))
    size = {"min_size": stages, "max_size": stages}
    return (
        draw(st.lists(seconds, **size)),
        draw(st.lists(extras, **size)),
        draw(st.lists(st.integers(min_value=0, max_value=1), **size)),
        draw(st.lists(st.integers(min_value=0, max_value=9), **size)),
        draw(st.lists(weights, **size)),
        draw(st.integers(min_value=1, max_value=9)),
    )


@settings(deadline=None)
@given(equal_problems())
def test_equal_layers_split_as_brute_force(problem: Problem) -> None:
    each, extra, least, most, weight, layers = problem
    split, found = split_equal_layers(
        np.array([each]),
        np.array([extra]),
        np.array([least]),
        np.array([most]),
        layers,
        np.array([weight]),
    )

    def times(counts: Sequence[int]) -> list[float]:
        return [n * c + e for n, c, e in zip(counts, each, extra, strict=True)]

    best = min(
        (
            value(times(ns), weight)
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
        assert value(times(chosen), weight) == pytest.approx(best)


def test_candidates_of_one_batch_do_not_disturb_each_other() -> None:
    def solve(each: list[list[float]], weight: list[list[float]]) -> list[list[int]]:
        shape = np.shape(each)
        split, _ = split_equal_layers(
            np.array(each),
            np.zeros(shape),
            np.ones(shape, dtype=np.int64),
            np.full(shape, 9),
            9,
            np.array(weight),
        )
        return split.tolist()

    one = solve([[1.0, 2.0]], [[10.0, 10.0]])
    both = solve([[1.0, 2.0], [3.0, 1.0]], [[10.0, 10.0], [1.0, 1.0]])
    assert one[0] == both[0] == [6, 3]
    assert both[1] == [1, 8]


def test_six_layers_with_embedding_and_head_as_heavy_as_one_layer() -> None:
    # ISEEKYAN/Megatron-LM#47: two units of work a stage.
    split, _ = split_equal_layers(
        np.ones((1, 4)),
        np.array([[1.0, 0.0, 0.0, 1.0]]),
        np.array([[0, 1, 1, 0]]),
        np.full((1, 4), 6),
        6,
        np.full((1, 4), 31.0),
    )
    assert split[0].tolist() == [1, 2, 2, 1]


@settings(deadline=None)
@given(
    st.lists(st.lists(seconds, min_size=5, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(min_value=1, max_value=5), min_size=4, max_size=4),
    st.lists(st.integers(min_value=0, max_value=1), min_size=4, max_size=4),
    st.lists(weights, min_size=4, max_size=4),
)
def test_unlike_layers_split_as_brute_force(
    each: list[list[float]], most: list[int], least: list[int], weight: list[float]
) -> None:
    stages, layers = len(each), 5
    cost = np.full((stages, layers + 1, layers + 1), np.inf)
    for stage in range(stages):
        for start in range(layers + 1):
            for stop in range(start, min(layers, start + most[stage]) + 1):
                cost[stage, start, stop] = sum(each[stage][start:stop])
    best = np.inf
    for ns in compositions(layers, stages):
        if any(n < needed for n, needed in zip(ns, least, strict=False)):
            continue
        ends = np.cumsum([0, *ns])
        times = [float(cost[k, ends[k], ends[k + 1]]) for k in range(stages)]
        if np.isfinite(times).all():
            best = min(best, value(times, weight[:stages]))
    found = split_unlike_layers(cost, weight[:stages], least[:stages])
    if np.isinf(best):
        assert found is None
    else:
        assert found is not None
        assert found.value == pytest.approx(best)
        assert sum(found.layers) == layers


@given(st.integers(min_value=1, max_value=200), st.integers(min_value=1, max_value=40))
def test_an_even_split_is_even_and_complete(layers: int, stages: int) -> None:
    split = even_split(layers, stages)
    assert sum(split) == layers
    assert len(split) == stages
    assert max(split) - min(split) <= 1


def test_thirty_layers_over_four_stages() -> None:
    assert even_split(30, 4) == (7, 8, 8, 7)
