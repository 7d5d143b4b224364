"""Seconds that one replica of a stage spends on a micro-batch, by cause.

Devices are looked at by class: replicas of the same device type whose groups cross the same links
cost the same and are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hetcli.perf.communication import (
    ELEMENT_BYTES,
    Group,
    LayerCommunication,
    layer_communication,
)
from hetcli.perf.compute import LayerTime, embedding_time, head_time, layer_time, shape_of
from hetcli.perf.compute.rates import framework_of
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Recompute,
    Replica,
    ScheduleName,
    Shape,
    Stage,
)
from hetcli.perf.hardware import DeviceType, Hardware, LinkCurve, Node
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import Layer, Model

__all__ = [
    "Costs",
    "Pass",
    "ReplicaTime",
    "boundary_bytes",
    "device_group",
    "end_chunks",
    "layer_runs",
    "replica_time",
]


Granularity = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Seconds of one forward or backward pass of a chunk, by cause."""

    compute: float = 0.0
    tensor_parallel: float = 0.0
    context_parallel: float = 0.0
    expert_parallel: float = 0.0
    # Receiving what the pass needs, where the framework computes nothing meanwhile.
    receive: float = 0.0

    @property
    def total(self) -> float:
        """Seconds in all."""
        return (
            self.compute
            + self.tensor_parallel
            + self.context_parallel
            + self.expert_parallel
            + self.receive
        )

    def __add__(self, other: Pass) -> Pass:
        return Pass(
            self.compute + other.compute,
            self.tensor_parallel + other.tensor_parallel,
            self.context_parallel + other.context_parallel,
            self.expert_parallel + other.expert_parallel,
            self.receive + other.receive,
        )

    def __mul__(self, factor: float) -> Pass:
        return Pass(
            self.compute * factor,
            self.tensor_parallel * factor,
            self.context_parallel * factor,
            self.expert_parallel * factor,
            self.receive * factor,
        )


@dataclass(frozen=True, slots=True)
class ReplicaTime:
    """One micro-batch on one replica: a pass for each chunk, in model order."""

    forward: tuple[Pass, ...]
    backward: tuple[Pass, ...]
    origin: Origin
    # Seconds of `backward` that the weights' gradients take, for schedules that do them later.
    weight_s: tuple[float, ...] = ()
    # Seconds of the optimizer on the whole stage, where a layer table has them.
    update_s: float | None = None


def layer_runs(model: Model, layers: LayerRange) -> list[tuple[Layer, int]]:
    """The layers of a range as runs of equal layers."""
    found = []
    start = 0
    for run in model.layers:
        overlap = min(start + run.count, layers.stop) - max(start, layers.first)
        if overlap > 0:
            found.append((run.layer, overlap))
        start += run.count
    return found


def boundary_bytes(model: Model, shape: Shape) -> float:
    """Bytes of activations that one rank passes on to the next stage."""
    tokens = shape.micro_batch_size * shape.sequence / shape.context_parallel
    share = shape.tensor_parallel if shape.sequence_parallel else 1
    return tokens * model.hidden_size * ELEMENT_BYTES[shape.precision] / share


def device_group(hardware: Hardware, devices: Sequence[DeviceId], sisters: int) -> Group:
    """The ring over `devices` in their order, while each node runs `sisters` such rings.

    A ring that owns more of a node's ranks also uses more of its NICs; one rank uses one NIC.
    """
    nodes = [hardware.node_of(devices[0])]
    for device in devices[1:]:
        if device.node != nodes[-1].name:
            nodes.append(hardware.node_of(device))
    per_node = max(1, round(len(devices) / len(nodes)))
    # A closed ring also has an edge from the last node to the first.
    edges = [(a, b) for a, b in zip(nodes, [*nodes[1:], nodes[0]], strict=True) if a is not b]
    inter = _slowest(hardware, edges)
    intra = min((node.intra for node in nodes), key=lambda link: link.bytes_per_s)
    nics = min(node.nic_count for node in nodes)
    senders = max(float(sisters), nics / per_node) if inter is not None else float(sisters)
    return Group(len(devices), per_node, intra, inter, senders)


