"""Data-parallel ranks with batches of their own, and how their gradients have to be weighted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetcli.errors import ConfigurationError, InfeasibleError, UnknownNameError
from hetcli.perf.configuration import Configuration, DeviceId, Pipeline, Replica
from hetcli.perf.hardware import Hardware
from hetcli.perf.resolve import resolve
from hetcli.perf.rules import legal_batches
from hetcli.search.placement import place
from hetcli.search.pools import Pool
from hetcli.spec.cluster import Cluster
from hetcli.spec.hosts import fold_hosts

__all__ = [
    "Rank",
    "gradient_weight",
    "micro_batches_of",
    "ranks_of",
    "sequences_of",
    "weights_note",
    "with_ranks",
]

# A comma inside brackets belongs to a host range: `a[0-1,3]=64,b=32` are two entries.
_ENTRIES = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True, slots=True)
class Rank:
    """One data-parallel rank: its tensor x context devices, and the sequences that it is given."""

    devices: tuple[DeviceId, ...]
    sequences: int


def ranks_of(hardware: Hardware, text: str, *, tensor: int, context: int) -> list[Rank]:
    """The ranks of `fast=64,slow=32`: names are node groups or GPU types.

    Every group of `tensor` x `context` devices of what is named is a rank; what is not named stays
    idle.

    Raises:
        ConfigurationError: no name and number, or a node is named twice.
        UnknownNameError: the cluster has no such node group or GPU type.
        InfeasibleError: a name has fewer devices than one rank needs.
    """
    ranks: list[Rank] = []
    taken: dict[str, str] = {}
    for part in _ENTRIES.split(text):
        name, _, number = (piece.strip() for piece in part.rpartition("="))
        if not name or not number.isdecimal() or not int(number):
            raise ConfigurationError(
                f"--per-gpu-batch {part.strip()!r}",
                why="it takes a node group or GPU type, and how many sequences each rank of it has",
                fix="write it like fast=64,slow=32",
            )
        pool = _named(hardware, name)
        for node in pool.nodes:
            if node.name in taken:
                raise ConfigurationError(
                    f"--per-gpu-batch gives {node.name} to {taken[node.name]} and to {name}",
                    why="every rank has one micro-batch size",
                    fix="name every node once",
                )
            taken[node.name] = name
        count = pool.group_count(tensor) // context
        if not count:
            raise InfeasibleError(
                f"no rank of {tensor} x {context} devices fits on {name}",
                why=f"it has {pool.group_count(tensor)} groups of {tensor} devices inside a node",
                fix="smaller tensor or context degrees, or leave it out",
            )
        placed = place(((pool, 1),), tensor=tensor, context=context, data=count)[0]
        ranks += [Rank(devices, int(number)) for devices in placed]
    return ranks


def _named(hardware: Hardware, name: str) -> Pool:
    """The nodes of a group, else those with a GPU type."""
    by_group = tuple(node for node in hardware.nodes if node.group == name)
    by_type = tuple(node for node in hardware.nodes if node.device_type.gpu.name == name)
    if not by_group and not by_type:
        known = dict.fromkeys(
            each for node in hardware.nodes for each in (node.group, node.device_type.gpu.name)
        )
        raise UnknownNameError(
            f"--per-gpu-batch names {name!r}",
            why=f"{hardware.name} has no such node group or GPU type",
            fix=f"one of {', '.join(known)}",
        )
    return Pool(0, by_group or by_type)


def sequences_of(cluster: Cluster, text: str, *, tensor: int, context: int) -> int:
    """Sequences that all ranks of `fast=64,slow=32` read together; errors as in `ranks_of`."""
    ranks = ranks_of(resolve(cluster), text, tensor=tensor, context=context)
    return sum(rank.sequences for rank in ranks)


def micro_batches_of(ranks: Sequence[Rank], global_batch: int) -> int:
    """How many micro-batches every rank runs in a step.

    Raises:
        InfeasibleError: the global batch is not a multiple of what all ranks read at once.
    """
    samples = sum(rank.sequences for rank in ranks)
    if global_batch % samples:
        legal = " or ".join(map(str, legal_batches(global_batch, samples)))
        raise InfeasibleError(
            f"the ranks read {samples} sequences at once, and the global batch is {global_batch}",
            why="every rank accumulates over as many micro-batches",
            fix=f"a global batch of {legal}",
        )
    return global_batch // samples


def with_ranks(whole: Configuration, ranks: Sequence[Rank], micro_batches: int) -> Configuration:
    """A configuration of one stage with these replicas instead of its own."""
    replicas = tuple(Replica(rank.devices, micro_batches, rank.sequences) for rank in ranks)
    stage = replace(whole.stages[0], replicas=replicas)
    return replace(whole, pipelines=(Pipeline((stage,)),))


def gradient_weight(replica: Replica, global_batch: int) -> float:
    """The weight of a replica's mean gradient in that of the batch: its share of the sequences.

    The gradient of the mean loss over a batch B is sum_r (B_r / B) g_r, g_r being the mean over
    the B_r sequences of rank r; it is the plain mean of the g_r only where all B_r are equal.
    """
    return replica.micro_batches * replica.micro_batch_size / global_batch


def weights_note(configuration: Configuration) -> str | None:
    """What a user of replicas with unequal shares of the batch must know; None where all are equal.

    Replicas of the first stages stand for their pipelines.
    """
    members = [
        replica for pipeline in configuration.pipelines for replica in pipeline.stages[0].replicas
    ]
    by_share: dict[int, list[Replica]] = {}
    for replica in members:
        by_share.setdefault(replica.micro_batches * replica.micro_batch_size, []).append(replica)
    if len(by_share) == 1:
        return None
    batch = configuration.global_batch
    shares = ", ".join(
        f"{sequences}/{batch} for each of {_where(replicas)}"
        for sequences, replicas in by_share.items()
    )
    return (
        f"replicas read unequal shares of the batch, the weights of their gradients: {shares}. "
        f"A plain mean all-reduce would weigh every one 1/{len(members)} and bias the gradient"
    )


def _where(replicas: Sequence[Replica]) -> str:
    nodes = sorted({replica.devices[0].node for replica in replicas})
    return f"{len(replicas)} on {fold_hosts(nodes)}"
