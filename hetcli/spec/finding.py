"""What profiles show to be wrong, or different from what it should be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Name, Record, Text

__all__ = ["Finding", "FindingKind"]

FindingKind = Literal[
    "slow device",
    "slow memory",
    "slow host link",
    "slow node link",
    "slow pair",
    "above peak",
    "below nominal",
    "downtrained",
    "left out",
    "mixed",
    "unlike directions",
    "wrong values",
]


class Finding(Record):
    """One thing to look at: where, by which factor (2: twice as slow), and the likely cause."""

    kind: FindingKind
    nodes: Annotated[tuple[Name, ...], Field(min_length=1)]
    devices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    factor: Annotated[float, Field(gt=0)] | None = None
    what: Text
    cause: Text = ""

    def __str__(self) -> str:
        where = ", ".join(self.nodes)
        if self.devices:
            where += f" device {', '.join(map(str, self.devices))}"
        return f"{where}: {self.what}" + (f" ({self.cause})" if self.cause else "")
