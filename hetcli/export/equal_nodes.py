"""What frameworks with one number of devices for all nodes leave idle of unlike nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hetcli.perf.hardware import Hardware

__all__ = ["EqualNodes", "equal_nodes"]


@dataclass(frozen=True, slots=True)
class EqualNodes:
    """So many devices on each of so many nodes; `idle` names the devices left over by node."""

    devices_per_node: int
    nodes: int
    idle: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        left = ", ".join(f"{number} of {node}" for node, number in self.idle)
        return f"{self.nodes} x {self.devices_per_node} devices ({left or 'none'} idle)"


def equal_nodes(hardware: Hardware) -> Iterator[EqualNodes]:
    """The ways to use nodes of unlike size equally, one for each size, the fewest idle first."""
    sizes = {node.name: len(node.device_ids) for node in hardware.nodes}
    offers = [
        EqualNodes(
            devices_per_node=size,
            nodes=sum(each >= size for each in sizes.values()),
            idle=tuple(
                (node, each - size if each >= size else each)
                for node, each in sizes.items()
                if each != size
            ),
        )
        for size in sorted(set(sizes.values()))
    ]
    yield from sorted(offers, key=lambda offer: sum(number for _, number in offer.idle))
