"""What moves when a plan changes, and what is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trial"))
from running_plans import a100, gpt, lost_node
from tiny import configuration, devices, stage

from hetcli.adapt.changes import Changes, changed
from hetcli.adapt.holding import Holding, Sizes
from hetcli.adapt.moving import move, placed_to_keep
from hetcli.adapt.strategies import renamed
from hetcli.perf.configuration import Configuration
from hetcli.perf.resolve import resolve
from hetcli.search.document import configuration_of


def test_moving_counts_only_what_a_device_does_not_have() -> None:
    made = gpt(12, 2048, 16)
    hardware = resolve(a100(3, gpus=2))

    def cut(*layers: int) -> Configuration:
        first = [sum(layers[:at]) for at in range(3)]
        return configuration(
            [
                stage([(first[at], layers[at])], [(devices(0, 2, f"n-{at}"), 12)], tp=2)
                for at in range(3)
            ],
            batch=12,
        )

    same = move(cut(4, 4, 4), cut(4, 4, 4), made, hardware)
    assert (same.received_bytes, same.seconds, same.reshards) == (0.0, 0.0, False)
    # Megatron-LM in fp32: 4 bytes of weight, 8 of moments; a layer has 12 h^2 and some norms.
    one = move(cut(4, 4, 4), cut(5, 3, 4), made, hardware)
    layer = 12 * 2048**2
    assert one.received_bytes == pytest.approx(layer * 12, rel=0.01)
    assert one.reshards
    assert not one.state_is_lost


def test_the_optimizer_s_shard_of_a_lost_device_is_lost() -> None:
    stages = [stage([(0, 12)], [(devices(0, 2, f"n-{at}"), 6) for at in range(2)], tp=2)]
    left = resolve(changed(a100(2, gpus=2), Changes(failed=(("n-1", None),))))
    after = configuration([stage([(0, 12)], [(devices(0, 2, "n-0"), 12)], tp=2)], batch=12)
    for zero, lost in ((0, False), (1, True)):
        before = configuration(stages, batch=12, zero_stage=zero)
        assert move(before, after, gpt(12, 2048, 16), left).state_is_lost is lost


def test_equal_nodes_change_places_so_that_nothing_moves() -> None:
    before = configuration_of(lost_node())
    hardware = resolve(a100(8))
    order = [3, 1, 0, 7, 4, 2, 6, 5]
    other = renamed(before, {f"n-{at}": f"n-{to}" for at, to in enumerate(order)})
    assert move(before, other, gpt(), hardware).received_bytes > 0
    again = placed_to_keep(before, other, gpt(), hardware)
    assert move(before, again, gpt(), hardware).received_bytes == 0


shares = st.sampled_from(
    [
        (tp, rank, dp, member)
        for tp in (1, 2, 4)
        for rank in range(tp)
        for dp in (1, 2, 3)
        for member in range(dp)
    ]
)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), shares), min_size=2, max_size=2))
def test_missing_bytes_are_those_of_the_parameters_counted_one_by_one(
    two: list[tuple[int, int, tuple[int, int, int, int]]],
) -> None:
    sizes = Sizes((0.0, 24.0, 72.0, 96.0, 192.0, 216.0, 240.0, 264.0, 288.0, 312.0), 2.0, 12.0)
    held, cells = [], []
    for first, count, (tp, rank, dp, member) in two:
        weights = (rank / tp, (rank + 1) / tp)
        begin = weights[0] + member / (tp * dp)
        held.append(Holding(((first, first + count),), weights, (begin, begin + 1 / (tp * dp))))
        # 24 equal parts of a tensor are as fine as any share here.
        own = {"weights": range(rank * 24 // tp, (rank + 1) * 24 // tp)}
        part = 24 // tp // dp
        own["optimizer"] = range(
            own["weights"].start + member * part, own["weights"].start + (member + 1) * part
        )
        cells.append(
            {
                (kind, content, at)
                for kind, parts in own.items()
                for content in range(first, first + count)
                for at in parts
            }
        )
    expected = sum(
        (sizes.before[content + 1] - sizes.before[content])
        / 24
        * (sizes.weight_bytes if kind == "weights" else sizes.optimizer_bytes)
        for kind, content, _ in cells[1] - cells[0]
    )
    assert sizes.missing(held[:1], held[1:])[0, 0] == pytest.approx(expected, abs=1e-6)
