"""Real Megatron-LM trains the exported plans on CPU and gloo, from the exported scripts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from plans import cluster, group, make_plan, tiny
from training import train_megatron

from hetcli.export import render
from hetcli.perf.configuration import Recompute
from hetcli.spec.plan import Plan

pytestmark = pytest.mark.oracle

STEPS = 3
# Weights of a layer of `tiny`: attention 64 x (64 + 2 x 32 + 64), three matrices of 64 x 128, two
# norms. The embedding and the head hold the padded vocabulary of 128 rows, the head a norm more.
LAYER = 64 * (64 + 2 * 32 + 64) + 3 * 64 * 128 + 2 * 64
EMBEDDING = 128 * 64
HEAD = 128 * 64 + 64
_COUNTS = re.compile(r"number of parameters on [^>]*? rank \(([\d, ]+)\): (\d+)")


def nodes(*gpus: int) -> Any:
    return cluster(*(group(f"node-{n}", "cpu", gpus=count) for n, count in enumerate(gpus)))


def small(where: Any, layers: Any, **more: Any) -> Plan:
    more = {"sequence": 32, "precision": "fp32", "overlap_param_gather": False, **more}
    return make_plan(where, more.pop("model", tiny()), layers, **more)


def parameters(output: str) -> dict[int, set[int]]:
    """What Megatron-LM says that it built, by pipeline rank, the last of the ranks it prints."""
    built: dict[int, set[int]] = {}
    for ranks, count in _COUNTS.findall(output):
        built.setdefault(int(ranks.split(",")[-1]), set()).add(int(count))
    return built


def check(losses: list[float]) -> None:
    assert len(losses) == STEPS
    assert 4 < losses[0] < 6  # The cross entropy of guessing among 96 words is 4.56.
    assert losses[-1] < losses[0]


def test_unequal_stages_train_on_nodes_of_unequal_size(
    megatron_folder: Path, tmp_path: Path
) -> None:
    plan = small(
        nodes(2, 1),
        [3, 2, 1],
        zero_stage=0,
        recompute=[Recompute("full"), Recompute("full"), Recompute()],
    )
    losses, output = train_megatron(render(plan), tmp_path, megatron_folder, STEPS)
    check(losses)
    assert parameters(output) == {
        0: {3 * LAYER + EMBEDDING},
        1: {2 * LAYER},
        2: {LAYER + HEAD},
    }


def test_interleaved_stages_train(megatron_folder: Path, tmp_path: Path) -> None:
    # More layers to recompute than a chunk has: it recomputes those it has.
    plan = small(nodes(2), [[1, 2], [2, 1]], zero_stage=0, recompute=Recompute("full", 2))
    losses, output = train_megatron(render(plan), tmp_path, megatron_folder, STEPS)
    check(losses)
    assert parameters(output) == {0: {3 * LAYER + EMBEDDING}, 1: {3 * LAYER + HEAD}}


def test_data_parallel_training_equals_that_of_one_process(
    megatron_folder: Path, tmp_path: Path
) -> None:
    one = small(nodes(1), [6], micro_batches=8, zero_stage=0)
    both = small(nodes(1, 1), [6], data=2, micro_batches=4, overlap_param_gather=True)
    assert both.parallelism.zero_stage == 1
    reference, _ = train_megatron(render(one), tmp_path / "one", megatron_folder, STEPS)
    losses, _ = train_megatron(render(both), tmp_path / "two", megatron_folder, STEPS)
    check(losses)
    # Megatron-LM prints seven digits; sums of other order differ in the last ones.
    assert losses == pytest.approx(reference, abs=5e-6)
