"""A cluster in one argument: `A100:8+V100:8`, or `H100:8x4` for four nodes of eight."""

from __future__ import annotations

import re
from typing import Final

from pydantic import ValidationError

from hetcli.errors import UsageError
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster, Nic, NodeGroup
from hetcli.spec.complaint import first_reason

__all__ = ["ASSUMED_NIC", "GPUS_PER_NODE", "is_quick_cluster", "parse_quick_cluster"]

# What is assumed where only GPUs are named. Eight is the node of every HGX and DGX board; 100 Gb/s
# Ethernet is a common interface, whose rate a plan must not be trusted with: hence `assumed`.
GPUS_PER_NODE: Final = 8
ASSUMED_NIC: Final = Nic.model_validate(
    {"kind": "ethernet", "rate": "100Gbps", "origin": Origin.ASSUMED}
)

_PART: Final = re.compile(
    r"\s*(?P<gpu>[^\s:+/\\][^:+/\\]*):\s*(?P<gpus>[0-9]{1,9})\s*(?:[x\u00d7]\s*(?P<nodes>[0-9]{1,9})\s*)?"
)
_LOOK: Final = re.compile(r"[^:+/\\]+:\s*[0-9].*")


def is_quick_cluster(argument: str) -> bool:
    """Whether the argument reads like `NAME:COUNT`, so that it is no path and no sample."""
    return _LOOK.fullmatch(argument) is not None


def parse_quick_cluster(argument: str) -> Cluster:
    """The cluster of `NAME:COUNT` parts joined by `+`.

    `A100:20` is as many nodes of eight as fit and one of the rest; `A100:8x4` four nodes of eight.
    The NIC of every node is assumed, and the description says so. Whether a GPU exists is left to
    the catalogue. Raises UsageError.
    """
    groups: list[NodeGroup] = []
    named: dict[str, int] = {}
    try:
        for part in argument.split("+"):
            gpu, shapes = _shapes(part, argument)
            host = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "node"
            for gpus, nodes in shapes:
                first = named.get(host, 0)
                named[host] = first + nodes
                numbers = f"[{first}-{first + nodes - 1}]" if nodes > 1 else str(first)
                groups.append(
                    NodeGroup(name=f"{host}-{numbers}", gpu=gpu, gpus=gpus, nics=(ASSUMED_NIC,))
                )
        return Cluster(name=argument.strip(), description=_ASSUMPTION, nodes=tuple(groups))
    except ValidationError as error:
        raise _wrong(argument, first_reason(error)) from None


_ASSUMPTION: Final = (
    f"Given as GPU counts. Assumed: nodes of up to {GPUS_PER_NODE} GPUs unless stated, and one "
    "100 Gb/s Ethernet interface a node. Write a cluster file to say what the network really is."
)


def _shapes(part: str, argument: str) -> tuple[str, list[tuple[int, int]]]:
    """The GPU of one part and its (GPUs a node, nodes)."""
    found = _PART.fullmatch(part)
    if found is None or not part.isprintable():
        raise _wrong(argument, f"{part.strip()[:60]!r} is no GPU with a count")
    gpu, gpus = found["gpu"].strip(), int(found["gpus"])
    nodes = int(found["nodes"]) if found["nodes"] else None
    if gpus == 0 or nodes == 0:
        raise _wrong(argument, f"{part.strip()[:60]!r} holds no GPU")
    if nodes is not None:
        return gpu, [(gpus, nodes)]
    full, rest = divmod(gpus, GPUS_PER_NODE)
    return gpu, [
        (size, count) for size, count in ((GPUS_PER_NODE, full), (rest, 1)) if size * count
    ]


def _wrong(argument: str, why: str) -> UsageError:
    shown = repr(argument) if len(argument) <= 80 else f"{argument[:77]!r}..."
    return UsageError(
        f"cluster {shown}",
        why=why,
        fix="write NAME:COUNT parts, as in A100:8+V100:8, or A100:8x4 for four nodes of eight",
    )
