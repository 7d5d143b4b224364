"""What travels between the process that profiles and the processes that measure: lines of JSON.

A measuring process (a worker, holding torch) is told a job and answers with rows, then `done` or
`failed`. Over a network the same lines carry the number of the request they belong to. Only the
jobs of this module can be asked for; nothing that arrives is executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from hetcli.spec.base import Name, Record
from hetcli.spec.profile import (
    ComputeDtype,
    DeviceInventory,
    DeviceLink,
    Host,
    HostCopyMeasurement,
    LayerMeasurement,
    LinkMeasurement,
    LinkOperation,
    LinkScope,
    LoadObservation,
    MatmulMeasurement,
    Measurement,
    MemoryBandwidthMeasurement,
    NicDistance,
    NicInventory,
    OptimizerMeasurement,
)

__all__ = [
    "ROWS",
    "DescribeJob",
    "HostCopyJob",
    "Job",
    "LayerJob",
    "LinkJob",
    "MatmulJob",
    "MemoryJob",
    "NodeFacts",
    "OptimizerJob",
    "ProtocolError",
    "Reply",
    "Request",
    "StoreJob",
    "job_from_line",
    "reply_from_line",
    "request_from_line",
    "row",
]

Size = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]

# The lists of a profile and what each holds.
ROWS: Final[Mapping[str, type[Measurement]]] = {
    "matmul": MatmulMeasurement,
    "memory_bandwidth": MemoryBandwidthMeasurement,
    "host_copy": HostCopyMeasurement,
    "optimizer": OptimizerMeasurement,
    "layers": LayerMeasurement,
    "links": LinkMeasurement,
    "under_load": LoadObservation,
}


class ProtocolError(Exception):
    """A line that is no message of ours."""


class DescribeJob(Record):
    """Ask torch what it sees: versions, and the device's memory."""

    kind: Literal["describe"] = "describe"


class MatmulJob(Record):
    """Measure an (m, k) x (k, n) product."""

    kind: Literal["matmul"] = "matmul"
    dtype: ComputeDtype
    m: Size
    n: Size
    k: Size
    seconds: Seconds


class MemoryJob(Record):
    """Measure a copy inside the device's memory."""

    kind: Literal["memory"] = "memory"
    nbytes: Size
    seconds: Seconds


class HostCopyJob(Record):
    """Measure a copy between host and device."""

    kind: Literal["host_copy"] = "host_copy"
    direction: Literal["to_device", "to_host"]
    nbytes: Size
    seconds: Seconds


class OptimizerJob(Record):
    """Measure a step of Adam."""

    kind: Literal["optimizer"] = "optimizer"
    parameters: Size
    seconds: Seconds


class LayerJob(Record):
    """Measure one rank's share of a transformer layer."""

    kind: Literal["layer"] = "layer"
    model: Name
    dtype: Literal["fp32", "fp16", "bf16"]
    hidden_size: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    ffn_size: Size
    gated: bool
    tensor_parallel: Size
    micro_batch_size: Size
    sequence: Size
    seconds: Seconds


class StoreJob(Record):
    """Open the meeting point of a group; `facts` of the answer has its port."""

    kind: Literal["store"] = "store"
    key: Name
    scope: LinkScope


class LinkJob(Record):
    """Take part in a group as `rank`: rank 0 opened the store, the others look for it.

    `addresses` are those of rank 0's node, tried in order. Only rank 0 answers with rows.
    """

    kind: Literal["link"] = "link"
    key: Name
    operation: LinkOperation
    backend: Literal["gloo", "nccl"]
    scope: LinkScope
    nodes: tuple[Name, ...]
    devices: tuple[Count, ...]
    rank: Count
    ranks: Annotated[int, Field(ge=2)]
    addresses: tuple[Name, ...] = ()
    port: Count = 0
    sizes: tuple[Size, ...]
    seconds: Seconds
    limit_s: Seconds


Job = Annotated[
    DescribeJob
    | MatmulJob
    | MemoryJob
    | HostCopyJob
    | OptimizerJob
    | LayerJob
    | StoreJob
    | LinkJob,
    Field(discriminator="kind"),
]


class NodeFacts(Record):
    """What a node is before anything is measured. `ranks` processes can measure links at once."""

    host: Host
    devices: tuple[DeviceInventory, ...]
    nics: tuple[NicInventory, ...]
    device_links: tuple[DeviceLink, ...] = ()
    nic_distances: tuple[NicDistance, ...] = ()
    addresses: tuple[Name, ...] = ()
    backend: Literal["gloo", "nccl"]
    ranks: Count
    torch: bool
    notes: tuple[str, ...] = ()

    @property
    def measurable(self) -> bool:
        """Whether there are probes for these devices, and torch to run them."""
        return self.torch and all(device.vendor in {"nvidia", "cpu"} for device in self.devices)


class Request(Record):
    """One request to a node's agent: a job for a rank, or the node's facts.

    `cancel` stops the request of that number; `finished` says that nothing more will be asked.
    """

    id: Count
    what: Literal["job", "facts", "cancel", "finished"] = "job"
    job: Job | None = None
    rank: Count = 0
    limit_s: Seconds = 60.0


class Reply(Record):
    """One answer. `field` names the list of the profile that `record` belongs to."""

    id: Count = 0
    event: Literal["ready", "row", "done", "failed"]
    field: str | None = None
    record: dict[str, JsonValue] | None = None
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    why: str = ""

    def measurement(self) -> tuple[str, Measurement]:
        """The list of the profile and the row for it. Raises ProtocolError."""
        kind = ROWS.get(self.field or "")
        if kind is None or self.record is None or self.field is None:
            raise ProtocolError(f"a row for {self.field!r}, which no profile has")
        try:
            return self.field, kind.model_validate_json(json.dumps(self.record))
        except ValidationError as error:
            raise ProtocolError(f"a row that is no {kind.__name__}: {error}") from error


_JOB: Final[TypeAdapter[Job]] = TypeAdapter(Job)


def job_from_line(line: str | bytes) -> Job:
    """The job of a line. Raises ProtocolError."""
    try:
        return _JOB.validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"no job: {line[:200]!r}") from error


def request_from_line(line: str | bytes) -> Request:
    """The request of a line. Raises ProtocolError."""
    try:
        return Request.model_validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"no request: {line[:200]!r}") from error


def reply_from_line(line: str | bytes) -> Reply:
    """The reply of a line. Raises ProtocolError."""
    try:
        return Reply.model_validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"no reply: {line[:200]!r}") from error


def row(measurement: Measurement) -> Reply:
    """The reply that carries one row of a profile."""
    field = next(name for name, kind in ROWS.items() if type(measurement) is kind)
    return Reply(event="row", field=field, record=measurement.model_dump(mode="json"))
