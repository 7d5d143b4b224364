"""Ranks and hosts: which process of which node is which member of the plan.

A launcher numbers processes node by node, and a framework gives the numbers a meaning by one of its
rank orders. Both can be had only when every node's devices are a contiguous block of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from hetcli.spec.plan import Plan, PlanDevice

__all__ = [
    "DEFAULT_ORDER",
    "REPLICA_ORDER",
    "Host",
    "Placement",
    "RankOrder",
    "place",
    "placed",
    "spread_group",
]

# Megatron-LM's two rank orders (`--use-tp-pp-dp-mapping` selects the second), fastest axis first;
# and ranks that count node by node, whatever they are in the plan.
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "node"]
DEFAULT_ORDER: Final[RankOrder] = "tp-cp-ep-dp-pp"
REPLICA_ORDER: Final[RankOrder] = "tp-cp-ep-pp-dp"


@dataclass(frozen=True, slots=True)
class Host:
    """One node as a launcher sees it; `devices` are local indices in rank order."""

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
    def world(self) -> int:
        """Processes in all."""
        return len(self.devices)

    def host_of(self, rank: int) -> Host:
        """The host that runs a global rank."""
        return next(host for host in self.hosts if rank in host.ranks)


def place(plan: Plan, orders: Sequence[RankOrder]) -> Placement | None:
    """The first of `orders` in which every node holds a contiguous block of ranks; None if none."""
    for order in orders:
        placement = placed(_RANKS[order](plan), order)
        if placement is not None:
            return placement
    return None


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
