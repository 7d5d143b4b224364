"""FLOPs of the works of one device: what an emulated device's time is made of."""

from __future__ import annotations

from dataclasses import dataclass

from hetcli.perf.compute.operations import (
    Attention,
    Matmul,
    Operation,
    head_operations,
    layer_operations,
)
from hetcli.perf.configuration import Shape
from hetcli.spec.model.architecture import Layer, Model

__all__ = ["WorkFlops", "head_flops", "layer_flops"]


@dataclass(frozen=True, slots=True)
class WorkFlops:
    """FLOPs of one content and micro-batch; `weight` is the part of `backward` for the weights."""

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    core: float = 0.0


def _sum(operations: list[Operation]) -> WorkFlops:
    products = sum(each.flops for each in operations if isinstance(each, Matmul))
    core = sum(each.flops for each in operations if isinstance(each, Attention))
    return WorkFlops(products + core, 2 * (products + core), products, core)


def layer_flops(layer: Layer, model: Model, shape: Shape) -> WorkFlops:
    """One decoder layer: forward once, backward twice as much (unfused attention)."""
    return _sum([operation for _, operation in layer_operations(layer, model, shape)])


def head_flops(model: Model, shape: Shape) -> WorkFlops:
    """The logits."""
    return _sum(list(head_operations(model, shape)))
