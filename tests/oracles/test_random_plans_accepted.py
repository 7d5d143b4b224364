"""Real frameworks accept the directories of random plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import Judge
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_plans import feasible
from test_megatron_accepts import judged
from test_megatron_layout import NAMES, READER

from hetcli.export import render
from hetcli.export.megatron.layout import plan_layout
from hetcli.spec.plan import Plan

pytestmark = pytest.mark.oracle

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


def some(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=QUIET
    )


@some(20)
@given(st.data())
def test_megatron_accepts_random_plans(megatron: Judge, data: st.DataObject) -> None:
    plan: Plan = data.draw(feasible("megatron"))
    with tempfile.TemporaryDirectory() as folder:
        answers, _ = judged(plan, megatron, Path(folder))
    for answer in answers:
        assert answer["ok"], answer["error"]
        assert answer["data_parallel"] == plan.parallelism.data_parallel
        assert answer["micro_batches"] == plan.parallelism.gradient_accumulation
        assert [[chunk.count("t") for chunk in rank] for rank in answer["layers"]] == [
            list(stage.chunks) for stage in plan.stages
        ]


@some(300)
@given(st.data())
def test_deepspeed_accepts_random_plans(deepspeed: Judge, data: st.DataObject) -> None:
    plan: Plan = data.draw(feasible("deepspeed"))
    config = json.loads(render(plan)["ds_config.json"])
    answer = deepspeed.ask("config", config=config, world=plan.parallelism.data_parallel)
    assert answer["ok"], answer["error"]
    assert answer["train_batch_size"] == plan.parallelism.global_batch
    assert answer["zero_stage"] == plan.parallelism.zero_stage


def test_the_layout_class_accepts_random_plans(megatron_core_folder: Path) -> None:
    plans: list[Plan] = []

    @some(300)
    @given(feasible("megatron"))
    def collect(plan: Plan) -> None:
        plans.append(plan)

    collect()
    lines = []
    for plan in plans:
        text = plan_layout([stage.chunks for stage in plan.stages]).render()
        lines.append(f"{len(plan.stages)} {plan.inputs.model.layer_count} 0 {text}\n")
    result = subprocess.run(
        [sys.executable, "-c", READER, str(megatron_core_folder)],
        input="".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env=dict(os.environ),
    )
    decoder = "t".translate(NAMES)
    for plan, line in zip(plans, result.stdout.splitlines(), strict=False):
        found = [[chunk.count(decoder) for chunk in rank] for rank in json.loads(line)]
        assert found == [list(stage.chunks) for stage in plan.stages]
