"""hardware.json: the rate and link curves that `hetcli fit` derives, with their origins."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetcli.spec.base import Document, Name, Origin, Record

__all__ = ["ComputeRates", "CurvePoint", "HardwareFile", "LinkRates"]

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


class CurvePoint(Record):
    """What one message size reaches."""

    message_bytes: Positive
    bytes_per_s: Positive


class ComputeRates(Record):
    """How one device type computes: share of the dense peak, launch overhead, memory rate.

    `residual` is the mean absolute relative error of the fit; null when nothing was fitted.
    """

    gpu: Name
    dtype: Name
    efficiency: Positive
    half_flops: NonNegative
    launch_s: NonNegative
    memory_bytes_per_s: Positive
    origin: Origin
    rows: Annotated[int, Field(ge=0)]
    residual: NonNegative | None
    source: str


class LinkRates(Record):
    """How one link carries messages: latency and a curve of bandwidth over message size."""

    between: tuple[Name, Name]
    latency_s: NonNegative
    curve: tuple[CurvePoint, ...]
    origin: Origin
    rows: Annotated[int, Field(ge=0)]
    residual: NonNegative | None
    source: str


class HardwareFile(Document):
    """The fitted curves of one cluster."""

    name: Name
    hetcli_version: str
    compute: tuple[ComputeRates, ...] = ()
    links: tuple[LinkRates, ...] = ()
    notes: tuple[str, ...] = ()