def _slowest(hardware: Hardware, edges: Sequence[tuple[Node, Node]]) -> LinkCurve | None:
    links = [hardware.between(a, b) for a, b in edges]
    return min(links, key=lambda link: link.bytes_per_s, default=None)


@dataclass(eq=False)
class Costs:
    """Layer times and communication of one model, each distinct one computed once."""

    model: Model
    _layers: dict[tuple[int, Shape, DeviceType], LayerTime] = field(default_factory=dict)
    _ends: dict[tuple[str, Shape, DeviceType], LayerTime] = field(default_factory=dict)
    _groups: dict[tuple[object, ...], LayerCommunication] = field(default_factory=dict)

    def layer(self, layer: Layer, shape: Shape, device_type: DeviceType) -> LayerTime:
        """`layer_time`, remembered."""
        key = (id(layer), shape, device_type)
        if key not in self._layers:
            self._layers[key] = layer_time(layer, self.model, shape, device_type)
        return self._layers[key]

    def embedding(self, shape: Shape, device_type: DeviceType) -> LayerTime:
        """`embedding_time`, remembered."""
        key = ("embedding", shape, device_type)
        if key not in self._ends:
            self._ends[key] = embedding_time(self.model, shape, device_type)
        return self._ends[key]

    def head(self, shape: Shape, device_type: DeviceType) -> LayerTime:
        """`head_time`, remembered."""
        key = ("head", shape, device_type)
        if key not in self._ends:
            self._ends[key] = head_time(self.model, shape, device_type)
        return self._ends[key]

    def communication(
        self,
        layer: Layer,
        shape: Shape,
        tensor: Group | None,
        context: Group | None,
        expert: Group | None,
    ) -> LayerCommunication:
        """`layer_communication`, remembered."""
        key = (id(layer), shape, tensor, context, expert)
        if key not in self._groups:
            self._groups[key] = layer_communication(
                layer, self.model, shape, tensor, context, expert
            )
        return self._groups[key]


@dataclass(frozen=True, slots=True)
class _Groups:
    tensor: Group | None
    context: Group | None
    expert: Group | None


