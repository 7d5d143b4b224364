"""Ranks and hosts: which process of which node is which member of the plan.

A launcher numbers processes node by node, and a framework gives the numbers a meaning by one of its
rank orders. Both can be had only when every node's devices are a contiguous block of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal, TypeVar

from hetcli.spec.plan import Plan, PlanDevice, PredictedDevice

__all__ = [
    "DEFAULT_ORDER",
    "REPLICA_ORDER",
    "Host",
    "Placement",
    "RankOrder",
    "by_machine",
    "place",
    "placed",
    "spread_group",
]

# Megatron-LM's two rank orders (`--use-tp-pp-dp-mapping` selects the second), fastest axis first;
# and ranks that count node by node, whatever they are in the plan.
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "node"]
DEFAULT_ORDER: Final[RankOrder] = "tp-cp-ep-dp-pp"
REPLICA_ORDER: Final[RankOrder] = "tp-cp-ep-pp-dp"


_Device = TypeVar("_Device", PlanDevice, PredictedDevice)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine as a launcher sees it; `devices` are local indices in rank order."""

    rank: int
    name: str
    devices: tuple[int, ...]
    first_rank: int
    stages: tuple[int, ...]

    @property
    def processes(self) -> int:
        """Processes that the node runs, one a device."""
        return len(self.devices)

    @property
    def ranks(self) -> range:
        """The global ranks of the node."""
        return range(self.first_rank, self.first_rank + self.processes)


@dataclass(frozen=True)
class Placement:
    """All ranks of the job: `devices[rank]`, `stages[rank]`, and the hosts that hold them."""

    order: RankOrder
    devices: tuple[PlanDevice, ...]
    stages: tuple[int, ...]
    hosts: tuple[Host, ...]

    @property
    def splits_machines(self) -> bool:
        """Whether a machine is started several times, as unlike devices of it lie apart."""
        return len({host.name for host in self.hosts}) < len(self.hosts)

    @property
    def world(self) -> int:
        """Processes in all."""
        return len(self.devices)

    def host_of(self, rank: int) -> Host:
        """The host that runs a global rank."""
        return next(host for host in self.hosts if rank in host.ranks)


def place(plan: Plan, orders: Sequence[RankOrder]) -> Placement | None:
    """The first of `orders` in which every machine holds a contiguous block of ranks.

    Where none has that, the first in which every node does: unlike devices of one machine are then
    hosts of their own, to be started apart. None where a node's ranks do not follow either.
    """
    whole = by_machine(plan)
    for order in orders:
        placement = placed(_RANKS[order](whole), order)
        if placement is not None:
            return placement
    if whole is plan:
        return None
    for order in orders:
        placement = placed(_RANKS[order](plan), order)
        if placement is not None:
            return _on_machines(placement, _machines(plan))
    return None


def by_machine(plan: Plan) -> Plan:
    """The plan with its devices named by their machines, as launchers and scripts know them."""
    machines = _machines(plan)
    if not machines:
        return plan

    def moved(device: _Device) -> _Device:
        return device.model_copy(update={"node": machines.get(device.node, device.node)})

    stages = tuple(
        stage.model_copy(
            update={
                "devices": tuple(map(moved, stage.devices)),
                "replicas": tuple(
                    replica.model_copy(update={"devices": tuple(map(moved, replica.devices))})
                    for replica in stage.replicas
                ),
            }
        )
        for stage in plan.stages
    )
    devices = tuple(map(moved, plan.predicted.devices))
    predicted = plan.predicted.model_copy(update={"devices": devices})
    return plan.model_copy(update={"stages": stages, "predicted": predicted})


def _machines(plan: Plan) -> dict[str, str]:
    """The machine of every node that is not one by itself."""
    return {
        node: machine
        for group in plan.inputs.cluster.nodes
        if group.host is not None
        for node, machine in zip(group.node_names, group.machine_names, strict=True)
    }


def _on_machines(placement: Placement, machines: Mapping[str, str]) -> Placement:
    return replace(
        placement,
        devices=tuple(
            device.model_copy(update={"node": machines.get(device.node, device.node)})
            for device in placement.devices
        ),
        hosts=tuple(
            replace(host, name=machines.get(host.name, host.name)) for host in placement.hosts
        ),
    )


def spread_group(plan: Plan) -> tuple[str, ...]:
    """The nodes of the first tensor-parallel group that is on several; empty where none is.

    No framework checks it: every layer's activations then go over the network.
    """
    for stage in plan.stages:
        width = stage.tensor_parallel
        for replica in stage.replicas:
            for first in range(0, len(replica.devices), width):
                group = replica.devices[first : first + width]
                nodes = tuple(dict.fromkeys(device.node for device in group))
                if len(nodes) > 1:
                    return nodes
    return ()


def _stage_major(plan: Plan) -> list[tuple[int, PlanDevice]]:
    return [
        (index, device)
        for index, stage in enumerate(plan.stages)
        for replica in stage.replicas
        for device in replica.devices
    ]


def _replica_major(plan: Plan) -> list[tuple[int, PlanDevice]]:
    columns = zip(*(stage.replicas for stage in plan.stages), strict=True)
    return [
        (index, device)
        for column in columns
        for index, replica in enumerate(column)
        for device in replica.devices
    ]


_RANKS: Final[Mapping[RankOrder, Callable[[Plan], list[tuple[int, PlanDevice]]]]] = {
    DEFAULT_ORDER: _stage_major,
    REPLICA_ORDER: _replica_major,
}


def placed(ranks: Sequence[tuple[int, PlanDevice]], order: RankOrder) -> Placement | None:
    """The stage and device of every rank as hosts; None where a node's ranks do not follow."""
    hosts: list[Host] = []
    first = 0
    for name, block in groupby(ranks, key=lambda item: item[1].node):
        members = list(block)
        hosts.append(
            Host(
                rank=len(hosts),
                name=name,
                devices=tuple(device.index for _, device in members),
                first_rank=first,
                stages=tuple(dict.fromkeys(stage for stage, _ in members)),
            )
        )
        first += len(members)
    if len({host.name for host in hosts}) < len(hosts):
        return None
    return Placement(
        order=order,
        devices=tuple(device for _, device in ranks),
        stages=tuple(stage for stage, _ in ranks),
        hosts=tuple(hosts),
    )
