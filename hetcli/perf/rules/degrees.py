"""The degrees of parallelism that a model can take."""

from __future__ import annotations

import math

from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.perf.rules.numbers import divisors, listed, multiples_around
from hetcli.spec.model.architecture import DenseFeedForward, LatentAttention, Model, MoeFeedForward

__all__ = [
    "check_context_parallel",
    "check_expert_parallel",
    "check_tensor_parallel",
    "legal_expert_parallel",
    "legal_expert_tensor_parallel",
    "legal_tensor_parallel",
]


def _tensor_sizes(model: Model) -> dict[str, int]:
    """Everything that tensor parallelism cuts, by name: each must be divisible by the degree."""
    sizes: dict[str, int] = {}
    for run in model.layers:
        attention, feed_forward = run.layer.attention, run.layer.feed_forward
        if isinstance(attention, LatentAttention):
            sizes[f"{attention.heads} attention heads"] = attention.heads
        elif attention is not None:
            sizes[f"{attention.heads} attention heads"] = attention.heads
            sizes[f"{attention.kv_heads} KV heads"] = attention.kv_heads
        if isinstance(feed_forward, DenseFeedForward):
            sizes[f"feed-forward size {feed_forward.size}"] = feed_forward.size
        elif isinstance(feed_forward, MoeFeedForward) and feed_forward.shared_size:
            size = feed_forward.shared_size
            sizes[f"shared expert size {size}"] = size
    return sizes


def legal_tensor_parallel(model: Model) -> list[int]:
    """Degrees that cut every layer evenly: heads, KV heads and feed-forward sizes, ascending.

    Megatron-LM would also repeat KV heads where `tp % kv_heads == 0`; that stores and computes them
    more than once and is left out.
    """
    return divisors(math.gcd(*_tensor_sizes(model).values()))


def check_tensor_parallel(model: Model, tensor_parallel: int) -> None:
    """Refuse a degree that does not cut the model evenly.

    Raises:
        ConfigurationError: with the sizes that break the rule and every legal degree.
    """
    broken = {
        name: size for name, size in _tensor_sizes(model).items() if size % tensor_parallel != 0
    }
    if broken:
        raise ConfigurationError(
            f"tensor_parallel {tensor_parallel} cannot cut {listed(broken)} of {model.name}",
            why=listed(
                f"{size} % {tensor_parallel} = {size % tensor_parallel}" for size in broken.values()
            ),
            fix=f"legal tensor_parallel: {listed(legal_tensor_parallel(model))}",
        )


def _routed(model: Model) -> list[MoeFeedForward]:
    return [
        run.layer.feed_forward
        for run in model.layers
        if isinstance(run.layer.feed_forward, MoeFeedForward)
    ]


def legal_expert_parallel(model: Model) -> list[int]:
    """Degrees that share the experts of every MoE layer evenly; [1] for a dense model."""
    routed = _routed(model)
    return divisors(math.gcd(*(moe.experts for moe in routed))) if routed else [1]


def legal_expert_tensor_parallel(model: Model) -> list[int]:
    """Degrees that cut every expert's matrices evenly; [1] for a dense model."""
    routed = _routed(model)
    return divisors(math.gcd(*(moe.expert_size for moe in routed))) if routed else [1]


def check_expert_parallel(
    model: Model,
    *,
    expert_parallel: int,
    expert_tensor_parallel: int,
    pipeline_parallel: int,
    world: int,
) -> None:
    """Check the expert mesh: etp x ep x pp must divide the world, whatever tp is.

    Raises:
        ConfigurationError: the experts cannot be shared, or the mesh does not divide the world.
        InfeasibleError: the world is smaller than the mesh.
    """
    for name, degree, legal in (
        ("expert_parallel", expert_parallel, legal_expert_parallel(model)),
        ("expert_tensor_parallel", expert_tensor_parallel, legal_expert_tensor_parallel(model)),
    ):
        if degree not in legal:
            what = f"{name} {degree} does not fit the experts of {model.name}"
            if not _routed(model):
                raise ConfigurationError(what, why="the model has no experts", fix=f"{name} 1")
            raise ConfigurationError(
                what, why="every rank holds equally many", fix=f"legal {name}: {listed(legal)}"
            )
    if not _routed(model):
        return
    mesh = expert_tensor_parallel * expert_parallel * pipeline_parallel
    rule = (
        f"the expert mesh is expert_tensor_parallel {expert_tensor_parallel} x expert_parallel "
        f"{expert_parallel} x pipeline_parallel {pipeline_parallel} = {mesh}"
    )
    if world < mesh:
        raise InfeasibleError(
            f"{world} devices are too few for this expert mesh",
            why=rule,
            fix=f"the smallest legal world is {mesh} devices",
        )
    if world % mesh:
        raise ConfigurationError(
            f"a world of {world} devices is not a multiple of the expert mesh",
            why=f"{rule}; {world} % {mesh} = {world % mesh}",
            fix=f"use {listed(multiples_around(world, mesh))} devices",
        )


def check_context_parallel(sequence: int, context_parallel: int) -> None:
    """Check that the sequence is cut into 2 x cp equal chunks (load-balanced causal attention).

    Raises:
        ConfigurationError: with the nearest legal sequence lengths.
    """
    chunks = 2 * context_parallel
    if context_parallel > 1 and sequence % chunks:
        raise ConfigurationError(
            f"sequence length {sequence} cannot be cut by context_parallel {context_parallel}",
            why=f"each rank holds two chunks: {sequence} % {chunks} = {sequence % chunks}",
            fix=f"sequence length {listed(multiples_around(sequence, chunks))}",
        )
