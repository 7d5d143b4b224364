from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetcli.catalog.presets import find_preset
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.huggingface import model_from_config

CONFIGS = Path(__file__).parent / "configs"


@pytest.fixture
def config() -> Callable[..., dict[str, Any]]:
    """A configuration in the format of a Hugging Face repository, some keys replaced."""

    def load(name: str, **changes: Any) -> dict[str, Any]:
        return {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes}

    return load


@pytest.fixture
def model(config: Callable[..., dict[str, Any]]) -> Callable[..., Model]:
    """The model of such a configuration (`config:llama`, or plain `llama`), or of a preset."""

    def read(name: str, **changes: Any) -> Model:
        if not name.startswith("config:") and not (CONFIGS / f"{name}.json").exists():
            return find_preset(name)
        name = name.removeprefix("config:")
        return model_from_config(config(name, **changes), name=name)

    return read
