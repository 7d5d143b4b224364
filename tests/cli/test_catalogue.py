"""`gpus`, `models`, `schema`: what the catalogue says, for people and for programs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hetcli.catalog.hardware import load_gpus
from hetcli.catalog.presets import preset_names
from hetcli.cli import app
from hetcli.spec.formats import FORMATS

WIDTH = 100


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_gpu_has_a_line_and_no_line_is_wider_than_a_page() -> None:
    lines = output("gpus").splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    shown = {line.split()[0] for line in lines if line}
    assert set(load_gpus()) <= shown


def test_gpus_as_json_carry_their_sources() -> None:
    document = json.loads(output("gpus", "--json"))
    assert document["schema_version"] == 1
    assert [gpu["name"] for gpu in document["gpus"]] == list(load_gpus())
    assert all(gpu["source"] for gpu in document["gpus"])


def test_one_gpu_is_shown_in_full_under_any_of_its_names() -> None:
    assert output("gpus", "NVIDIA A100-SXM4-80GB") == output("gpus", "a100-80gb")
    shown = output("gpus", "V100-32GB")
    assert "fp16 125 TFLOP/s" in shown
    assert "bf16" not in shown
    assert "FlashAttention      no" in shown


def test_presets_are_listed() -> None:
    assert output("models").split() == list(preset_names())


def test_a_model_is_counted_to_the_last_parameter() -> None:
    document = json.loads(output("models", "llama-2-7b", "--json"))
    assert document["parameters"] == 6_738_415_616
    assert "6,738,415,616" in output("models", "llama-2-7b")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_has_a_schema(name: str) -> None:
    schema = json.loads(output("schema", name))
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert "schema_version" in schema["properties"]
