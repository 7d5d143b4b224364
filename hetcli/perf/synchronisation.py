"""Gradient reduction and parameter gathering among the devices that hold the same layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcli.perf.communication import ELEMENT_BYTES, Group, group_all_reduce_s, group_gather_s
from hetcli.perf.compute.rates import framework_of
from hetcli.perf.configuration import Configuration, DeviceId, Stage
from hetcli.perf.hardware import Hardware
from hetcli.perf.stage import device_group, layer_runs
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.parameters import (
    Parameters,
    adapter_parameters,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    prediction_parameters,
)

__all__ = [
    "Holding",
    "Synchronisation",
    "exposed",
    "gradient_bytes",
    "holding",
    "rings",
    "stage_parameters",
    "synchronisation",
    "synchronised",
    "unhidden",
]


@dataclass(frozen=True, slots=True)
class Holding:
    """Parameters on one device: those of all its micro-batches, and its own experts."""

    dense: float
    experts: float

    @property
    def total(self) -> float:
        """All parameters on the device."""
        return self.dense + self.experts


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Seconds of one stage's collectives, whole, before any overlap.

    `reduce_s` is the gradients' all-reduce or reduce-scatter, `gather_s` that of the updated
    parameters; `layer_gather_s` and `layer_reduce_s` are ZeRO-3's for one micro-batch of the whole
    stage, in each pass.
    """

    reduce_s: float = 0.0
    gather_s: float = 0.0
    micro_gather_s: float = 0.0
    micro_reduce_s: float = 0.0
    # The share of both that delays the computation even where that is longer.
    micro_exposed: float = 0.0
    state_parameters: float = 0.0


def trained_parameters(model: Model, stage: Stage, *, first: bool, last: bool) -> Parameters:
    """What a stage trains of what it holds: everything, or its layers' adapters."""
    if model.adapters is None:
        return stage_parameters(model, stage, first=first, last=last)
    parts = Parameters()
    for chunk in stage.chunks:
        for layer, count in layer_runs(model, chunk):
            parts += adapter_parameters(layer, model) * count
    return parts


def stage_parameters(model: Model, stage: Stage, *, first: bool, last: bool) -> Parameters:
    """Everything that a stage holds; a tied head on another stage is a copy of the word table."""
    parts = Parameters()
    for chunk in stage.chunks:
        for layer, count in layer_runs(model, chunk):
            parts += layer_parameters(layer, model) * count
    if first:
        parts += embedding_parameters(model)
    if last:
        parts += final_norm_parameters(model) + head_parameters(model)
        parts += prediction_parameters(model)
        if model.tied_embeddings and not first:
            parts += Parameters(vocabulary=embedding_parameters(model).vocabulary)
    return parts


def holding(parameters: Parameters, configuration: Configuration, stage: Stage) -> Holding:
    """What one device of the stage holds of `parameters`."""
    expert_ranks = configuration.expert_parallel * configuration.expert_tensor_parallel
    return Holding(
        dense=parameters.tensor_sharded / stage.tensor_parallel + parameters.replicated,
        experts=parameters.experts / expert_ranks,
    )


def rings(
    configuration: Configuration, stage: Stage, others: Sequence[Stage], hardware: Hardware
) -> tuple[Group, Group]:
    """The rings of the dense and of the expert parameters of a stage and of those who share it.

    They do not depend on the layers that the stage holds.
    """
    holders = [stage, *others]
    ranks: list[DeviceId] = []
    everyone: list[DeviceId] = []
    for each in holders:
        for replica in each.replicas:
            ranks += replica.devices[:: each.tensor_parallel]
            everyone += replica.devices
    sisters = _largest_count(everyone) // _largest_count(ranks)
    dense = device_group(hardware, ranks, max(sisters, 1))
    stride = configuration.expert_parallel * configuration.expert_tensor_parallel
    if stride <= 1:
        # Every rank holds all experts, split over tensor ranks like the rest or whole.
        stride = stage.tensor_parallel if configuration.expert_tensor_parallel > 1 else 1
    shared = everyone[::stride]
    sisters = _largest_count(everyone) // _largest_count(shared)
    return dense, device_group(hardware, shared, max(sisters, 1))


def _largest_count(devices: Sequence[DeviceId]) -> int:
    """Ranks in the fullest node; ranks of a node follow each other."""
    return max(sum(1 for _ in run) for _, run in groupby(devices, key=lambda each: each.node))


