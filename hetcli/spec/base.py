"""What every file format of hetcli shares: strict frozen records, versions, origins, quantities."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from hetcli import units

__all__ = [
    "SCHEMA_VERSION",
    "ByteSize",
    "Document",
    "Duration",
    "Name",
    "Origin",
    "Rate",
    "Record",
    "Text",
    "broken_rule",
]

SCHEMA_VERSION: Final = 1


class Origin(StrEnum):
    """Where a number comes from; it travels with the number and is shown as its first letter."""

    MEASURED = "measured"
    FITTED = "fitted"
    DATASHEET = "datasheet"
    ASSUMED = "assumed"

    @property
    def letter(self) -> str:
        """One letter for tables: m, f, d or a."""
        return self.value[0]

    def weakest(self, *others: Origin) -> Origin:
        """The least certain of several origins: what a sum or a product of them deserves."""
        order = list(Origin)
        return max((self, *others), key=order.index)


class Record(BaseModel):
    """A frozen record that refuses keys it does not know and values of another type."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
        ser_json_inf_nan="null",
    )


class Document(Record):
    """A record that is a file of its own and therefore carries the version of its format."""

    schema_version: Literal[1] = SCHEMA_VERSION


def broken_rule(why: str, fix: str, *place: str | int) -> PydanticCustomError:
    """An error for a validator to raise about the value at `place` below the validated record.

    `hetcli.spec.complaint` turns it into a SpecError with the line of that place.
    """
    context = {"why": why, "fix": fix, "place": place}
    return PydanticCustomError("broken_rule", "{why}; {fix}", context)


_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("a name holds control or invisible characters; remove them")
    return value


def _readable(value: str) -> str:
    if _CONTROL.search(value):
        raise ValueError("the text holds control characters; only line breaks and tabs may stand")
    return value


# What is printed, quoted into scripts and used as a key: one line, nothing invisible.
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
# Free text of several lines that a terminal can show.
Text = Annotated[str, Field(max_length=100_000), AfterValidator(_readable)]


def _quantity(parse: Callable[[str], float], kind: str, example: str) -> BeforeValidator:
    def read(value: object) -> float:
        if not isinstance(value, str):
            shown = f"{value!r:.60}" if isinstance(value, int | float) else "this"
            # A ValueError, since pydantic lets a TypeError through.
            raise ValueError(f"{shown} is no {kind} with its unit; write it like {example}")  # noqa: TRY004
        return parse(value)

    return BeforeValidator(read)


def _quantity_schema(kind: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": kind, "examples": list(examples)})


# Quantities of hand-written files: text with a unit. Numbers in machine-written files carry their
# unit in the key instead (`_bytes`, `_s`, `_bytes_per_s`) and are plain numbers.
ByteSize = Annotated[
    int,
    _quantity(units.parse_bytes, "size", "80GiB"),
    Field(gt=0, lt=2**63),
    PlainSerializer(units.format_bytes_exact, return_type=str),
    _quantity_schema("a size", "80GiB", "80GB"),
]
Rate = Annotated[
    float,
    _quantity(units.parse_rate, "rate", "200Gbps or 25GB/s"),
    Field(gt=0),
    PlainSerializer(units.format_rate_exact, return_type=str),
    _quantity_schema("a rate", "200Gbps", "25GB/s"),
]
Duration = Annotated[
    float,
    _quantity(units.parse_duration, "duration", "5us"),
    Field(ge=0),
    PlainSerializer(units.format_duration_exact, return_type=str),
    _quantity_schema("a duration", "5us", "1.5ms"),
]
