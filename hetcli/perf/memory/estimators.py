"""Closed forms that frameworks print for model states alone: no activations, no buffers.

They answer "can the states be spread at all?" and are far below what a run needs; `stage_memory`
says that.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetcli.perf.configuration import Offload, TrainingPrecision
from hetcli.perf.memory.states import recipe

__all__ = ["ModelStates", "megatron_states", "zero2_states", "zero3_states"]


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Bytes on one device, and what they count."""

    device_bytes: int
    scope: str = "model states only"


def zero2_states(parameters: int, ranks: int, offload: Offload = "none") -> ModelStates:
    """What DeepSpeed's `estimate_zero2_model_states_mem_needs` prints for one GPU.

    The gradients of all parameters count in full, as its optimizer keeps them before it hands them
    on (deepspeed/runtime/zero/stage_1_and_2.py): 4 bytes a parameter whole, 16 sharded.
    """
    if offload != "none":
        return ModelStates(2 * parameters)
    return ModelStates(4 * parameters + 16 * parameters // ranks)


def zero3_states(
    parameters: int, largest_layer: int, ranks: int, offload: Offload = "none"
) -> ModelStates:
    """What DeepSpeed's `estimate_zero3_model_states_mem_needs` prints for one GPU.

    The largest layer is whole while it computes, 4 bytes a parameter of weights and gradients, and
    18 are sharded (deepspeed/runtime/zero/stage3.py).
    """
    sharded = {"none": 18, "optimizer": 2, "optimizer+parameters": 0}[offload]
    return ModelStates(4 * largest_layer + sharded * parameters // ranks)


def megatron_states(
    parameters: int,
    data_parallel: int,
    precision: TrainingPrecision = "bf16",
    *,
    distributed_optimizer: bool = True,
) -> ModelStates:
    """Weights, gradients and Adam states of Megatron-LM for the parameters of one device."""
    costs = recipe("megatron", precision, int(distributed_optimizer))
    parts = (costs.weights, costs.gradients, costs.optimizer)
    whole = sum(part.whole for part in parts)
    sharded = sum(part.sharded for part in parts)
    return ModelStates(whole * parameters + sharded * parameters // data_parallel)
