"""A prediction adds up: the breakdown to the step, the items to the peak, each with its origin."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hetcli.catalog.presets import find_preset
from hetcli.cli import app
from hetcli.perf.configuration import (
    Configuration,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    ScheduleName,
    Stage,
)
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster, NodeGroup
from hetcli.spec.model.architecture import Model
from hetcli.spec.workload import Pretrain

CLUSTER = "sample:dgx-a100-v100"
ORIGINS = {origin.value for origin in Origin}


def estimate(*options: str) -> dict[str, Any]:
    asked = ["estimate", "--cluster", CLUSTER, "--model", "llama-3-8b", "--global-batch", "128"]
    result = CliRunner().invoke(app, [*asked, "--seq-len", "4096", *options, "--json"])
    assert result.exit_code in (0, 1), result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module", params=["1", "4"])
def estimated(request: pytest.FixtureRequest) -> dict[str, Any]:
    return estimate("--tp", "2", "--pp", request.param, "--micro-batch", "1")


def test_the_breakdown_sums_to_the_step(estimated: dict[str, Any]) -> None:
    predicted = estimated["predicted"]
    parts = predicted["breakdown_s"]
    assert sum(parts.values()) == pytest.approx(predicted["step_time_s"])
    assert min(parts.values()) >= 0
    named = {"compute", "tensor_parallel", "pipeline_bubble", "pipeline_p2p", "data_parallel"}
    assert named | {"expert_parallel", "optimizer"} <= set(parts)


def test_every_stage_is_broken_down_and_says_its_origin(estimated: dict[str, Any]) -> None:
    predicted = estimated["predicted"]
    assert len(predicted["stages"]) == len(estimated["stages"])
    for stage in predicted["stages"]:
        parts = stage["breakdown_s"]
        work = sum(parts[name] for name in ("compute", "tensor_parallel", "pipeline_p2p"))
        assert work == pytest.approx(stage["busy_s"])
        assert stage["origin"] in ORIGINS
        # What a stage does and waits for until the last backward pass is over for all.
        pipeline = work + parts["pipeline_bubble"]
        assert pipeline <= predicted["step_time_s"] * (1 + 1e-9)


def test_the_items_sum_to_the_peak_and_say_their_origin(estimated: dict[str, Any]) -> None:
    devices = estimated["predicted"]["devices"]
    assert len(devices) == sum(len(stage["devices"]) for stage in estimated["stages"])
    for device in devices:
        items = device["items"]
        assert sum(item["memory_bytes"] for item in items) == device["peak_memory_bytes"]
        assert {item["origin"] for item in items} <= ORIGINS
        assert device["headroom_bytes"] == device["capacity_bytes"] - device["peak_memory_bytes"]


HARDWARE = resolve(
    Cluster(
        name="two kinds",
        nodes=(
            NodeGroup(name="a", gpu="A100-SXM4-80GB", gpus=8, count=2, fabric="net"),
            NodeGroup(name="v", gpu="V100-SXM2-32GB", gpus=8, count=2, fabric="net"),
        ),
    )
)
DEVICES = [device for node in HARDWARE.nodes for device in node.device_ids]
MODELS = [find_preset(name) for name in ("llama-3-8b", "qwen3-30b-a3b", "deepseek-v2-lite")]
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "zb-h1", "interleaved")


@st.composite
def runs(draw: st.DrawFn) -> tuple[Configuration, Model]:
    """A configuration of a few stages, uneven layers, any framework, schedule and ZeRO stage."""
    model = draw(st.sampled_from(MODELS))
    tensor, pipeline, data = (draw(st.sampled_from((1, 2, 4))) for _ in range(3))
    assume(tensor * pipeline * data <= len(DEVICES))
    # The first stages on one kind of device, the last ones on whatever follows.
    first = draw(st.integers(0, len(DEVICES) - tensor * pipeline * data))
    own = DEVICES[first - first % tensor :][: tensor * pipeline * data]
    schedule = draw(st.sampled_from(SCHEDULES)) if pipeline > 1 else "1f1b"
    chunks = 2 if schedule == "interleaved" else 1
    size, rounds = draw(st.sampled_from((1, 2))), draw(st.integers(1, 3))
    batches = pipeline * rounds
    count = pipeline * chunks
    cuts = draw(st.lists(st.integers(1, model.layer_count - 1), min_size=count - 1,
                         max_size=count - 1, unique=True))  # fmt: skip
    edges = [0, *sorted(cuts), model.layer_count]
    ranges = [LayerRange(start, stop - start) for start, stop in pairwise(edges)]
    recompute = Recompute(draw(st.sampled_from(("none", "selective", "full"))))
    stages = tuple(
        Stage(
            tuple(ranges[index::pipeline]),
            tensor,
            tuple(
                Replica(tuple(own[at : at + tensor]), batches, size)
                for at in range(index * data * tensor, (index + 1) * data * tensor, tensor)
            ),
            recompute,
        )
        for index in range(pipeline)
    )
    framework = draw(st.sampled_from(("megatron", "deepspeed", "fsdp")))
    zero = draw(st.sampled_from((0, 1) if pipeline > 1 else (0, 1, 2, 3)))
    configuration = Configuration(
        pipelines=(Pipeline(stages),),
        micro_batch_size=size,
        global_batch=size * batches * data,
        sequence=draw(st.sampled_from((512, 4096))),
        precision="fp16",
        framework=framework,
        zero_stage=zero,
        schedule=schedule,
        expert_parallel=data if draw(st.booleans()) else 1,
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        overlap_grad_reduce=draw(st.booleans()),
        offload=draw(st.sampled_from(("none", "optimizer"))),
    )
    return configuration, model


@settings(max_examples=60, deadline=None)
@given(run=runs())
def test_any_prediction_adds_up(run: tuple[Configuration, Model]) -> None:
    configuration, model = run
    workload = Pretrain(global_batch=configuration.global_batch, sequence=configuration.sequence)
    found = predict(configuration, model=model, workload=workload, hardware=HARDWARE)
    parts = asdict(found.breakdown)
    assert sum(parts.values()) == pytest.approx(found.step_time_s)
    rounding = 1e-9 * found.step_time_s
    assert min(parts.values()) >= -rounding
    assert found.step_time_s >= max(stage.busy_s for stage in found.stages) - rounding
    for stage in found.stages:
        own = asdict(stage.breakdown)
        assert min(own.values()) >= -rounding
        after = {"pipeline_bubble", "data_parallel", "optimizer", "offload"}
        work = sum(seconds for name, seconds in own.items() if name not in after)
        assert work == pytest.approx(stage.busy_s)
        assert stage.origin in Origin
    assert {entry.stage for entry in found.memory} == set(range(len(configuration.stages)))
    held = sum(len(entry.devices) for entry in found.memory)
    assert held == len(configuration.devices)
    for entry in found.memory:
        assert sum(item.nbytes for item in entry.items) == entry.peak_bytes
        assert all(item.nbytes >= 0 and item.origin in Origin for item in entry.items)
        assert entry.headroom_bytes == entry.capacity_bytes - entry.peak_bytes
