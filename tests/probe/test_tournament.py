"""All pairs in as few rounds as there can be, and bus bandwidth by its definition."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.probe.bus import bus_factor
from hetcli.probe.tournament import group_sizes, rounds
from hetcli.spec.profile import LinkOperation


@given(st.integers(min_value=0, max_value=41))
def test_every_pair_meets_once_and_nobody_plays_twice_in_a_round(players: int) -> None:
    made = rounds(range(players))
    pairs = [frozenset(pair) for games in made for pair in games]
    assert sorted(map(sorted, pairs)) == sorted(
        sorted(pair) for pair in itertools.combinations(range(players), 2)
    )
    for games in made:
        busy = [player for pair in games for player in pair]
        assert len(busy) == len(set(busy))
    assert len(made) == (0 if players < 2 else players - 1 + players % 2)


@pytest.mark.parametrize(
    ("most", "sizes"), [(0, ()), (1, ()), (2, (2,)), (6, (2, 4, 6)), (8, (2, 4, 8))]
)
def test_groups_grow_by_doubling_to_all(most: int, sizes: tuple[int, ...]) -> None:
    assert group_sizes(most) == sizes


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        # nccl-tests, doc/PERFORMANCE.md
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 14 / 8),
        ("all_gather", 8, 7 / 8),
        ("reduce_scatter", 4, 3 / 4),
        ("all_to_all", 16, 15 / 16),
        ("broadcast", 8, 1.0),
        ("send_recv", 2, 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(
    operation: LinkOperation, ranks: int, factor: float
) -> None:
    assert bus_factor(operation, ranks) == factor


def test_one_rank_moves_nothing() -> None:
    with pytest.raises(ValueError, match="at least 2 ranks"):
        bus_factor("all_reduce", 1)
