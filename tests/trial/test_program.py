"""What every device is told to do: messages meet, and nobody waits for ever."""

from __future__ import annotations

from collections import deque
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny import configuration, devices, stage

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import Configuration, DeviceId, ScheduleName
from hetcli.perf.pipeline.rules import default_chunks
from hetcli.trial.program import Channel, Message, Program, programs


def run(written: dict[DeviceId, Program]) -> None:
    """Let all devices work, message by message, until they are done or everyone waits."""
    left = {device: deque(program.actions) for device, program in written.items()}
    flying: dict[Channel, deque[int]] = {}
    moving = True
    while moving:
        moving = False
        for device, actions in left.items():
            while actions and all(
                flying.get(message.channel, deque()) and flying[message.channel][0] == message.tag
                for message in actions[0].receives
            ):
                action = actions.popleft()
                for message in action.receives:
                    assert message.channel.destination == device
                    flying[message.channel].popleft()
                for message in action.sends:
                    assert message.channel.source == device
                    flying.setdefault(message.channel, deque()).append(message.tag)
                moving = True
    assert not any(left.values()), "somebody waits for ever"
    assert not any(flying.values()), "somebody does not listen"


def chunked(name: ScheduleName, stages: int, batches: int, replicas: int = 1) -> Configuration:
    chunks = default_chunks(name)
    return configuration(
        [
            stage(
                [(0, 1)] * chunks,
                [(devices(at + stages * member, 1), batches) for member in range(replicas)],
            )
            for at in range(stages)
        ],
        batch=batches * replicas,
        schedule=name,
    )


@given(
    st.sampled_from(get_args(ScheduleName)),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_every_schedule_runs_to_its_end(
    name: ScheduleName, stages: int, rounds: int, replicas: int
) -> None:
    try:
        written = programs(chunked(name, stages, stages * rounds, replicas))
    except ConfigurationError:
        assume(False)
    run(written)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_stages_with_unlike_numbers_of_replicas_run_to_their_end(
    few: int, factor: int, batches: int
) -> None:
    many = few * factor
    given_ = configuration(
        [
            stage([(0, 1)], [(devices(at, 1), batches * factor) for at in range(few)]),
            stage([(1, 1)], [(devices(10 + at, 1), batches) for at in range(many)]),
            stage([(2, 1)], [(devices(20 + at, 1), batches * factor) for at in range(few)]),
        ],
        batch=few * batches * factor,
    )
    run(programs(given_))


def test_chunks_hold_the_layers_on_their_way_back_in_a_v() -> None:
    written = programs(chunked("zb-v", 2, 3))
    first, second = (written[DeviceId("n0", index)] for index in range(2))
    assert [chunk.first for chunk in first.chunks] == [0, 3]
    assert [chunk.first for chunk in second.chunks] == [1, 2]
    assert (first.embeds, first.ends) == ({0}, {1})
    assert not second.embeds
    assert not second.ends


def first_messages(given_: Configuration, device: DeviceId) -> tuple[Message, ...]:
    return programs(given_)[device].actions[0].receives


def test_more_tensor_ranks_take_the_activation_from_the_same_sender() -> None:
    given_ = configuration(
        [stage([(0, 1)], [(devices(0, 1), 1)]), stage([(1, 1)], [(devices(1, 2), 1)], tp=2)],
        batch=1,
    )
    for index in (1, 2):
        [message] = first_messages(given_, DeviceId("n0", index))
        assert message.channel.source == DeviceId("n0", 0)
        assert message.positions == (0, 16)


def test_with_sequence_parallelism_each_tensor_rank_takes_its_tokens() -> None:
    given_ = configuration(
        [
            stage([(0, 1)], [(devices(0, 2), 1)], tp=2),
            stage([(1, 1)], [(devices(2, 4), 1)], tp=4),
            stage([(2, 1)], [(devices(6, 1), 1)]),
        ],
        batch=1,
        sequence_parallel=True,
    )
    [message] = first_messages(given_, DeviceId("n0", 3))
    assert (message.channel.source.index, message.positions) == (0, (0, 4))
    parts = first_messages(given_, DeviceId("n0", 6))
    assert [(each.channel.source.index, each.positions) for each in parts] == [
        (2, (0, 4)),
        (3, (4, 8)),
        (4, (8, 12)),
        (5, (12, 16)),
    ]


def test_tags_of_a_pair_of_devices_are_all_different() -> None:
    written = programs(chunked("interleaved", 2, 4))
    for program in written.values():
        tags = [message.tag for action in program.actions for message in action.receives]
        assert len(tags) == len(set(tags))


def test_an_impossible_schedule_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="even number of stages"):
        programs(chunked("wave", 3, 3))
