"""Our orders against torch.distributed.pipelining, where torch is installed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.work import Place

KINDS = {
    "forward": "FORWARD",
    "backward": "FULL_BACKWARD",
    "backward-input": "BACKWARD_INPUT",
    "backward-weight": "BACKWARD_WEIGHT",
}


@pytest.fixture(scope="module")
def torch_schedules() -> ModuleType:
    pytest.importorskip("torch", reason="the order of torch is asked only where torch is there")
    from torch.distributed.pipelining import schedules

    return schedules


def actions(kind: type[Any], stages: int, micro_batches: int, chunks: int, rank: int) -> list[Any]:
    """What torch plans for a rank, without the process group that its constructor asks for."""
    planner = object.__new__(kind)
    planner.pp_group_size, planner._n_microbatches = stages, micro_batches
    planner.n_local_stages, planner.num_stages, planner.rank = chunks, stages * chunks, rank
    planner.number_of_rounds = micro_batches // stages
    planner.microbatches_per_round = stages
    return [
        (action.computation_type.name, action.stage_index, action.microbatch_index)
        for action in planner._calculate_single_rank_operations(rank)
        if action is not None
    ]


@pytest.mark.oracle
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize(
    ("theirs", "name", "chunks"),
    [
        ("ScheduleZBVZeroBubble", "zb-v", 2),
        ("ScheduleInterleaved1F1B", "interleaved", 2),
        ("ScheduleInterleaved1F1B", "interleaved", 3),
    ],
)
def test_order_is_torchs(
    torch_schedules: ModuleType,
    theirs: str,
    name: ScheduleName,
    chunks: int,
    rounds: int,
    stages: int,
) -> None:
    order = schedule(name, stages, rounds * stages, chunks)
    part = {place: index for index, place in enumerate(order.routes[0])}
    for rank, works in enumerate(order.order):
        ours = [
            (KINDS[work.kind], part[Place(rank, work.chunk)], work.micro_batch) for work in works
        ]
        kind = getattr(torch_schedules, theirs)
        assert ours == actions(kind, stages, rounds * stages, chunks, rank)
