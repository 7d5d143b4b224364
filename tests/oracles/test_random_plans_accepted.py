"""Real frameworks accept the directories of random plans and see the plans in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from conftest import Judge
from flagscale_rules import broken_rules, megatron_options
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_plans import feasible
from test_megatron_accepts import assert_plan_is_seen, judged
from test_megatron_layout import NAMES, READER
from test_torchtitan_accepts import assert_titan_sees

from hetcli.export import render
from hetcli.export.megatron.layout import plan_layout
from hetcli.spec.plan import Plan

pytestmark = pytest.mark.oracle

MANY = settings(
    max_examples=int(os.environ.get("HETCLI_RANDOM_PLANS", "300")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


@MANY
@given(st.data())
def test_megatron_accepts_random_plans(megatron: Judge, data: st.DataObject) -> None:
    plan: Plan = data.draw(feasible("megatron"))
    with tempfile.TemporaryDirectory() as folder:
        assert_plan_is_seen(plan, *judged(plan, megatron, Path(folder)))


@MANY
@given(st.data())
def test_deepspeed_accepts_random_plans(deepspeed: Judge, data: st.DataObject) -> None:
    plan: Plan = data.draw(feasible("deepspeed"))
    degrees = plan.parallelism
    config = json.loads(render(plan)["ds_config.json"])
    answer = deepspeed.ask("config", config=config, world=degrees.data_parallel)
    assert answer["ok"], answer["error"]
    sizes = {replica.micro_batch_size for stage in plan.stages for replica in stage.replicas}
    if len(sizes) == 1:  # Otherwise DeepSpeed is told a nominal micro-batch.
        assert answer["train_batch_size"] == degrees.global_batch
    assert answer["accumulation"] == degrees.gradient_accumulation
    assert answer["zero_stage"] == degrees.zero_stage
    assert (answer["bf16"], answer["fp16"]) == (
        degrees.precision == "bf16",
        degrees.precision == "fp16",
    )
    assert ("cpu" in answer["offload_optimizer"]) is (degrees.offload != "none")
    assert ("cpu" in answer["offload_param"]) is (degrees.offload == "optimizer+parameters")


@MANY
@given(st.data())
def test_torchtitan_accepts_random_plans(torchtitan: Judge, data: st.DataObject) -> None:
    plan: Plan = data.draw(feasible("torchtitan"))
    with tempfile.TemporaryDirectory() as folder:
        assert_titan_sees(plan, torchtitan, Path(folder))


@MANY
@given(feasible("flagscale"))
def test_flagscale_has_no_rule_against_random_plans(plan: Plan) -> None:
    launch = render(plan, target="flagscale")
    assert broken_rules(launch["flagscale.yaml"], launch["hostfile.flagscale"]) == []


@settings(MANY, max_examples=MANY.max_examples // 10)
@given(st.data())
def test_megatron_accepts_the_options_of_every_mesh(megatron: Judge, data: st.DataObject) -> None:
    """FlagScale's keys become options of its Megatron-LM, which validates them mesh by mesh."""
    plan: Plan = data.draw(feasible("flagscale"))
    config = render(plan, target="flagscale")["flagscale.yaml"]
    hetero = yaml.safe_load(config)["train"]["system"]["hetero"]
    for number in range(len(hetero["hetero_device_types"])):
        world, options = megatron_options(config, number)
        answer = megatron.ask(
            "accept",
            arguments=options,
            world=world,
            environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        )
        assert answer["ok"], answer["error"]
        model = plan.inputs.model
        assert answer["arguments"]["num_layers"] == model.layer_count
        assert answer["arguments"]["hidden_size"] == model.hidden_size


def test_the_layout_class_accepts_random_plans(megatron_core_folder: Path) -> None:
    plans: list[Plan] = []

    @MANY
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
