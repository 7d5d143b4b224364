"""Bytes of weights, gradients and optimizer states: what a parameter costs, and who holds it.

All recipes are those of Adam with two fp32 moments. Megatron-LM's bytes a parameter are the ones
that its distributed optimizer documents (docs/source/api-guide/dist_optimizer.md: bf16 with fp32
gradients 18, or 6 + 12/d; fp16 20, or 4 + 16/d; fp32 16, or 8 + 8/d). DeepSpeed's follow ZeRO
(arXiv 1910.02054, section 3) with the fp32 gradients that its optimizers keep of a partition
(deepspeed/runtime/zero/stage_1_and_2.py) or, with bf16 and a pipeline, of everything
(deepspeed/runtime/bf16_optimizer.py). FSDP shards the fp32 parameters themselves and gathers them
in the compute type (PyTorch documentation, torch.distributed.fsdp.MixedPrecision).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from hetcli.perf.configuration import Framework, Offload, Shape, TrainingPrecision
from hetcli.spec.model.architecture import Layer, Model
from hetcli.spec.model.parameters import Parameters, layer_parameters

__all__ = [
    "NONE",
    "Cost",
    "Recipe",
    "Shards",
    "StateBytes",
    "frozen",
    "layer_recipe",
    "layer_state_bytes",
    "parameters_on_device",
    "recipe",
    "shards_of",
    "state_bytes",
]


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of one kind of state for a parameter: `whole` on every rank, `sharded` over ranks."""

    whole: int = 0
    sharded: int = 0

    @property
    def total(self) -> int:
        """Bytes on a single rank."""
        return self.whole + self.sharded


NONE = Cost()


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a parameter costs in weights, gradients and optimizer states.

    `computing` is what a weight costs in the type that the layer computes in, and what its gradient
    costs as the layer produces it; `reduced` what it costs in the type in which ranks add it up.
    """

    weights: Cost
    gradients: Cost
    optimizer: Cost
    computing: int
    reduced: int
    # fp8 copies of a layer's weight, as stored and transposed, that stay between micro-batches
    # (TransformerEngine, Linear: is_first_microbatch).
    quantized: int = 0


@dataclass(frozen=True, slots=True)
class Shards:
    """Ranks that share the sharded states of dense and of expert parameters."""

    dense: int = 1
    experts: int = 1


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes on one device; a sum of parts is one as well."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0

    @property
    def total(self) -> int:
        """All three."""
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: StateBytes) -> StateBytes:
        return StateBytes(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
        )

    def __mul__(self, count: int) -> StateBytes:
        return StateBytes(self.weights * count, self.gradients * count, self.optimizer * count)


def _spread(nbytes: int, *, sharded: bool) -> Cost:
    return Cost(sharded=nbytes) if sharded else Cost(whole=nbytes)


def _plus(one: Cost, other: Cost) -> Cost:
    return Cost(one.whole + other.whole, one.sharded + other.sharded)


def _megatron(precision: TrainingPrecision, zero: int, offload: Offload) -> Recipe:
    """Adam's moments take 8 bytes, with the fp32 copy of 16-bit weights 12; gradients in fp32 4."""
    optimizer = NONE if offload != "none" else _spread(12, sharded=zero >= 1)
    if precision == "fp32":
        optimizer = NONE if offload != "none" else _spread(8, sharded=zero >= 1)
        return Recipe(_spread(4, sharded=zero >= 3), _spread(4, sharded=zero >= 2), optimizer, 4, 4)
    weights = _spread(2, sharded=zero >= 3)
    if precision == "fp16":
        main = _spread(4, sharded=zero >= 1)
        gradients = _plus(_spread(2, sharded=zero >= 2), main)
        return Recipe(weights, gradients, optimizer, 2, 2)
    quantized = 2 if precision == "fp8" else 0
    return Recipe(weights, _spread(4, sharded=zero >= 2), optimizer, 2, 4, quantized)


def _deepspeed(
    precision: TrainingPrecision, zero: int, offload: Offload, *, pipelined: bool
) -> Recipe:
    """Megatron-LM's 12 and 8 bytes of the optimizer; 4 for the fp32 gradients that it keeps."""
    width = 4 if precision == "fp32" else 2
    weights = _spread(width, sharded=zero >= 3)
    if offload == "optimizer+parameters":
        weights = NONE
    gradients = _spread(width, sharded=zero >= 2)
    whole = precision in ("bf16", "fp8") and zero <= 1 and pipelined
    if precision == "fp32":
        optimizer = _spread(8, sharded=zero >= 1)
    else:
        optimizer = _spread(12, sharded=zero >= 1)
        gradients = _plus(gradients, _spread(4, sharded=zero >= 1 and not whole))
    if offload != "none":
        # The host holds the optimizer, and with it every gradient that ZeRO hands over.
        optimizer = NONE
        gradients = NONE if zero >= 2 else Cost(whole=width)
    return Recipe(weights, gradients, optimizer, width, 4 if whole else width)


