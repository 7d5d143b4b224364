from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from hetcli.catalog import presets
from hetcli.catalog.presets import find_preset, preset_names
from hetcli.errors import UnknownNameError


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_read_and_names_its_source(name: str) -> None:
    model = find_preset(name)
    assert model.name == name
    assert model.source.startswith("https://")
    assert model.notes == ()


@pytest.mark.parametrize("name", preset_names())
def test_preset_files_are_configurations_with_a_source_and_lower_case_names(name: str) -> None:
    path = files("hetcli.catalog") / "models" / f"{name}.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    assert next(iter(config)) == "_source"
    assert "model_type" in config
    assert name == name.casefold()


def test_names_are_sorted_and_include_the_popular_models() -> None:
    names = preset_names()
    assert names == sorted(names)
    popular = {"gpt2", "llama-3-8b", "qwen2.5-7b", "mixtral-8x7b", "deepseek-v3", "glm-4.5-air"}
    assert popular <= set(names)


@pytest.mark.parametrize("name", ["LLAMA-3-8B", "Llama-3-8b", "llama-3-8b"])
def test_case_does_not_matter(name: str) -> None:
    assert find_preset(name).name == "llama-3-8b"


def test_an_alias_finds_the_model_of_its_release() -> None:
    assert find_preset("llama-3-405b").name == "llama-3.1-405b"


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_preset("lama3-8b")
    assert "llama-3-8b" in caught.value.fix


@pytest.mark.parametrize(
    "name", ["", "../presets", "gpt2.json", "models/gpt2", "\x1b[2J\n", "é" * 999]
)
def test_a_hostile_name_reaches_no_file(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_preset(name)
    assert caught.value.what.isprintable()
    assert len(caught.value.what) < 100


def test_only_the_preset_that_is_asked_for_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, broken = tmp_path / "good.json", tmp_path / "broken.json"
    good.write_text((files("hetcli.catalog") / "models" / "gpt2.json").read_text())
    broken.write_text("{")
    monkeypatch.setattr(presets, "_paths", lambda: {"good": good, "broken": broken})
    assert find_preset.__wrapped__("good").name == "good"
