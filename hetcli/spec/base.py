"""What every file format of hetcli shares: strict frozen records, versions, origins, quantities."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

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
]

SCHEMA_VERSION = 1


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


def _quantity(parse: object, kind: str, example: str) -> BeforeValidator:
    def read(value: object) -> object:
        if isinstance(value, str):
            return parse(value)  # type: ignore[operator]
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f"{value} has no unit; a {kind} is written like {example}")
        return value

    return BeforeValidator(read)


# Quantities of hand-written files. Numbers in machine-written files carry their unit in the key
# instead (`_bytes`, `_s`, `_bytes_per_s`) and are plain numbers.
ByteSize = Annotated[
    int,
    _quantity(units.parse_bytes, "size", "80GiB"),
    Field(gt=0, lt=2**63),
    PlainSerializer(units.format_bytes_exact, return_type=str),
]
Rate = Annotated[
    float,
    _quantity(units.parse_rate, "rate", "200Gbps or 25GB/s"),
    Field(gt=0),
    PlainSerializer(units.format_rate_exact, return_type=str),
]
Duration = Annotated[
    float,
    _quantity(units.parse_duration, "duration", "5us"),
    Field(ge=0),
    PlainSerializer(units.format_duration_exact, return_type=str),
]
Name = Annotated[str, Field(min_length=1, max_length=200)]