def gradient_bytes(configuration: Configuration) -> int:
    """Bytes on the wire for a gradient.

    By default Megatron-LM accumulates and reduces bf16 gradients in fp32 (`--bf16` sets
    `accumulate_allreduce_grads_in_fp32`), fp16 ones in fp16; DeepSpeed and FSDP reduce in the
    training precision.
    """
    if configuration.gradient_precision is not None:
        return ELEMENT_BYTES[configuration.gradient_precision]
    if configuration.framework == "megatron" and configuration.precision != "fp16":
        return ELEMENT_BYTES["fp32"]
    return ELEMENT_BYTES[configuration.precision]


def synchronisation(
    configuration: Configuration,
    model: Model,
    stage: Stage,
    others: Sequence[Stage],
    hardware: Hardware,
    *,
    first: bool,
    last: bool,
) -> Synchronisation:
    """Seconds to bring a stage's gradients and parameters together, and who updates how many."""
    found = rings(configuration, stage, others, hardware)
    return synchronised(configuration, model, stage, found, hardware, first=first, last=last)


def synchronised(
    configuration: Configuration,
    model: Model,
    stage: Stage,
    found: tuple[Group, Group],
    hardware: Hardware,
    *,
    first: bool,
    last: bool,
) -> Synchronisation:
    """`synchronisation` over rings that are known already."""
    dense, expert = found

    def rings_of(parameters: Parameters) -> list[tuple[float, Group]]:
        held = holding(parameters, configuration, stage)
        return [(held.dense, dense), *([(held.experts, expert)] if held.experts else [])]

    trained = trained_parameters(model, stage, first=first, last=last)
    parts = rings_of(trained)
    gradient = gradient_bytes(configuration)
    weight = ELEMENT_BYTES[configuration.precision]
    if configuration.zero_stage == 0:
        reduce_s = sum(group_all_reduce_s(count * gradient, ring) for count, ring in parts)
        states = sum(count for count, _ in parts)
        return Synchronisation(reduce_s=reduce_s, state_parameters=states)
    scatter_s = sum(group_gather_s(count * gradient, ring) for count, ring in parts)
    gather_s = sum(group_gather_s(count * weight, ring) for count, ring in parts)
    states = sum(count / ring.ranks for count, ring in parts)
    if configuration.zero_stage < 3:
        return Synchronisation(scatter_s, gather_s, state_parameters=states)
    cost = framework_of(
        hardware.node_of(stage.replicas[0].devices[0]).device_type,
        configuration.framework,
        configuration.framework_release,
    )
    share = cost.gather.value
    # Every layer's whole weights are gathered, also those that are not trained.
    if model.adapters is not None:
        everything = trained + stage_parameters(model, stage, first=first, last=last)
        gather_s = sum(group_gather_s(count * weight, ring) for count, ring in rings_of(everything))
    return Synchronisation(
        micro_gather_s=gather_s / share,
        micro_reduce_s=scatter_s / share,
        micro_exposed=cost.gather_exposed.value,
        state_parameters=states,
    )


def exposed(
    sync: Synchronisation,
    configuration: Configuration,
    *,
    layers: int,
    forward_s: float,
    backward_s: float,
) -> tuple[float, float]:
    """Seconds of the gradients' reduction and of the parameters' gathering that nothing hides.

    Buckets are ready layer by layer: all but one layer's share can hide behind the last backward
    (`backward_s`) or the first forward pass (`forward_s`) of the stage.
    """
    reduce_s, gather_s = sync.reduce_s, sync.gather_s
    if configuration.overlap_grad_reduce:
        reduce_s = float(unhidden(reduce_s, backward_s, layers))
    if configuration.overlap_param_gather and configuration.framework == "megatron":
        gather_s = float(unhidden(gather_s, forward_s, layers))
    return reduce_s, gather_s


def unhidden(seconds: ArrayLike, behind_s: ArrayLike, layers: ArrayLike) -> NDArray[np.float64]:
    """What sticks out of a collective over `layers` buckets that runs behind `behind_s` of compute.

    All but one bucket can hide; elementwise over arrays.
    """
    buckets = np.maximum(layers, 1)
    shown: NDArray[np.float64] = seconds - np.minimum(seconds, behind_s) * (buckets - 1) / buckets
    return shown
