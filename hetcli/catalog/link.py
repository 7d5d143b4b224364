"""One kind of link as the catalogue holds it: what a single pair of endpoints reaches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Name, Origin, Record

__all__ = ["LinkKind"]

Positive = Annotated[float, Field(gt=0)]


class LinkKind(Record):
    """A link: latency + bytes / (rate x efficiency), one direction.

    `shared` links (PCIe, a NIC) divide their rate among the devices that send at the same time;
    switched links (NVLink) give every device the whole rate.
    """

    name: Name
    aliases: tuple[Name, ...] = ()
    scope: Literal["device", "nic"]
    # Data-sheet rate of one device (or one NIC), one direction; null where the file names it.
    bytes_per_s: Positive | None
    # Share of the data-sheet rate that large messages reach, and the small-message latency.
    efficiency: Annotated[float, Field(gt=0, le=1)]
    latency_s: Annotated[float, Field(ge=0)]
    shared: bool
    origin: Origin = Origin.DATASHEET
    source: Annotated[str, Field(min_length=1)]
    notes: str = ""
