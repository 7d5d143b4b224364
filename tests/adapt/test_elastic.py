"""Batches that stay the same, or within a band, while devices come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.adapt.elastic import elastic_batches, elastic_micro_batch, nearest_usable
from hetcli.errors import InfeasibleError


@pytest.mark.parametrize(
    ("nodes", "samples", "batches"),
    [
        (59, [6], [2832]),
        (55, [6, 7], [2640, 3080]),
        (64, [6], [3072]),
        (66, [5, 6], [2640, 3168]),
        (80, [], []),
        (100, [], []),
    ],
)
def test_sixty_nodes_that_come_and_go(nodes: int, samples: list[int], batches: list[int]) -> None:
    """ServiceNow/Fast-LLM issue 241: a batch of 2,880 within 10 %, nodes of 8 GPUs."""
    found = elastic_batches(nodes * 8, 2880, 0.10)
    assert [each.samples for each in found] == samples
    assert [each.global_batch for each in found] == batches


def test_for_a_number_without_a_batch_a_smaller_one_is_found() -> None:
    assert nearest_usable(80 * 8, 8, 2880, 0.10) == 79 * 8
    assert elastic_batches(79 * 8, 2880, 0.10)
    assert nearest_usable(8, 8, 2880, 0.10) is None


@pytest.mark.parametrize(
    ("model_parallel", "choices", "expected"),
    [(1, [4, 8], 4), (2, [4, 8], 8), (4, [4, 8], 8), (2, [8], 8), (4, [8], 8)],
)
def test_the_micro_batch_follows_the_data_parallel_ranks(
    model_parallel: int, choices: list[int], expected: int
) -> None:
    """deepspeedai/DeepSpeed pull request 8395: 16 GPUs, a batch of 64."""
    assert elastic_micro_batch(64, 16, model_parallel, choices) == expected


def test_what_cannot_be_split_is_refused_with_what_works() -> None:
    with pytest.raises(InfeasibleError, match="no micro-batch of") as caught:
        elastic_micro_batch(64, 16, 1, [8])
    assert "divides 4" in caught.value.fix
    with pytest.raises(InfeasibleError, match="groups of 3"):
        elastic_micro_batch(64, 16, 3, [8])


@given(st.integers(1, 500), st.integers(1, 5000), st.floats(0, 0.5))
def test_all_batches_of_the_band_and_no_others(ranks: int, batch: int, tolerance: float) -> None:
    found = {each.global_batch for each in elastic_batches(ranks, batch, tolerance)}
    slack = 1e-6 * ranks
    for samples in range(1, 2 * batch // ranks + 2):
        total = samples * ranks
        inside = batch * (1 - tolerance) <= total <= batch * (1 + tolerance)
        border = min(abs(total - batch * (1 - tolerance)), abs(total - batch * (1 + tolerance)))
        assert border < slack or (total in found) == inside
