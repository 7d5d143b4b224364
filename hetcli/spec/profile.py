"""profile.json: what one node showed when probed. Unknown is null, with a reason in `notes`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Document, Name, Record

__all__ = [
    "DeviceInventory",
    "Host",
    "LayerMeasurement",
    "LinkMeasurement",
    "MatmulMeasurement",
    "MemoryBandwidthMeasurement",
    "NicInventory",
    "Profile",
    "Spread",
]

Size = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


class Spread(Record):
    """A repeated measurement: its median, its 95th percentile, and how often it was taken."""

    median: NonNegative
    p95: NonNegative
    minimum: NonNegative
    repeats: Size


class DeviceInventory(Record):
    """One device as its driver describes it. `index` is its place in PCI bus order."""

    index: Count
    name: Name
    uuid: str | None
    pci_bus_id: str | None
    kind: Literal["gpu", "mig", "npu", "cpu"] = "gpu"
    compute_capability: str | None = None
    memory_total_bytes: Count | None
    memory_free_bytes: Count | None
    unified_memory: bool = False
    power_limit_w: NonNegative | None = None
    clock_sm_max_hz: NonNegative | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    pcie_generation_max: Count | None = None
    pcie_width_max: Count | None = None
    ecc: bool | None = None
    numa_node: Count | None = None
    display_active: bool | None = None
    usable: bool = True
    notes: tuple[str, ...] = ()


class NicInventory(Record):
    """One network interface that is up and is not loopback or a container bridge."""

    interface: Name
    kind: Literal["infiniband", "roce", "ethernet", "unknown"]
    rate_bytes_per_s: Positive | None
    numa_node: Count | None = None
    notes: tuple[str, ...] = ()


class Host(Record):
    """The machine around the devices, and the software that measured."""

    hostname: Name
    cores: Size
    memory_bytes: Size
    cpu: str
    cpu_vendor: str | None
    os: str
    python: str
    torch: str | None
    driver: str | None
    cuda: str | None
    nccl: str | None


class MatmulMeasurement(Record):
    """An (m, k) x (k, n) product on one device."""

    device: Count
    dtype: Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
    m: Size
    n: Size
    k: Size
    seconds: Spread
    flop_per_s: Positive


class MemoryBandwidthMeasurement(Record):
    """A device-to-device copy inside one device's memory: bytes read plus bytes written."""

    device: Count
    transferred_bytes: Size
    seconds: Spread
    bytes_per_s: Positive


class LayerMeasurement(Record):
    """One transformer layer, forward and backward."""

    device: Count
    model: Name
    dtype: Literal["fp32", "fp16", "bf16", "fp8"]
    hidden_size: Size
    heads: Size
    tensor_parallel: Size
    micro_batch_size: Size
    sequence: Size
    forward_s: Spread
    backward_s: Spread
    peak_memory_bytes: Count | None


class LinkMeasurement(Record):
    """One operation over a group of ranks. algbw = bytes/s; busbw as nccl-tests defines it."""

    operation: Literal[
        "send_recv", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"
    ]
    backend: Literal["nccl", "gloo"]
    scope: Literal["intra_node", "inter_node"]
    nodes: tuple[Name, ...]
    ranks: Size
    message_bytes: Size
    seconds: Spread
    algbw_bytes_per_s: Positive
    busbw_bytes_per_s: NonNegative
    verified: bool


class Profile(Document):
    """Everything measured on one node; parts that failed are absent and named in `notes`."""

    hetcli_version: str
    created: str
    complete: bool
    host: Host
    devices: tuple[DeviceInventory, ...]
    nics: tuple[NicInventory, ...] = ()
    matmul: tuple[MatmulMeasurement, ...] = ()
    memory_bandwidth: tuple[MemoryBandwidthMeasurement, ...] = ()
    layers: tuple[LayerMeasurement, ...] = ()
    links: tuple[LinkMeasurement, ...] = ()
    notes: tuple[str, ...] = ()
