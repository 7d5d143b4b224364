"""The memory of a stage as a linear form in its layers, for one device and for many at once.

What a device holds is fixed by how many layers of each kind it has, and by how many of them hold a
micro-batch: both are counts, so a search can evaluate thousands of splits in one NumPy expression,
and `stage_memory` is the same expression for one. All terms are whole bytes in double precision:
exact up to 2**53, and still a number for models of any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcli.perf.configuration import Framework, Offload, Shape
from hetcli.perf.hardware import DeviceType
from hetcli.perf.memory.activations import layer_activations, prediction_activations
from hetcli.perf.memory.constants import constant
from hetcli.perf.memory.head import (
    HeadActivations,
    embedding_activation_bytes,
    head_activation_bytes,
    padded_vocabulary,
)
from hetcli.perf.memory.overhead import (
    communicators_bytes,
    context_bytes,
    message_bytes,
    workspace_bytes,
)
from hetcli.perf.memory.states import (
    Recipe,
    StateBytes,
    frozen,
    layer_recipe,
    parameters_on_device,
    recipe,
    shards_of,
    state_bytes,
)
from hetcli.spec.model.architecture import Layer, Model
from hetcli.spec.model.parameters import (
    Parameters,
    adapter_parameters,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    prediction_parameters,
)

__all__ = ["ITEMS", "Granularity", "LayerKind", "StageMemoryModel", "stage_memory_model"]

Granularity = Literal["none", "selective", "full"]
LayerKind = tuple[Layer, Granularity]
Floats = NDArray[np.float64]

# Names and order of the items of a device's budget.
ITEMS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "communication_buffers",
    "context",
    "fragmentation",
)
PER_MILLE = 1000


@dataclass(frozen=True, slots=True)
class _Part:
    """A layer or an end of the model on one device; all but the parameters in bytes."""

    states: StateBytes
    parameters: int
    trained: int
    kept: int = 0
    working: int = 0


@dataclass(frozen=True, slots=True)
class _Gathering:
    """What ZeRO-3 and FSDP hold of whole parameters: bytes a weight and a gradient, and how many
    weights: those of `units` of the largest part, or a fixed number."""

    weight: int = 0
    gradient: int = 0
    units: int = 0
    number: int = 0


@dataclass(frozen=True, eq=False)
class StageMemoryModel:
    """What a device of a stage holds, item by item, from counts of layers.

    `kinds` are the columns of the counts: a layer and what of it is recomputed. Every method takes

    - `layers`: how many of each kind the device has, shape [..., kinds];
    - `held`: for how many (layer, micro-batch) pairs of each kind it holds activations: the layers
      times the micro-batches in flight, summed over model chunks;
    - `is_first`, `is_last`: whether it holds the embedding, and the final norm with the head;
    - `first_in_flight`, `last_in_flight`: micro-batches in flight at those ends;

    which broadcast against each other, and returns whole bytes of that shape.
    """

    kinds: tuple[LayerKind, ...]
    _layers: tuple[_Part, ...]
    _first: _Part
    _last: _Part
    # A second copy of the word table, on a last stage that is not the first one as well.
    _copy: _Part
    _head: HeadActivations
    _gathering: _Gathering
    # Bytes of buckets a parameter, and of how many parameters at most (DeepSpeed).
    _bucket: tuple[int, int]
    # Tensors that are only sent, and workspaces: seen by the framework's allocator.
    _messages: int
    _workspaces: int
    # Not seen by it.
    _communicators: int
    _context: int
    _fragments: tuple[int, ...]

    def items(
        self,
        layers: ArrayLike,
        held: ArrayLike,
        *,
        is_first: ArrayLike,
        is_last: ArrayLike,
        first_in_flight: ArrayLike = 1,
        last_in_flight: ArrayLike = 1,
    ) -> dict[str, Floats]:
        """Bytes of each of `ITEMS` at the fullest moment; they sum to the peak.

        That moment is the loss of the last stage, or the backward pass of the layer that needs
        most on top of what is kept.
        """
        layers, held = np.asarray(layers, np.float64), np.asarray(held, np.float64)
        first, last = np.asarray(is_first, np.float64), np.asarray(is_last, np.float64)
        first_in_flight = np.asarray(first_in_flight, np.float64)
        last_in_flight = np.asarray(last_in_flight, np.float64)
        copy = last * (1 - first)

        def total(name: str) -> Floats:
            of_ends = [
                present * getattr(part.states, name)
                for present, part in ((first, self._first), (last, self._last), (copy, self._copy))
            ]
            return sum(of_ends, start=layers @ self._columns[name])

        kept_layers = held * self._kept
        kept_ends = first * first_in_flight * self._first.kept + last * last_in_flight * (
            self._last.kept + self._head.hidden
        )
        kept = kept_layers.sum(-1) + kept_ends
        working = np.maximum(
            np.where(layers > 0, self._working, 0).max(-1, initial=0), last * self._last.working
        )
        waiting = last * self._head.loss * (last_in_flight - 1)
        loss = last * (self._head.loss + self._head.logits)
        at_loss = loss >= working
        activations = kept + np.where(at_loss, 0, working)
        logits = waiting + np.where(at_loss, loss, 0)
        layer_fragments = kept_layers @ (self._fragment - self._fragments[-1])
        fragments = layer_fragments + (activations + logits) * self._fragments[-1]
        parameters = self._everything("parameters", layers, first, last, copy)
        trained = self._everything("trained", layers, first, last, copy)
        whole_weights, whole_gradients = self._gathered(layers, first, last, parameters)
        bytes_each, limit = self._bucket
        buckets = bytes_each * np.minimum(trained, limit)
        return {
            "weights": total("weights") + whole_weights,
            "gradients": total("gradients") + whole_gradients,
            "optimizer": total("optimizer"),
            "activations": activations,
            "logits": logits,
            "communication_buffers": kept * 0 + buckets + self._messages + self._communicators,
            "context": kept * 0 + self._workspaces + self._context,
            "fragmentation": np.floor(fragments / PER_MILLE),
        }

    def peak_bytes(
        self,
        layers: ArrayLike,
        held: ArrayLike,
        *,
        is_first: ArrayLike,
        is_last: ArrayLike,
        first_in_flight: ArrayLike = 1,
        last_in_flight: ArrayLike = 1,
    ) -> Floats:
        """Bytes at the fullest moment: the sum of `items`."""
        items = self.items(
            layers,
            held,
            is_first=is_first,
            is_last=is_last,
            first_in_flight=first_in_flight,
            last_in_flight=last_in_flight,
        )
        return sum(items.values(), start=np.zeros((), np.float64))

    @property
    def unseen_bytes(self) -> int:
        """Bytes of the items that the framework's own allocator does not count, fragments apart:
        the driver's context and the collective library's buffers."""
        return self._communicators + self._context

    def _everything(
        self, name: str, layers: Floats, first: Floats, last: Floats, copy: Floats
    ) -> Floats:
        """`parameters` that the device computes with, stored here or not, or those `trained`."""
        of_ends = (first, self._first), (last, self._last), (copy, self._copy)
        return sum(
            (present * getattr(part, name) for present, part in of_ends),
            start=layers @ np.array([getattr(part, name) for part in self._layers], np.float64),
        )

    def _gathered(
        self, layers: Floats, first: Floats, last: Floats, parameters: Floats
    ) -> tuple[Floats, Floats]:
        rule = self._gathering
        largest = np.maximum(
            np.where(layers > 0, self._parameters, 0).max(-1, initial=0),
            np.maximum(first * self._first.parameters, last * self._last.parameters),
        )
        wanted = rule.units * largest + rule.number
        return rule.weight * np.minimum(wanted, parameters), rule.gradient * largest

    @cached_property
    def _kept(self) -> Floats:
        return np.array([part.kept for part in self._layers], np.float64)

    @cached_property
    def _working(self) -> Floats:
        return np.array([part.working for part in self._layers], np.float64)

    @cached_property
    def _parameters(self) -> Floats:
        return np.array([part.parameters for part in self._layers], np.float64)

    @cached_property
    def _fragment(self) -> Floats:
        return np.array(self._fragments[:-1], np.float64)

    @cached_property
    def _columns(self) -> Mapping[str, Floats]:
        return {
            name: np.array([getattr(part.states, name) for part in self._layers], np.float64)
            for name in ("weights", "gradients", "optimizer")
        }


@lru_cache(maxsize=1024)
def stage_memory_model(
    model: Model,
    device_type: DeviceType,
    shape: Shape,
    kinds: tuple[LayerKind, ...],
    *,
    framework: Framework = "megatron",
    zero_stage: int = 1,
    offload: Offload = "none",
    data_parallel: int = 1,
    pipelined: bool = True,
) -> StageMemoryModel:
    """The memory of any stage of `model` on devices of a type, for counts of `kinds`.

    `shape.recompute` does not matter: each kind names its own. `pipelined` says whether there is
    more than one stage.
    """
    vocabulary = padded_vocabulary(model, shape.tensor_parallel, framework)
    padded = model.model_copy(update={"vocab_size": vocabulary})
    costs = recipe(framework, shape.precision, zero_stage, offload, pipelined=pipelined)
    ranks = shards_of(shape, data_parallel)

    def part(
        parameters: Parameters,
        kept: int = 0,
        working: int = 0,
        *,
        adapters: Parameters | None = None,
        of: Recipe = costs,
    ) -> _Part:
        states = state_bytes(parameters, shape, of, ranks)
        number = trained = sum(parameters_on_device(parameters, shape))
        if model.adapters is not None:
            adapters = adapters or Parameters()
            states = frozen(states) + state_bytes(adapters, shape, of, ranks)
            trained = sum(parameters_on_device(adapters, shape))
            number += trained
        return _Part(states, number, trained, kept, working)

    def layer(kind: LayerKind) -> _Part:
        needs = layer_activations(kind[0], model, replace(shape, recompute=kind[1]))
        parameters, adapters = layer_parameters(kind[0], model), adapter_parameters(kind[0], model)
        of = layer_recipe(costs)
        return part(parameters, needs.kept, needs.working, adapters=adapters, of=of)

    table = replace(embedding_parameters(padded), replicated=0)
    needs_copy = model.tied_embeddings or model.prediction_layers > 0
    behind = final_norm_parameters(padded) + head_parameters(padded)
    prediction = prediction_activations(model, shape)
    return StageMemoryModel(
        kinds=kinds,
        _layers=tuple(layer(kind) for kind in kinds),
        _first=part(embedding_parameters(padded), embedding_activation_bytes(model, shape)),
        _last=part(behind + prediction_parameters(padded), prediction.kept, prediction.working),
        _copy=part(table if needs_copy else Parameters()),
        _head=head_activation_bytes(model, shape, framework),
        _gathering=_gathering(framework, costs, zero_stage),
        _bucket=_bucket(framework, costs),
        _messages=message_bytes(model, shape, pipelined=pipelined),
        _workspaces=workspace_bytes(model, device_type, framework),
        _communicators=communicators_bytes(
            device_type, shape, data_parallel=data_parallel, pipelined=pipelined
        ),
        _context=context_bytes(device_type, framework),
        _fragments=(*(_per_mille(granularity) for _, granularity in kinds), _per_mille("default")),
    )


def _per_mille(granularity: str) -> int:
    return round(PER_MILLE * constant("fragmentation", granularity))


def _gathering(framework: Framework, costs: Recipe, zero_stage: int) -> _Gathering:
    """What whole parameters cost while their layer computes.

    DeepSpeed keeps up to `stage3_max_live_parameters` of them; Megatron-FSDP and PyTorch FSDP the
    layer that computes and the next one, which is being gathered.
    """
    if zero_stage < 3:
        return _Gathering()
    if framework == "deepspeed":
        number = round(constant("deepspeed_max_live_parameters"))
        return _Gathering(costs.computing, costs.computing, number=number)
    return _Gathering(costs.computing, costs.computing, units=2)


def _bucket(framework: Framework, costs: Recipe) -> tuple[int, int]:
    """DeepSpeed's buckets: bytes for each of the parameters that fit into one, and their number."""
    if framework != "deepspeed":
        return 0, 0
    buckets = round(constant("deepspeed_buckets"))
    return buckets * costs.reduced, round(constant("deepspeed_bucket_elements"))
