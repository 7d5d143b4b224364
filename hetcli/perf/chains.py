"""Which devices follow each other: the distinct pipelines of a configuration, each costed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hetcli.perf.communication import ELEMENT_BYTES, p2p_s
from hetcli.perf.configuration import Configuration, DeviceId, Pipeline, Replica, Stage
from hetcli.perf.hardware import Hardware, Node
from hetcli.perf.stage import Costs, Pass, ReplicaTime, replica_time
from hetcli.spec.model.architecture import Model

__all__ = ["Chain", "boundary_seconds", "chains", "edge_bytes"]

# An attention mask is cast to half before it is sent.
_MASK_BYTES = 2


@dataclass(frozen=True, slots=True)
class Chain:
    """One data-parallel member of a whole pipeline: its passes and transfers, stage by stage.

    `send_s[i]` is the seconds that stage i sends activations to stage i + 1 for each of the chain's
    `micro_batches`, `return_s[i]` those that stage i + 1 sends gradients back. `members` are those
    of the pipeline that are just like this one. `wrap_s` is the transfer from the last stage back
    to the first, which schedules with virtual stages need.
    """

    stages: tuple[ReplicaTime, ...]
    send_s: tuple[float, ...]
    return_s: tuple[float, ...]
    micro_batches: int
    members: tuple[int, ...]
    wrap_s: float = 0.0

    def forward(self, stage: int) -> Pass:
        """All chunks' forward passes of one micro-batch."""
        return sum(self.stages[stage].forward, Pass())

    def backward(self, stage: int) -> Pass:
        """All chunks' backward passes of one micro-batch."""
        return sum(self.stages[stage].backward, Pass())


def edge_bytes(configuration: Configuration, model: Model, stage: Stage, replica: Replica) -> float:
    """Bytes that all sending ranks of a replica together pass on for one micro-batch.

    With sequence parallelism each tensor rank sends its part; without, Megatron-LM sends the whole
    activation from every rank (`megatron/core/pipeline_parallel/p2p_communication.py`).
    """
    whole = configuration.framework == "megatron" and not configuration.sequence_parallel
    copies = stage.tensor_parallel if whole else 1
    elements = replica.micro_batch_size * configuration.sequence * model.hidden_size
    return float(elements * ELEMENT_BYTES[configuration.precision] * copies)


def sending_ranks(configuration: Configuration, stage: Stage, replica: Replica) -> int:
    """Ranks of a replica that send at a boundary: all, or one of each tensor-parallel group.

    DeepSpeed's engine splits an activation over the tensor ranks and gathers it on arrival
    (deepspeed/runtime/pipe/engine.py, `is_pipe_partitioned`).
    """
    ranks = len(replica.devices)
    if configuration.framework == "deepspeed" and not configuration.partitioned_boundaries:
        return ranks // stage.tensor_parallel
    return ranks


