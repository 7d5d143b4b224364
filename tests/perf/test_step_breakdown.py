"""A prediction adds up: the breakdown to the step, the items to the peak, each with its origin."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from hetcli.cli import app
from hetcli.spec.base import Origin

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
