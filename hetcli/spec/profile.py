"""profile.json: what one node showed when probed. Unknown is null, with a reason in `notes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Document, Name, Record, Text

__all__ = [
    "ComputeDtype",
    "DeviceInventory",
    "DeviceLink",
    "Host",
    "HostCopyMeasurement",
    "LayerMeasurement",
    "LinkMeasurement",
    "LinkOperation",
    "LinkScope",
    "LoadObservation",
    "MatmulMeasurement",
    "Measurement",
    "MemoryBandwidthMeasurement",
    "Missing",
    "NicDistance",
    "NicInventory",
    "OptimizerMeasurement",
    "PathKind",
    "Profile",
    "Spread",
]

Size = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
ComputeDtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
LinkOperation = Literal[
    "send_recv", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"
]
LinkScope = Literal["intra_node", "inter_node"]
# The words of `nvidia-smi topo -m`, nearest first.
PathKind = Literal["same", "nvlink", "pix", "pxb", "phb", "node", "sys", "unknown"]


class Spread(Record):
    """A repeated measurement: its median, its 95th percentile, and how often it was taken.

    `outliers` of the repeats lie further from the median than five times the median deviation.
    """

    median: NonNegative
    p95: NonNegative
    minimum: NonNegative
    repeats: Size
    outliers: Count = 0


class DeviceInventory(Record):
    """One device as its driver describes it. `index` is its place in PCI bus order.

    `pcie_bytes_per_s` is the nominal rate of the slot that the card is in, one direction: what the
    link trains to under load, not the low rate of an idle card. `utilization` is a share.
    """

    index: Count
    name: Name
    uuid: str | None
    pci_bus_id: str | None
    kind: Literal["gpu", "mig", "npu", "cpu"] = "gpu"
    vendor: Literal["nvidia", "amd", "huawei", "cpu", "unknown"] = "unknown"
    compute_capability: str | None = None
    memory_total_bytes: Count | None
    memory_free_bytes: Count | None
    unified_memory: bool = False
    power_limit_w: NonNegative | None = None
    power_draw_w: NonNegative | None = None
    utilization: NonNegative | None = None
    clock_sm_max_hz: NonNegative | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    pcie_generation_max: Count | None = None
    pcie_width_max: Count | None = None
    pcie_bytes_per_s: Positive | None = None
    ecc: bool | None = None
    numa_node: Count | None = None
    display_active: bool | None = None
    usable: bool = True
    notes: tuple[str, ...] = ()


class NicInventory(Record):
    """One network interface that is up and is not loopback or a container bridge.

    `device` is the RDMA device behind it (mlx5_0), which NCCL_IB_HCA names.
    """

    interface: Name
    kind: Literal["infiniband", "roce", "ethernet", "unknown"]
    rate_bytes_per_s: Positive | None
    device: Name | None = None
    addresses: tuple[Name, ...] = ()
    numa_node: Count | None = None
    notes: tuple[str, ...] = ()


class DeviceLink(Record):
    """How two devices of the node reach each other, by their indices.

    `nvlinks` counts the direct (or switched) NVLinks of the pair and `bytes_per_s` is their nominal
    rate in one direction; null for a path over PCIe.
    """

    devices: tuple[Count, Count]
    path: PathKind
    nvlinks: Count | None = None
    bytes_per_s: Positive | None = None


class NicDistance(Record):
    """How far a network interface is from a device."""

    device: Count
    interface: Name
    path: PathKind


class Host(Record):
    """The machine around the devices, and the software that measured.

    `machine` is equal for two nodes that are containers or namespaces of one machine. `environment`
    holds the variables that steer CUDA and the collective libraries.
    """

    hostname: Name
    cores: Size | None
    memory_bytes: Size | None
    cpu: str | None
    cpu_vendor: str | None
    os: str | None
    python: str | None
    torch: str | None
    driver: str | None
    cuda: str | None
    nccl: str | None
    machine: str | None = None
    environment: Mapping[Name, Text] = Field(default_factory=dict)


class MatmulMeasurement(Record):
    """An (m, k) x (k, n) product on one device."""

    device: Count
    dtype: ComputeDtype
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


class HostCopyMeasurement(Record):
    """A copy between pinned host memory and the device's own."""

    device: Count
    direction: Literal["to_device", "to_host"]
    transferred_bytes: Size
    seconds: Spread
    bytes_per_s: Positive


