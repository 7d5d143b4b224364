"""Who works on which sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import configuration, devices, stage

from hetcli.errors import ConfigurationError
from hetcli.trial.assignment import Unit, blocks


def each(count: int, batches: int) -> list[tuple[tuple[object, ...], int]]:
    return [(devices(at, 1), batches) for at in range(count)]  # type: ignore[misc]


def test_one_replica_a_stage_makes_a_block_of_its_own() -> None:
    two = configuration(
        [stage([(0, 1)], each(2, 3)), stage([(1, 1)], each(2, 3))],
        batch=6,
    )
    [[one, other]] = blocks(two)
    assert one.slots[0] == one.slots[1]
    assert [slot[0] for slot in one.slots[0]] == [
        Unit(0, 0, 0, 1),
        Unit(0, 1, 1, 2),
        Unit(0, 2, 2, 3),
    ]
    assert other.slots[0][0] == (Unit(1, 0, 3, 4),)


def test_replicas_take_turns_where_the_stage_before_has_fewer() -> None:
    given_ = configuration([stage([(0, 1)], each(1, 4)), stage([(1, 1)], each(2, 2))], batch=4)
    [[block]] = blocks(given_)
    assert [slot[0].replica for slot in block.slots[1]] == [0, 1, 0, 1]
    assert block.micro_batches == 4


def test_smaller_micro_batches_share_the_slot_of_a_larger_one() -> None:
    given_ = configuration(
        [stage([(0, 1)], each(1, 2), size=4), stage([(1, 1)], each(1, 4), size=2)], batch=8
    )
    [[block]] = blocks(given_)
    assert [[unit.first for unit in slot] for slot in block.slots[1]] == [[0, 2], [4, 6]]


def test_later_pipelines_go_on_where_earlier_ones_stop() -> None:
    given_ = configuration(
        [stage([(0, 2)], each(1, 3))],
        [stage([(0, 1)], each(1, 2)), stage([(1, 1)], each(1, 2))],
        batch=5,
    )
    _, [second] = blocks(given_)
    assert second.slots[0][0] == (Unit(0, 0, 3, 4),)


def test_stages_of_unlike_batches_are_refused() -> None:
    bad = configuration([stage([(0, 1)], each(1, 4)), stage([(1, 1)], each(1, 3))], batch=4)
    with pytest.raises(ConfigurationError, match=r"work on \[4, 3\] sequences"):
        blocks(bad)


def test_a_batch_that_is_not_the_global_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="work on 4 sequences, the global batch is 5"):
        blocks(configuration([stage([(0, 1)], each(2, 2))], batch=5))


def test_micro_batches_that_cannot_be_lined_up_are_refused() -> None:
    # The first stage hands over 3 and 3 sequences, the second takes 2 and 4.
    first = stage([(0, 1)], each(1, 2), size=3)
    second = stage([(1, 1)], [(devices(1, 1), 1), (devices(2, 1), 1)], size=2)
    larger = type(second.replicas[1])(second.replicas[1].devices, 1, 4)
    uneven = type(second)(second.chunks, 1, (second.replicas[0], larger))
    with pytest.raises(ConfigurationError, match="cannot be lined up"):
        blocks(configuration([first, uneven], batch=6))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3))
def test_every_sequence_is_worked_on_once_in_every_stage(
    batches: list[int], size: int, depth: int
) -> None:
    stages = [
        stage(
            [(at, 1)],
            [(devices(number, 1), count) for number, count in enumerate(batches)],
            size=size,
        )
        for at in range(depth)
    ]
    total = sum(batches) * size
    [found] = blocks(configuration(stages, batch=total))
    for at in range(depth):
        worked = [
            sequence
            for block in found
            for slot in block.slots[at]
            for unit in slot
            for sequence in range(unit.first, unit.stop)
        ]
        assert sorted(worked) == list(range(total))
