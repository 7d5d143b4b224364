"""hardware.json: what `hetcli fit` derives from profiles: rates and link curves with residuals.

Everything is absolute (FLOP/s, bytes/s, seconds), so that it holds whatever a data sheet says;
`versus_*` tells how far it is from what hetcli would assume without measuring. A residual is the
median absolute relative error on the rows that were fitted; null where nothing was fitted.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetcli.spec.base import Document, Name, Origin, Record
from hetcli.spec.profile import ComputeDtype, LinkOperation

__all__ = [
    "ComputeRates",
    "CurvePoint",
    "GroupRates",
    "HardwareFile",
    "LayerTimes",
    "LinkRates",
    "MemoryRates",
]

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Size = Annotated[int, Field(gt=0)]
Rows = Annotated[int, Field(ge=0)]


class CurvePoint(Record):
    """What one message size reaches, latency apart."""

    message_bytes: Positive
    bytes_per_s: Positive


class ComputeRates(Record):
    """How one device type multiplies matrices in one dtype.

    Seconds of (m x k) by (k x n): 2mnk/flop_per_s + left_s mk + right_s kn + output_s mn +
    launch_s; the middle terms are seconds an element of each operand that arithmetic does not hide.
    `versus_shipped` is measured over shipped seconds, the median over the rows (1.2: a fifth
    slower); null for a device that the catalogue does not hold.
    """

    device: Name
    dtype: ComputeDtype
    flop_per_s: Positive
    left_s: NonNegative
    right_s: NonNegative
    output_s: NonNegative
    launch_s: NonNegative
    origin: Origin
    rows: Rows
    residual: NonNegative | None
    versus_shipped: Positive | None
    source: str


class MemoryRates(Record):
    """What one device type's memory carries, reads and writes together.

    `versus_datasheet` is the share of the data sheet's rate.
    """

    device: Name
    bytes_per_s: Positive
    origin: Origin
    rows: Rows
    versus_datasheet: Positive | None
    source: str


class LayerTimes(Record):
    """Measured seconds of one transformer layer on one device type: medians over devices."""

    device: Name
    model: Name
    dtype: ComputeDtype
    tensor_parallel: Size
    micro_batch_size: Size
    sequence: Size
    forward_s: Positive
    backward_s: Positive
    peak_memory_bytes: Annotated[int, Field(ge=0)] | None
    rows: Rows
    source: str


class LinkRates(Record):
    """How the link between two nodes (or inside one: equal names) carries messages.

    One message takes latency_s + bytes / bytes_per_s, or bytes / the `curve` at that size.
    `bytes_per_s` is what all ranks of a node reach together, in the slower direction;
    `flow_bytes_per_s` what one rank alone reaches. `versus_nominal` is the share of the NICs' rate.
    Messages of one size do not tell the latency: it is null then.
    """

    between: tuple[Name, Name]
    latency_s: NonNegative | None
    bytes_per_s: Positive
    flow_bytes_per_s: Positive | None = None
    curve: tuple[CurvePoint, ...] = ()
    origin: Origin
    rows: Rows
    residual: NonNegative | None
    versus_nominal: Positive | None = None
    source: str


class GroupRates(Record):
    """What a collective over several nodes reaches at its largest message: bus bandwidth.

    `versus_slowest_pair` is its share of the slowest pair of its nodes.
    """

    operation: LinkOperation
    nodes: tuple[Name, ...]
    ranks: Size
    message_bytes: Size
    bus_bytes_per_s: NonNegative
    versus_slowest_pair: Positive | None


class HardwareFile(Document):
    """The fitted curves of one cluster."""

    name: Name
    hetcli_version: str
    compute: tuple[ComputeRates, ...] = ()
    memory: tuple[MemoryRates, ...] = ()
    layers: tuple[LayerTimes, ...] = ()
    links: tuple[LinkRates, ...] = ()
    groups: tuple[GroupRates, ...] = ()
    notes: tuple[str, ...] = ()
