"""Read a model from a parsed file: a Hugging Face configuration or hetcli's own list of layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hetcli.errors import ModelError
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.config import shown
from hetcli.spec.model.huggingface import is_huggingface_config, model_from_config

if TYPE_CHECKING:
    from hetcli.spec.complaint import Locator

__all__ = ["model_from_mapping"]

_MAX_ERRORS = 5


def model_from_mapping(
    data: object, *, name: str, source: str = "", locator: Locator | None = None
) -> Model:
    """The model of a parsed document; `name` is used where the document has none.

    Errors about a configuration name the line when there is a `locator`. Raises ModelError when
    the document is neither a configuration nor a valid list of layers.
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
        # The strict reading of JSON takes lists for tuples and nothing else for another type.
        return Model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        found = error.errors(include_url=False)
        lines = [
            f"{'.'.join(str(part) for part in item['loc']) or 'the model'}: {item['msg']}"
            for item in found[:_MAX_ERRORS]
        ]
        first = found[0]
        raise ModelError(
            f"{where}: {lines[0]} (found {shown(first['input'])})",
            why="; ".join(lines[1:]) or "the format of a model file is strict",
            fix="hetcli schema model prints the format",
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{where}: not a JSON document", why=shown(str(error)), fix="plain values only"
        ) from None
