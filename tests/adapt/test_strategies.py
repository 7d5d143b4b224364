"""The ways to go on, one by one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trial"))
from running_plans import a100, gpt, lost_node, resihp
from tiny import configuration, devices, stage

from hetcli.adapt.changes import changed, read_changes
from hetcli.adapt.shares import shrunk_layers, split_batches
from hetcli.adapt.strategies import candidates, shrink_tensor_groups
from hetcli.perf.resolve import resolve
from hetcli.search.document import configuration_of
from hetcli.trial.holders import parts
from hetcli.trial.program import programs


def test_shrinking_a_tensor_group_moves_layers_as_resihp_does() -> None:
    assert shrunk_layers([4, 4, 4], [2, 2, 2], [2, 1, 2]) == [5, 2, 5]


def test_every_strategy_gives_what_the_trial_runtime_runs() -> None:
    """Holders of a layer cut it into slices that fit together: 7 of 8 devices run on as 4."""
    for given_, fault in ((resihp(), "n-1:0"), (lost_node(), "n-7"), (lost_node(), "n-0:3")):
        made, before = given_.inputs.model, configuration_of(given_)
        left = resolve(changed(given_.inputs.cluster, read_changes(fail=[fault])))
        found = dict(candidates(before, made, left))
        assert found
        for name, each in found.items():
            assert parts(each, made, programs(each)), name
    assert {s.tensor_parallel for s in found["exclude from the tensor group"].stages} == {4, 8}


def test_a_pipeline_alone_keeps_as_many_devices_as_divide_its_heads() -> None:
    """The idea of FailSafe (arXiv 2511.14116) for training: six of seven devices, not four."""
    stages = [stage([(6 * at, 6)], [(devices(0, 8, f"n-{at}"), 12)], tp=8) for at in range(2)]
    before = configuration(stages, batch=12)
    left = resolve(changed(a100(2), read_changes(fail=["n-1:0"])))
    found = shrink_tensor_groups(before, gpt(12, 3072, 24), left)
    assert found is not None
    assert [each.tensor_parallel for each in found.stages] == [8, 6]
    # Six tensor ranks cannot share 16 tokens evenly.
    even = shrink_tensor_groups(replace(before, sequence_parallel=True), gpt(12, 3072, 24), left)
    assert even is not None
    assert [each.tensor_parallel for each in even.stages] == [8, 4]


@given(st.integers(1, 60), st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_micro_batches_are_split_so_that_the_last_is_done_first(
    total: int, speeds: list[float]
) -> None:
    counts = split_batches(total, speeds)
    if counts is None:
        assert total < len(speeds)
        return
    assert sum(counts) == total
    assert min(counts) >= 1
    slowest = max(count / speed for count, speed in zip(counts, speeds, strict=True))
    for at, count in enumerate(counts):
        if count > 1:
            moved = [(counts[k] + 1) / speeds[k] for k in range(len(speeds)) if k != at]
            busy = max(
                [(count - 1) / speeds[at]]
                + [counts[k] / speeds[k] for k in range(len(speeds)) if k != at]
            )
            assert not moved or max(busy, min(moved)) >= slowest * (1 - 1e-9)
