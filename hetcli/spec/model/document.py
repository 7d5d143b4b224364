"""Read a model from a parsed file: a Hugging Face configuration or hetcli's own list of layers."""

from __future__ import annotations

from collections.abc import Mapping

from hetcli.errors import ModelError
from hetcli.spec.complaint import Locator
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.config import shown
from hetcli.spec.model.huggingface import is_huggingface_config, model_from_config
from hetcli.spec.source import validate

__all__ = ["model_from_mapping"]


def model_from_mapping(
    data: object, *, name: str, source: str = "", locator: Locator | None = None
) -> Model:
    """The model of a parsed document; `name` is used where the document has none.

    Errors name the line when there is a `locator`. Raises ModelError when the document is neither
    a configuration nor a list of layers or describes an impossible model, and SpecError when a
    list of layers does not follow its format.
    """
    where = source or name
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise ModelError(
            f"{where}: {shown(data)}",
            why="a model is a mapping of names to values",
            fix="a Hugging Face config.json, or a model file (hetcli schema model)",
        )
    if is_huggingface_config(data):
        return model_from_config(data, name=name, source=source, locator=locator)
    if "layers" not in data:
        raise ModelError(
            f"{where}: neither model_type, architectures nor layers is there",
            why="a Hugging Face configuration has model_type, a model file has layers",
            fix="add model_type, or describe the layers (hetcli schema model)",
        )
    document = {"name": name, "source": source, **data}
    try:
        return validate(document, locator or Locator(where, ""), Model)
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{where}: no plain document",
            why=shown(str(error)),
            fix="mappings, lists, texts, finite numbers, true, false and null",
        ) from None
