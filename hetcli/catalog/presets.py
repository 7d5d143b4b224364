"""Models by name: the configurations in `models/`, each in Hugging Face's format with its source.

Only the file that is asked for is read, so that a start stays fast.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from hetcli.errors import UnknownNameError
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.config import shown
from hetcli.spec.model.huggingface import model_from_config

__all__ = ["find_preset", "preset_names"]

_SUFFIX: Final = ".json"
# The largest Llama 3 came with release 3.1.
_ALIASES: Final = {"llama-3-405b": "llama-3.1-405b"}


@cache
def _paths() -> dict[str, Traversable]:
    folder = files("hetcli.catalog") / "models"
    found = {
        entry.name.removesuffix(_SUFFIX): entry
        for entry in folder.iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    return dict(sorted(found.items()))


def preset_names() -> list[str]:
    """The names of all presets, sorted."""
    return list(_paths())


@cache
def find_preset(name: str) -> Model:
    """The preset of that name, in any case; `source` of the model is where its numbers are from.

    Raises UnknownNameError with the nearest names.
    """
    asked = name.casefold()
    path = _paths().get(_ALIASES.get(asked, asked))
    if path is None:
        nearest = get_close_matches(asked, [*_paths(), *_ALIASES], n=3, cutoff=0.5)
        raise UnknownNameError(
            f"model {shown(name)}",
            why="it is neither a file nor a preset",
            fix=f"did you mean {' or '.join(nearest)}?"
            if nearest
            else f"presets: {', '.join(_paths())}",
        )
    config = json.loads(path.read_text(encoding="utf-8"))
    source = config.pop("_source")
    return model_from_config(config, name=path.name.removesuffix(_SUFFIX), source=source)
