"""Which device does what: consecutive stages fill a node before the next one.

Megatron-LM gives stage s the contiguous block of ranks [s * W / PP, (s + 1) * W / PP) and lays
tensor ranks innermost, then context, data and pipeline ranks (`RankGenerator`, order
tp-cp-ep-dp-pp); ranks follow the order of the hosts. So a placement is an order of nodes, and slow
edges are cut by the pipeline first, then by data, then by tensor parallelism, which never leaves a
node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise

from hetcli.perf.configuration import DeviceId, Stage
from hetcli.search.pools import Pool

__all__ = ["crossings", "place", "regular_stages", "stages_per_node"]


def stages_per_node(pool: Pool, *, tensor: int, members: int, stages: int) -> int | None:
    """How many whole stages each node of the pool holds; None where stages run over node borders.

    A stage of `members` tensor groups that would be cut by a border is moved to the next node if
    the pool has nodes enough; the groups left behind stay idle.
    """
    inside = pool.groups_per_node(tensor) // members if pool.is_uniform else 0
    if inside and inside * len(pool.nodes) >= stages:
        return inside
    return None


def regular_stages(pool: Pool, *, tensor: int, context: int, data: int, experts: int) -> int:
    """Up to how many stages of a pool are all placed alike, so that all of them cost the same.

    Either nodes hold whole stages, or stages whole nodes that no replica and no group of `experts`
    ranks is cut by; then all replicas of a stage cost the same too. 0 where stages lie over the
    borders of nodes.
    """
    per_node, members = pool.groups_per_node(tensor), context * data
    if not per_node or not pool.is_uniform:
        return 0
    if members <= per_node:
        return per_node // members * len(pool.nodes)
    whole = [(per_node, context), (per_node * tensor, experts)]
    if members % per_node or any(one % other and other % one for one, other in whole):
        return 0
    return len(pool.nodes) * per_node // members


def place(
    runs: Sequence[tuple[Pool, int]], *, tensor: int, context: int, data: int
) -> list[list[tuple[DeviceId, ...]]]:
    """Devices of every replica of every stage, stages in pipeline order.

    Args:
        runs: pools in pipeline order with how many stages each of them holds.
        tensor: devices of a tensor-parallel group.
        context: tensor groups of a replica.
        data: replicas of a stage.
    """
    members = context * data
    wanted: dict[int, int] = {}
    for pool, count in runs:
        wanted[pool.index] = wanted.get(pool.index, 0) + count
    left = {
        pool.index: _groups(pool, tensor=tensor, members=members, stages=wanted[pool.index])
        for pool, _ in runs
    }
    stages: list[list[tuple[DeviceId, ...]]] = []
    for pool, count in runs:
        for _ in range(count):
            block = list(islice(left[pool.index], members))
            stages.append(
                [
                    tuple(chain.from_iterable(block[start : start + context]))
                    for start in range(0, members, context)
                ]
            )
    return stages


def _groups(
    pool: Pool, *, tensor: int, members: int, stages: int
) -> Iterator[tuple[DeviceId, ...]]:
    """The tensor groups that the stages take, one after the other."""
    inside = stages_per_node(pool, tensor=tensor, members=members, stages=stages)
    per_node = pool.groups_per_node(tensor)
    for index, group in enumerate(pool.groups(tensor)):
        if inside is None or index % per_node < inside * members:
            yield group


def crossings(stages: Sequence[Stage]) -> int:
    """Boundaries between consecutive stages at which some replica's data leave their node."""
    return sum(
        any(
            a.devices[0].node != b.devices[0].node
            for a, b in zip(one.replicas, other.replicas, strict=True)
        )
        for one, other in pairwise(stages)
    )
