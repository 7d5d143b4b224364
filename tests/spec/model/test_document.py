from __future__ import annotations

import json
from typing import Any

import pytest

from hetcli.catalog.presets import find_preset, preset_names
from hetcli.errors import ModelError, SpecError
from hetcli.spec.complaint import Locator
from hetcli.spec.model.document import model_from_mapping
from hetcli.spec.model.parameters import total_parameters

LAYER = {
    "attention": {"kind": "gqa", "heads": 8, "kv_heads": 2, "head_dim": 8},
    "feed_forward": {"kind": "dense", "size": 96},
}
DOCUMENT: dict[str, Any] = {
    "schema_version": 1,
    "architecture": "mine",
    "hidden_size": 64,
    "vocab_size": 100,
    "max_sequence": 32,
    "layers": [
        {"count": 2, "layer": LAYER},
        {"count": 1, "layer": {"attention": None, "feed_forward": LAYER["feed_forward"]}},
    ],
}


def test_an_explicit_list_of_unlike_layers_is_read() -> None:
    model = model_from_mapping(DOCUMENT, name="mine", source="mine.yaml")
    assert (model.name, model.source, model.layer_count) == ("mine", "mine.yaml", 3)
    attention, block = 64 * (64 + 2 * 16) + 64 * 64, 3 * 64 * 96
    assert total_parameters(model) == 2 * (attention + block) + block + (3 * 2 + 1) * 64 + 2 * 6400


def test_a_document_may_name_itself() -> None:
    assert model_from_mapping({**DOCUMENT, "name": "own"}, name="file").name == "own"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_survives_a_round_trip(name: str) -> None:
    preset = find_preset(name)
    assert model_from_mapping(json.loads(preset.model_dump_json()), name="other") == preset


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"hidden": 64}, "hidden: 64"),
        ({"hidden_size": "64"}, "hidden_size: '64'"),
        ({"hidden_size": 64.0}, "hidden_size: 64.0"),
        ({"hidden_size": 2**50}, "hidden_size: 1125899906842624"),
        ({"schema_version": 2}, "schema_version: 2"),
        ({"layers": []}, "layers"),
        ({"layers": [{"count": 0, "layer": LAYER}]}, "layers[0].count: 0"),
    ],
)
def test_an_explicit_document_is_strict(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(SpecError) as caught:
        model_from_mapping({**DOCUMENT, **changes}, name="mine", source="mine.yaml")
    assert caught.value.what == f"mine.yaml: {what}"
    assert caught.value.fix


def test_an_explicit_document_has_too_many_layers() -> None:
    layers = [{"count": 60_000, "layer": LAYER}] * 2
    with pytest.raises(SpecError, match="120000 layers"):
        model_from_mapping({**DOCUMENT, "layers": layers}, name="mine")


def test_an_error_in_an_explicit_document_names_the_line() -> None:
    text = json.dumps({**DOCUMENT, "hidden_size": -1}, indent=1)
    line = 1 + text[: text.index("hidden_size")].count("\n")
    with pytest.raises(SpecError, match=rf"^mine\.json:{line}: hidden_size: -1"):
        model_from_mapping(json.loads(text), name="mine", locator=Locator("mine.json", text))


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ModelError, match="finite numbers"):
        model_from_mapping({**DOCUMENT, "vocab_size": float("nan")}, name="mine")


@pytest.mark.parametrize(
    ("block", "rule"),
    [
        ({"kind": "gqa", "heads": 32, "kv_heads": 5, "head_dim": 2}, "32 % 5 != 0"),
        ({"kind": "gqa", "heads": 32, "kv_heads": 0, "head_dim": 2}, "kv_heads: 0"),
        ({"kind": "linear"}, "mla"),
    ],
)
def test_impossible_attention_is_refused(block: dict[str, Any], rule: str) -> None:
    layers = [{"count": 1, "layer": {"attention": block, "feed_forward": None}}]
    with pytest.raises(SpecError) as caught:
        model_from_mapping({**DOCUMENT, "layers": layers}, name="mine")
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "why", "fix"),
    [
        ({"top_k": 5}, "top_k 5 is more than the 4 experts", "legal top_k: 1 to 4"),
        ({"groups": 2}, "groups and top_groups belong together", "set both or none"),
        (
            {"groups": 3, "top_groups": 1},
            "4 experts do not split into 3 groups",
            "legal groups: [1, 2, 4]",
        ),
        (
            {"groups": 2, "top_groups": 3},
            "top_groups 3 is more than the 2 groups",
            "legal top_groups: 1 to 2",
        ),
        (
            {"groups": 4, "top_groups": 1},
            "top_k 2 is more than the 1 experts of 1 groups",
            "legal top_k: 1 to 1",
        ),
    ],
)
def test_impossible_routers_are_refused(changes: dict[str, Any], why: str, fix: str) -> None:
    block = {"kind": "moe", "experts": 4, "top_k": 2, "expert_size": 8, **changes}
    layers = [{"count": 1, "layer": {"attention": None, "feed_forward": block}}]
    with pytest.raises(SpecError) as caught:
        model_from_mapping({**DOCUMENT, "layers": layers}, name="mine")
    assert (caught.value.why, caught.value.fix) == (why, fix)


@pytest.mark.parametrize(
    ("positions", "rule"),
    [
        ({"kind": "learned"}, "learned positions have a table"),
        ({"kind": "rope", "table_size": 32}, "learned positions have a table"),
        ({"kind": "learned", "table_size": 16}, "longer than the position table"),
    ],
)
def test_positions_and_table_agree(positions: dict[str, Any], rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        model_from_mapping({**DOCUMENT, "positions": positions}, name="mine")


def test_a_layer_does_something() -> None:
    layers = [{"count": 1, "layer": {"attention": None, "feed_forward": None}}]
    with pytest.raises(SpecError, match="an attention, a feed_forward or both"):
        model_from_mapping({**DOCUMENT, "layers": layers}, name="mine")