class OptimizerMeasurement(Record):
    """One step of Adam over `parameters` fp32 parameters, gradients present."""

    device: Count
    optimizer: Literal["adam"]
    parameters: Size
    seconds: Spread


class LayerMeasurement(Record):
    """One transformer layer's share of a tensor parallel rank, forward and backward.

    `heads`, `kv_heads` and `ffn_size` are those of the whole layer. `attention` is the kernel that
    ran; `peak_memory_bytes` is what forward and backward took beyond what was there before.
    """

    device: Count
    model: Name
    dtype: Literal["fp32", "fp16", "bf16", "fp8"]
    hidden_size: Size
    heads: Size
    kv_heads: Size | None = None
    head_dim: Size | None = None
    ffn_size: Size | None = None
    gated: bool | None = None
    tensor_parallel: Size
    micro_batch_size: Size
    sequence: Size
    attention: Literal["flash", "efficient", "cudnn", "math", "unknown"] = "unknown"
    forward_s: Spread
    backward_s: Spread
    peak_memory_bytes: Count | None


class LinkMeasurement(Record):
    """One operation over a group of ranks. algbw = bytes/s; busbw as nccl-tests defines it.

    `message_bytes` is what one rank holds (all_gather, reduce_scatter: the whole buffer, as in
    nccl-tests). send_recv goes from the first half of the ranks to the second, each rank to its
    counterpart at the same time, and algbw is their sum; `nodes` are then sender and receiver.
    """

    operation: LinkOperation
    backend: Literal["nccl", "gloo", "unknown"]
    scope: LinkScope
    nodes: tuple[Name, ...]
    devices: tuple[Count, ...] = ()
    ranks: Size
    message_bytes: Size
    seconds: Spread
    algbw_bytes_per_s: Positive
    busbw_bytes_per_s: NonNegative
    verified: bool


class LoadObservation(Record):
    """What the driver said while the device worked: clocks, PCIe link and why it was held back."""

    device: Count
    during: Name
    clock_sm_hz: NonNegative | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    power_draw_w: NonNegative | None = None
    temperature_c: float | None = None
    throttling: tuple[Name, ...] = ()


class Missing(Record):
    """A step that gave no result, and why."""

    step: Name
    why: str
    nodes: tuple[Name, ...] = ()


Measurement = (
    MatmulMeasurement
    | MemoryBandwidthMeasurement
    | HostCopyMeasurement
    | OptimizerMeasurement
    | LayerMeasurement
    | LinkMeasurement
    | LoadObservation
)


class Profile(Document):
    """Everything measured on one node, or imported from another tool (`source`).

    `node` is what a cluster file calls the node; `host.hostname` is what the machine calls itself.
    `complete` says that every step that was asked for gave its result; `missing` names the others.
    """

    hetcli_version: str
    created: str
    source: str = "hetcli profile"
    complete: bool
    node: Name
    host: Host
    devices: tuple[DeviceInventory, ...]
    nics: tuple[NicInventory, ...] = ()
    device_links: tuple[DeviceLink, ...] = ()
    nic_distances: tuple[NicDistance, ...] = ()
    matmul: tuple[MatmulMeasurement, ...] = ()
    memory_bandwidth: tuple[MemoryBandwidthMeasurement, ...] = ()
    host_copy: tuple[HostCopyMeasurement, ...] = ()
    optimizer: tuple[OptimizerMeasurement, ...] = ()
    layers: tuple[LayerMeasurement, ...] = ()
    links: tuple[LinkMeasurement, ...] = ()
    under_load: tuple[LoadObservation, ...] = ()
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
