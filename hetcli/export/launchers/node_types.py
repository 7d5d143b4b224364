"""Nodes that follow each other in rank order and are started the same way."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from hetcli.export.placement import Host, Placement
from hetcli.export.planned import Planned

__all__ = ["NodeType", "node_types"]


@dataclass(frozen=True, slots=True)
class NodeType:
    """Consecutive hosts of one node group; `gpus` are the devices that each of them has."""

    number: int
    hosts: tuple[Host, ...]
    gpu: str
    gpus: int
    vendor: str

    @property
    def first_rank(self) -> int:
        """The node rank of the first host."""
        return self.hosts[0].rank


def node_types(planned: Planned, placement: Placement) -> tuple[NodeType, ...]:
    """The runs of hosts of one node group, in rank order."""
    runs = groupby(placement.hosts, key=lambda host: planned.groups[host.name].name)
    types = []
    for number, (_, run) in enumerate(runs):
        hosts = tuple(run)
        gpu = planned.gpus_of(hosts[0])[0]
        gpus = planned.groups[hosts[0].name].gpus
        types.append(NodeType(number, hosts, gpu.name, gpus, gpu.vendor))
    return tuple(types)