def _fsdp(precision: TrainingPrecision, zero: int, offload: Offload) -> Recipe:
    """fp32 weights and gradients of 4 bytes and Adam's 8, gathered in the compute type."""
    width = 4 if precision == "fp32" else 2
    weights = _spread(4, sharded=zero >= 2)
    if zero == 2:
        weights = _plus(weights, Cost(whole=width))
    gradients = _spread(4, sharded=zero >= 2)
    optimizer = _spread(8, sharded=zero >= 1)
    if offload == "optimizer":
        optimizer = NONE
    elif offload == "optimizer+parameters":
        weights, gradients, optimizer = NONE, NONE, NONE
    return Recipe(weights, gradients, optimizer, width, width)


@lru_cache(maxsize=256)
def recipe(
    framework: Framework,
    precision: TrainingPrecision,
    zero_stage: int,
    offload: Offload = "none",
    *,
    pipelined: bool = False,
) -> Recipe:
    """Bytes a parameter of `framework` at ZeRO stage `zero_stage` (Megatron-LM's 1 is its
    distributed optimizer; 2 and 3 are Megatron-FSDP's sharding strategies)."""
    match framework:
        case "megatron":
            return _megatron(precision, zero_stage, offload)
        case "deepspeed":
            return _deepspeed(precision, zero_stage, offload, pipelined=pipelined)
        case "fsdp":
            return _fsdp(precision, zero_stage, offload)


def shards_of(shape: Shape, data_parallel: int) -> Shards:
    """Ranks that share states: the data- and context-parallel ones; for experts what is left of
    the stage's ranks after expert and expert-tensor parallelism."""
    ranks = data_parallel * shape.context_parallel
    experts = shape.expert_parallel * shape.expert_tensor_parallel
    return Shards(ranks, max(1, ranks * shape.tensor_parallel // experts))


def parameters_on_device(parameters: Parameters, shape: Shape) -> tuple[int, int]:
    """Dense and expert parameters of `parameters` that one device computes with, rounded up."""
    dense = math.ceil(parameters.tensor_sharded / shape.tensor_parallel) + parameters.replicated
    ways = shape.expert_parallel * shape.expert_tensor_parallel
    return dense, math.ceil(parameters.experts / ways)


def layer_recipe(costs: Recipe) -> Recipe:
    """The recipe of a decoder layer; embedding and head are not computed in fp8."""
    return replace(costs, weights=_plus(costs.weights, Cost(whole=costs.quantized)))


def _bytes(cost: Cost, dense: int, experts: int, ranks: Shards) -> int:
    return (
        cost.whole * (dense + experts)
        + math.ceil(cost.sharded * dense / ranks.dense)
        + math.ceil(cost.sharded * experts / ranks.experts)
    )


def state_bytes(parameters: Parameters, shape: Shape, costs: Recipe, ranks: Shards) -> StateBytes:
    """What one device holds for `parameters`."""
    dense, experts = parameters_on_device(parameters, shape)
    return StateBytes(
        _bytes(costs.weights, dense, experts, ranks),
        _bytes(costs.gradients, dense, experts, ranks),
        _bytes(costs.optimizer, dense, experts, ranks),
    )


def frozen(states: StateBytes) -> StateBytes:
    """What is left of the states of parameters that are not trained: their weights."""
    return StateBytes(weights=states.weights)


def layer_state_bytes(
    layer: Layer,
    model: Model,
    shape: Shape,
    *,
    framework: Framework = "megatron",
    zero_stage: int,
    data_parallel: int,
    offload: Offload = "none",
    pipelined: bool = False,
) -> StateBytes:
    """What one device holds for one layer: weights, gradients and optimizer states, in bytes.

    The precision is that of `shape`. Experts are sharded over expert x expert-tensor ranks and
    their optimizer over the ranks that hold the same experts.
    """
    costs = layer_recipe(
        recipe(framework, shape.precision, zero_stage, offload, pipelined=pipelined)
    )
    return state_bytes(
        layer_parameters(layer, model), shape, costs, shards_of(shape, data_parallel)
    )
