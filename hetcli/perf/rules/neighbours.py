"""Which nodes can be in one job: what NICs and vendors allow."""

from __future__ import annotations

from collections.abc import Sequence

from hetcli.errors import ConfigurationError
from hetcli.perf.hardware import Hardware, Node

__all__ = ["can_talk", "check_neighbours"]


def can_talk(hardware: Hardware, one: Node, other: Node) -> bool:
    """Whether two nodes can be in one job.

    Devices of two vendors need a collective library that knows both; NICs of two kinds need a link
    that the cluster file names, since InfiniBand does not reach RoCE by itself.
    """
    return _why_not(hardware, one, other) is None


def check_neighbours(hardware: Hardware, nodes: Sequence[Node]) -> None:
    """Check that all nodes can be in one job.

    Raises:
        ConfigurationError: naming two that cannot.
    """
    kinds = {(node.vendor, node.nic_kind, node.group, node.fabric): node for node in nodes}
    found = list(kinds.values())
    for index, one in enumerate(found):
        for other in found[index + 1 :]:
            reason = _why_not(hardware, one, other)
            if reason is not None:
                why, fix = reason
                raise ConfigurationError(
                    f"{one.name} and {other.name} cannot be in one job", why=why, fix=fix
                )


def _why_not(hardware: Hardware, one: Node, other: Node) -> tuple[str, str] | None:
    """The rule that two nodes break, and what would help."""
    if one.vendor != other.vendor and hardware.cross_vendor is None:
        return (
            f"their devices are {one.vendor} and {other.vendor}, whose collective libraries do not "
            "talk to each other",
            "name a cross_vendor_backend in the cluster file, or plan for one vendor",
        )
    if one.nic_kind != other.nic_kind and hardware.declared(one, other) is None:
        return (
            f"their NICs are {one.nic_kind} and {other.nic_kind}, and no link joins them",
            "write a link between them in the cluster file, with the rate of the network that "
            "both are on",
        )
    return None