def chains(
    configuration: Configuration, pipeline: Pipeline, hardware: Hardware, costs: Costs
) -> list[Chain]:
    """The distinct chains of a pipeline.

    Member r of every stage works with member r of the next one. Where stages differ in their
    number of replicas, members are matched in proportion, and times are scaled so that all
    stages count in the micro-batches of the stage with the most.
    """
    stages = pipeline.stages
    last = len(stages) - 1
    width = max(len(stage.replicas) for stage in stages)
    wraps = configuration.schedule == "interleaved" and last > 0
    keys = [
        [_class_key(configuration, stage, at, hardware) for at in range(len(stage.replicas))]
        for stage in stages
    ]
    edge = _Edges(configuration, costs.model, hardware)
    mask = _MASK_BYTES * configuration.sequence**2 if configuration.sends_mask else 0
    times: dict[tuple[int, object], ReplicaTime] = {}
    members: dict[tuple[object, ...], list[int]] = {}
    distinct: dict[tuple[object, ...], Chain] = {}
    for member in range(width):
        at = [member * len(stage.replicas) // width for stage in stages]
        row = [stage.replicas[position] for stage, position in zip(stages, at, strict=True)]
        most = max(replica.micro_batches for replica in row)
        shares = [replica.micro_batches / most for replica in row]
        sends = tuple(
            edge.seconds(stages[index], row[index], row[index + 1], mask) * shares[index]
            for index in range(last)
        )
        # Where both ends work alike a gradient goes back as the activation came.
        returns = tuple(
            shares[index + 1]
            * (
                edge.seconds(stages[index], row[index], row[index + 1])
                if _alike(row[index], row[index + 1])
                else edge.seconds(stages[index + 1], row[index + 1], row[index])
            )
            for index in range(last)
        )
        wrap = edge.seconds(stages[last], row[last], row[0]) if wraps else 0.0
        key = (*(keys[index][position] for index, position in enumerate(at)), sends, returns, wrap)
        members.setdefault(key, []).append(member)
        if key in distinct:
            continue
        parts = []
        for index, (stage, replica) in enumerate(zip(stages, row, strict=True)):
            own = (index, keys[index][at[index]])
            if own not in times:
                times[own] = replica_time(
                    configuration,
                    stage,
                    replica,
                    first=index == 0,
                    last=index == last,
                    hardware=hardware,
                    costs=costs,
                )
            parts.append(_scaled(times[own], shares[index]))
        if configuration.framework == "deepspeed":
            parts = [
                _with_receive(part, before, after)
                for part, before, after in zip(parts, (0.0, *sends), (*returns, 0.0), strict=True)
            ]
        distinct[key] = Chain(tuple(parts), sends, returns, most, (), wrap)
    return [replace(chain, members=tuple(members[key])) for key, chain in distinct.items()]


def _alike(one: Replica, other: Replica) -> bool:
    """Whether both pass on as many micro-batches of the same size."""
    return (one.micro_batches, one.micro_batch_size) == (
        other.micro_batches,
        other.micro_batch_size,
    )


def boundary_seconds(configuration: Configuration, model: Model, hardware: Hardware) -> float:
    """Seconds of the first boundary of the first pipeline, one direction, first replica."""
    here, there = configuration.pipelines[0].stages[:2]
    edges = _Edges(configuration, model, hardware)
    return edges.seconds(here, here.replicas[0], there.replicas[0])


def _with_receive(time: ReplicaTime, before_s: float, after_s: float) -> ReplicaTime:
    """The passes with the messages that start them.

    DeepSpeed's engine sends and receives in the order of its instructions
    (deepspeed/runtime/pipe/schedule.py), each a rendezvous that holds both ends.
    """
    return replace(
        time,
        forward=tuple(each + Pass(receive=before_s) for each in time.forward),
        backward=tuple(each + Pass(receive=after_s) for each in time.backward),
    )


def _scaled(time: ReplicaTime, factor: float) -> ReplicaTime:
    if factor == 1:
        return time
    return replace(
        time,
        forward=tuple(each * factor for each in time.forward),
        backward=tuple(each * factor for each in time.backward),
        weight_s=tuple(each * factor for each in time.weight_s),
    )


def _runs(devices: Sequence[DeviceId]) -> Iterator[tuple[str, int]]:
    """Nodes of `devices` in order with how many of them each holds."""
    name, count = devices[0].node, 0
    for device in devices:
        if device.node != name:
            yield name, count
            name, count = device.node, 0
        count += 1
    yield name, count


def _class_key(
    configuration: Configuration, stage: Stage, position: int, hardware: Hardware
) -> tuple[object, ...]:
    """Equal for replicas that must cost the same: same kinds of node in the same pattern."""
    replica = stage.replicas[position]
    devices: Sequence[DeviceId] = replica.devices
    offset = 0
    block = configuration.expert_parallel * configuration.expert_tensor_parallel
    if block > len(devices):
        # The experts' group reaches over neighbouring replicas.
        reach = -(-block // len(devices))
        start = position - position % reach
        devices = [d for each in stage.replicas[start : start + reach] for d in each.devices]
        offset = position - start
    runs = list(_runs(devices))
    exact = len(runs) > 1 and bool(hardware.pair_links)
    return (
        replica.micro_batches,
        replica.micro_batch_size,
        offset if len(runs) > 1 else 0,
        *((name if exact else _node_key(hardware.by_name[name]), count) for name, count in runs),
    )


def _node_key(node: Node) -> tuple[object, ...]:
    return (
        id(node.device_type),
        id(node.intra),
        id(node.nic),
        node.nic_count,
        len(node.devices),
        node.group,
        node.fabric,
        node.zone,
        node.region,
    )


class _Edges:
    """Seconds of one boundary transfer between two replicas, all their ranks at once."""

    def __init__(self, configuration: Configuration, model: Model, hardware: Hardware) -> None:
        self._configuration = configuration
        self._model = model
        self._hardware = hardware
        self._senders: dict[int, dict[str, int]] = {}
        self._known: dict[tuple[object, ...], float] = {}

    def seconds(self, stage: Stage, here: Replica, there: Replica, mask_bytes: int = 0) -> float:
        """One activation, or its gradient, from `here` to `there`; every rank adds a mask."""
        source, target = here.devices[0].node, there.devices[0].node
        flows = sending_ranks(self._configuration, stage, here)
        senders = max(1, self._sending(stage)[source] * flows // len(here.devices))
        key = (source, target, flows, here.micro_batch_size, senders, mask_bytes)
        if key not in self._known:
            one, other = self._hardware.by_name[source], self._hardware.by_name[target]
            nbytes = edge_bytes(self._configuration, self._model, stage, here) / flows + mask_bytes
            sharing = 1 if one is other else max(senders, one.nic_count)
            self._known[key] = p2p_s(nbytes, self._hardware.between(one, other), sharing)
        return self._known[key]

    def _sending(self, stage: Stage) -> dict[str, int]:
        """How many ranks of the stage each node holds: they send at the same time."""
        if id(stage) not in self._senders:
            counts: dict[str, int] = {}
            for replica in stage.replicas:
                for device in replica.devices:
                    counts[device.node] = counts.get(device.node, 0) + 1
            self._senders[id(stage)] = counts
        return self._senders[id(stage)]
