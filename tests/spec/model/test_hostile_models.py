"""Whatever a document holds, the answer is a Model or an error of three parts."""

from __future__ import annotations

import copy
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetcli.errors import UsageError
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.document import model_from_mapping
from hetcli.spec.model.parameters import active_parameters, total_parameters

CONFIGS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "configs").glob("*.json"))
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.integers(min_value=-1, max_value=300)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["full_attention", "yarn", "llama3", "$(reboot)", "<script>", "\x1b[2J"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)
# One thousand in all: what a user may get wrong in one file.
MUTATED = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def answer(document: object) -> Model | UsageError:
    try:
        model = model_from_mapping(document, name="hostile", source="config.json")
    except UsageError as error:
        refusal = error
    else:
        return readable(model)
    assert all((refusal.what, refusal.why, refusal.fix))
    assert len(str(refusal)) < 4000
    assert not any(unicodedata.category(letter) == "Cc" for letter in str(refusal))
    return refusal


def readable(model: Model) -> Model:
    assert 0 < active_parameters(model) <= total_parameters(model)
    assert Model.model_validate_json(model.model_dump_json()) == model
    hash(model)
    return model


@MUTATED
@given(st.data())
def test_a_mutated_configuration_is_read_or_refused(data: st.DataObject) -> None:
    document: dict[str, Any] = copy.deepcopy(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))])
    place = document
    if "text_config" in document and data.draw(st.booleans()):
        place = document["text_config"]
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(place)))
        if data.draw(st.booleans()):
            place[key] = data.draw(JSON)
        else:
            del place[key]
        if not place:
            break
    answer(document)


@MUTATED
@given(st.dictionaries(st.sampled_from(["model_type", "architectures", "layers", "x"]), JSON))
def test_any_document_is_read_or_refused(document: dict[str, Any]) -> None:
    answer(document)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_mutated_layer_list_is_read_or_refused(data: st.DataObject) -> None:
    model = answer(CONFIGS["deepseek_v2"])
    assert isinstance(model, Model)
    document = json.loads(model.model_dump_json())
    places: list[dict[str, Any]] = [
        document,
        document["norm"],
        document["positions"],
        document["layers"][1]["layer"],
        document["layers"][1]["layer"]["attention"],
        document["layers"][1]["layer"]["feed_forward"],
    ]
    place = data.draw(st.sampled_from(places))
    place[data.draw(st.sampled_from(sorted(place)) | st.text(max_size=5))] = data.draw(JSON)
    answer(document)


@pytest.mark.parametrize("document", [None, [], "llama", 3, {1: 2}, {}, {"layers": []}])
def test_no_model_at_all_is_refused(document: object) -> None:
    assert isinstance(answer(document), UsageError)


def test_a_cyclic_document_is_refused() -> None:
    cyclic: dict[str, Any] = {"layers": [], "norm": {}}
    cyclic["norm"]["itself"] = cyclic
    assert isinstance(answer(cyclic), UsageError)


def test_a_cyclic_configuration_is_refused() -> None:
    cyclic: dict[str, Any] = {"model_type": "gemma3"}
    cyclic["text_config"] = cyclic
    assert isinstance(answer(cyclic), UsageError)


def test_deep_nesting_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert isinstance(answer({"layers": deep}), UsageError)
    assert isinstance(answer({"model_type": deep}), UsageError)


def test_a_hundred_thousand_layers_are_read() -> None:
    model = answer({**CONFIGS["llama"], "num_hidden_layers": 100_000})
    assert isinstance(model, Model)
    assert model.layer_count == 100_000
