"""Seconds of collectives: latency per hop plus bytes over the slowest edge that is really used.

Volumes are those of the ring algorithms (Thakur, Rabenseifner, Gropp 2005; NCCL's "bus
bandwidth" divides by the same factors); latency takes the better of ring and tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetcli.perf.configuration import Shape
from hetcli.perf.hardware import LinkCurve
from hetcli.spec.model.architecture import Layer, Model, MoeFeedForward

__all__ = [
    "ELEMENT_BYTES",
    "Group",
    "LayerCommunication",
    "all_gather_s",
    "all_reduce_s",
    "all_to_all_s",
    "broadcast_s",
    "group_all_reduce_s",
    "group_all_to_all_s",
    "group_gather_s",
    "layer_communication",
    "p2p_s",
    "reduce_scatter_s",
]

# Bytes of an activation element on the wire; fp8 training still sends bf16.
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 2}


def p2p_s(nbytes: float, link: LinkCurve, senders: int = 1) -> float:
    """One message over the link while `senders` ranks use it."""
    return link.seconds(nbytes, senders)


def all_gather_s(nbytes: float, ranks: int, link: LinkCurve, senders: int = 1) -> float:
    """All ranks get all `nbytes`, of which each held an equal part."""
    return group_gather_s(nbytes, Group(ranks, ranks, link, None, senders))


def reduce_scatter_s(nbytes: float, ranks: int, link: LinkCurve, senders: int = 1) -> float:
    """Each rank gets its part of the sum of `nbytes`: an all-gather backwards."""
    return all_gather_s(nbytes, ranks, link, senders)


def all_reduce_s(nbytes: float, ranks: int, link: LinkCurve, senders: int = 1) -> float:
    """All ranks get the sum of `nbytes`: reduce-scatter, then all-gather."""
    return group_all_reduce_s(nbytes, Group(ranks, ranks, link, None, senders))


def all_to_all_s(nbytes: float, ranks: int, link: LinkCurve, senders: int = 1) -> float:
    """Each rank holds `nbytes` and keeps 1/ranks of them."""
    return group_all_to_all_s(nbytes, Group(ranks, ranks, link, None, senders))


def broadcast_s(nbytes: float, ranks: int, link: LinkCurve, senders: int = 1) -> float:
    """One rank's `nbytes` reach all in a pipelined chain."""
    if ranks <= 1:
        return 0.0
    hops = math.ceil(math.log2(ranks))
    return (hops - 1) * link.latency_s + link.seconds(nbytes, senders)


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of one collective: `per_node` of them in every node that takes part.

    `inter` is the slowest link between two neighbouring nodes of the ring; None when all are in
    one node. `senders` groups of a node use its NIC (or its shared inner link) at the same time.
    """

    ranks: int
    per_node: int
    intra: LinkCurve
    inter: LinkCurve | None = None
    senders: float = 1

    @property
    def nodes(self) -> int:
        """Nodes that take part."""
        return math.ceil(self.ranks / self.per_node)


def _edges_s(volume: float, nbytes: float, group: Group) -> float:
    """Seconds for `volume` bytes over the slowest edge of the ring, `nbytes` being the message."""
    inner = group.intra
    # Around a ring all ranks send at once: over PCIe in pairs through the same bridges, so that a
    # ring of four gets half of what two alone get, one of eight a quarter (NCCL tests of 2, 4 and 8
    # L40S and RTX PRO 6000 lie at 0.25 and 0.07, 0.69 and 0.64; their geometric mean is 0.4, 0.2).
    sharing = group.senders * max(group.per_node / 2, 1) if inner.shared else 1
    seconds = volume * sharing / inner.bandwidth(nbytes) if group.per_node > 1 else 0.0
    if group.inter is not None and group.nodes > 1:
        sharing = group.senders if group.inter.shared else 1
        seconds = max(seconds, volume * sharing / group.inter.bandwidth(nbytes))
    return seconds


def _hops_s(group: Group) -> float:
    """Latency of one pass around (or up the tree of) the group."""
    inside = group.intra.latency_s * max(group.per_node - 1, 0)
    if group.inter is None or group.nodes <= 1:
        return inside
    between = group.inter.latency_s
    ring = (inside + between) * (group.nodes - 1) + inside
    tree = inside + math.ceil(math.log2(group.nodes)) * between
    return min(ring, tree)


def group_gather_s(nbytes: float, group: Group) -> float:
    """All-gather of `nbytes` in all, or reduce-scatter of `nbytes` on each rank."""
    if group.ranks <= 1:
        return 0.0
    volume = nbytes * (group.ranks - 1) / group.ranks
    return _hops_s(group) + _edges_s(volume, nbytes, group)


def group_all_reduce_s(nbytes: float, group: Group) -> float:
    """All-reduce of `nbytes`."""
    return 2 * group_gather_s(nbytes, group)


def group_all_to_all_s(nbytes: float, group: Group) -> float:
    """All-to-all: each rank sends `nbytes`/ranks to every other one.

    What leaves a node goes through its NIC, for all its ranks; the rest stays inside.
    """
    if group.ranks <= 1:
        return 0.0
    inner = group.intra
    per_peer = nbytes / group.ranks
    inside = per_peer * (group.per_node - 1)
    seconds = inner.latency_s + inside * (group.senders if inner.shared else 1) / inner.bandwidth(
        nbytes
    )
    if group.inter is None or group.nodes <= 1:
        return seconds
    outside = per_peer * (group.ranks - group.per_node) * group.per_node
    sharing = group.senders if group.inter.shared else 1 / group.per_node
    return max(seconds, group.inter.latency_s + outside * sharing / group.inter.bandwidth(nbytes))


@dataclass(frozen=True, slots=True)
class LayerCommunication:
    """Seconds of one micro-batch in one layer that compute does not hide, by kind and pass."""

    tensor_forward_s: float = 0.0
    tensor_backward_s: float = 0.0
    context_forward_s: float = 0.0
    context_backward_s: float = 0.0
    expert_forward_s: float = 0.0
    expert_backward_s: float = 0.0


def layer_communication(
    layer: Layer,
    model: Model,
    shape: Shape,
    tensor_group: Group | None,
    context_group: Group | None,
    expert_group: Group | None,
) -> LayerCommunication:
    """What the ranks of a layer exchange for one micro-batch.

    Tensor parallel: one all-reduce of the activations after attention and one after the
    feed-forward in each direction (arXiv 1909.08053, section 3), the same volume as reduce-scatter
    and all-gather under sequence parallelism (arXiv 2205.05198, section 4.2.2), once more for a
    full recomputation. Context parallel: keys and values travel around the ring, their gradients
    too. Expert parallel: dispatch and combine are all-to-alls of the routed tokens.
    """
    size = ELEMENT_BYTES[shape.precision]
    tokens = shape.micro_batch_size * shape.sequence / shape.context_parallel
    activations = tokens * model.hidden_size * size
    again = 2 if shape.recompute == "full" else 1
    tensor = context = expert = 0.0
    moe = layer.feed_forward if isinstance(layer.feed_forward, MoeFeedForward) else None
    if tensor_group is not None:
        sums = (layer.attention is not None) + (layer.feed_forward is not None)
        if layer.parallel:
            sums = min(sums, 1)
        if moe is not None and not moe.shared_size and shape.expert_tensor_parallel == 1:
            # The routed tokens are split over the tensor ranks already; nothing is summed.
            sums -= 1
        tensor = sums * group_all_reduce_s(activations, tensor_group)
    if context_group is not None and layer.attention is not None:
        context = group_gather_s(_key_value_bytes(layer, tokens, shape), context_group)
    if expert_group is not None and moe is not None:
        routed = activations / shape.tensor_parallel * moe.top_k
        expert = 2 * group_all_to_all_s(routed, expert_group)
    return LayerCommunication(
        tensor_forward_s=tensor,
        tensor_backward_s=again * tensor,
        context_forward_s=context,
        context_backward_s=(again + 1) * context,
        expert_forward_s=expert,
        expert_backward_s=again * expert,
    )


def _key_value_bytes(layer: Layer, tokens: float, shape: Shape) -> float:
    attention = layer.attention
    assert attention is not None
    whole = tokens * shape.context_parallel * ELEMENT_BYTES[shape.precision]
    if attention.kind == "gqa":
        return whole * 2 * max(attention.kv_heads / shape.tensor_parallel, 1) * attention.head_dim
    heads = attention.heads / shape.tensor_parallel
    key_dim = attention.head_dim_without_rope + attention.head_dim_rope
    return whole * heads * (key_dim + attention.value_head_dim)
