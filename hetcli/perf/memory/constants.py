"""Numbers of frameworks, libraries and drivers that no formula gives: constants.yaml, loaded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter

from hetcli.spec.base import Name, Origin, Record

__all__ = ["Constant", "constant", "load_constants"]

Number = Annotated[float, Field(ge=0)]


class Constant(Record):
    """One number, or one for each GPU architecture, with where it comes from."""

    value: Number | dict[Name, Number]
    origin: Origin
    source: Annotated[str, Field(min_length=1)]

    def of(self, architecture: str = "default") -> float:
        """The number for a GPU architecture of the catalogue."""
        if isinstance(self.value, dict):
            return self.value.get(architecture, self.value["default"])
        return self.value


@cache
def load_constants() -> Mapping[str, Constant]:
    """All constants of the memory model by name."""
    text = resources.files("hetcli.perf.memory").joinpath("constants.yaml").read_text("utf-8")
    return TypeAdapter(dict[str, Constant]).validate_python(yaml.safe_load(text), strict=False)


def constant(name: str, architecture: str = "default") -> float:
    """The value of one constant for a GPU architecture."""
    return load_constants()[name].of(architecture)