def _groups(
    configuration: Configuration, stage: Stage, replica: Replica, hardware: Hardware
) -> _Groups:
    tp, cp = stage.tensor_parallel, configuration.context_parallel
    devices = replica.devices
    per_node = len(hardware.node_of(devices[0]).devices)

    def sisters(ranks_in_node: int) -> int:
        return max(1, per_node // max(ranks_in_node, 1))

    tensor = device_group(hardware, devices[:tp], sisters(tp)) if tp > 1 else None
    context = device_group(hardware, devices[::tp], sisters(cp)) if cp > 1 else None
    expert = None
    ep = configuration.expert_parallel
    if ep > 1:
        etp = configuration.expert_tensor_parallel
        block = [each for member in stage.replicas for each in member.devices]
        first = block.index(devices[0])
        start = first - first % (ep * etp)
        members = block[start : start + ep * etp : etp] or block[: ep * etp : etp]
        expert = device_group(hardware, members, sisters(ep))
    return _Groups(tensor, context, expert)


def replica_time(
    configuration: Configuration,
    stage: Stage,
    replica: Replica,
    *,
    first: bool,
    last: bool,
    hardware: Hardware,
    costs: Costs,
) -> ReplicaTime:
    """Passes of one replica; the first stage embeds, the last one computes the loss."""
    device_type = max(
        {hardware.node_of(device).device_type for device in replica.devices},
        key=lambda kind: kind.slowdown,
    )
    shape = replace(
        shape_of(configuration, stage, device_type), micro_batch_size=replica.micro_batch_size
    )
    groups = _groups(configuration, stage, replica, hardware)
    forward, backward, weights = [], [], []
    updates: list[float | None] = []
    origin = Origin.MEASURED
    cost = framework_of(device_type, configuration.framework, configuration.framework_release)
    visible = cost.tensor_exposed.value if configuration.overlap_tensor_parallel else 1.0
    embedding, head = end_chunks(configuration.schedule, len(stage.chunks), first=first, last=last)
    for index, chunk in enumerate(stage.chunks):
        ahead, back, weight = Pass(), Pass(), 0.0
        for layer, count, recompute in _recomputed(costs.model, chunk, stage.recompute):
            own = replace(shape, recompute=recompute)
            time = costs.layer(layer, own, device_type)
            wire = costs.communication(layer, own, groups.tensor, groups.context, groups.expert)
            origin = origin.weakest(time.origin)
            ahead += _forward(time, wire, visible, cost.routed.value) * count
            back += _backward(time, wire, visible, cost.routed.value) * count
            weight += time.weight_s * count
            updates += [time.update_s] * count
        ends = []
        if index == embedding:
            ends.append(costs.embedding(shape, device_type))
        if index == head:
            ends.append(costs.head(shape, device_type))
        for end in ends:
            ahead += Pass(compute=end.forward_s)
            back += Pass(compute=end.backward_s)
            weight += end.weight_s
            updates.append(end.update_s)
        forward.append(ahead)
        backward.append(back)
        weights.append(weight)
    update = None if None in updates else sum(each or 0.0 for each in updates)
    return ReplicaTime(tuple(forward), tuple(backward), origin, tuple(weights), update)


def end_chunks(
    schedule: ScheduleName, chunks: int, *, first: bool, last: bool
) -> tuple[int | None, int | None]:
    """Which chunk of a stage holds the embedding and which the head, None where it is elsewhere.

    V-shaped schedules come back to the first stage (arXiv 2401.10241, section 6), waves end where
    their number of chunks leads, bidirectional ones have both ends on both outer stages.
    """
    final = chunks - 1
    if schedule == "bidirectional":
        half = chunks // 2
        if first:
            return 0, final
        return (half, half - 1) if last else (None, None)
    returns = schedule == "zb-v" or (schedule == "wave" and chunks % 2 == 0)
    holds_head = first if returns else last
    return (0 if first else None), (final if holds_head else None)


def _forward(time: LayerTime, wire: LayerCommunication, visible: float, routed: float) -> Pass:
    """Context-parallel transfers hide behind the attention core that they feed."""
    return Pass(
        time.forward_s,
        0.0 if time.includes_tensor_parallel else wire.tensor_forward_s * visible,
        max(0.0, wire.context_forward_s - time.core_forward_s),
        wire.expert_forward_s * routed,
    )


def _backward(time: LayerTime, wire: LayerCommunication, visible: float, routed: float) -> Pass:
    return Pass(
        time.backward_s,
        0.0 if time.includes_tensor_parallel else wire.tensor_backward_s * visible,
        max(0.0, wire.context_backward_s - time.core_backward_s),
        wire.expert_backward_s * routed,
    )


def _recomputed(
    model: Model, chunk: LayerRange, recompute: Recompute
) -> list[tuple[Layer, int, Granularity]]:
    """Runs of layers with what each recomputes: `full` may cover the chunk's first layers only."""
    if recompute.granularity != "full" or recompute.layers is None:
        return [(layer, count, recompute.granularity) for layer, count in layer_runs(model, chunk)]
    covered = min(recompute.layers, chunk.count)
    whole = LayerRange(chunk.first, covered)
    rest = LayerRange(chunk.first + covered, chunk.count - covered)
    return [
        *((layer, count, "full") for layer, count in layer_runs(model, whole)),
        *((layer, count, "none") for layer, count in layer_runs(model, rest)),
    ]
