"""The options that limit what a plan may cost and use."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from hetcli.cli import app
from hetcli.units import parse_throughput

INPUTS = [
    *["plan", "--cluster", "A100-SXM4-80GB:4+V100-SXM2-32GB:4", "--model", "gpt2-xl"],
    *["--global-batch", "64"],
]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*INPUTS, *arguments])


def test_every_limit_reaches_the_plan() -> None:
    result = run(
        *["--max-nodes", "2", "--quota", "V100-SXM2-32GB=0", "--quota", "A100-SXM4-80GB=2"],
        *["--min-throughput", "0.01steps/s", "--tokens", "1B", "--json"],
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["search"]["asked"] == {
        "max_nodes": 2,
        "min_steps_per_s": 0.01,
        "quotas": {"V100-SXM2-32GB": 0, "A100-SXM4-80GB": 2},
    }
    assert {device["gpu"] for device in document["predicted"]["devices"]} == {"A100-SXM4-80GB"}
    assert len(document["predicted"]["devices"]) <= 2
    assert document["predicted"]["training_time_s"] > 0


def test_the_training_time_and_the_front_are_shown() -> None:
    cluster = ["--cluster", "sample:dgx-a100-v100", "--max-nodes", "2"]
    result = run(*cluster, "--pareto", "--tokens", "10B")
    assert result.exit_code == 0, result.output
    assert "for the whole token budget, $" in result.stdout
    assert "Time against money" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--min-throughput", "400"], "400k tokens/s or 0.2 steps/s"),
        (["--quota", "V100"], "a name and a number"),
        (["--quota", "V100-SXM2-32GB=many"], "a name and a number"),
        (["--quota", "T4=3"], "no such device type or place"),
        (["--tokens", "soon"], "is not a count"),
    ],
)
def test_what_is_no_limit_is_a_usage_error(arguments: list[str], why: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert why in result.stderr


def test_an_impossible_limit_is_a_negative_answer() -> None:
    result = run("--min-throughput", "1T tokens/s")
    assert result.exit_code == 1
    assert "as fast as asked for" in result.stderr


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("400k tokens/s", (400_000, "tokens")),
        ("0.2steps/s", (0.2, "steps")),
        ("1.5Mtokens/s", (1.5e6, "tokens")),
        ("2B tokens/s", (2e9, "tokens")),
    ],
)
def test_throughputs(text: str, value: tuple[float, str]) -> None:
    assert parse_throughput(text) == value
