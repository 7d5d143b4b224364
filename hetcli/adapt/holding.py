"""What each device of a configuration holds of a model's weights and optimizer state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.configuration import Configuration, DeviceId, Stage
from hetcli.perf.memory.states import Recipe, recipe
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.parameters import (
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
)

__all__ = ["NOTHING", "Holding", "Sizes", "holdings", "state_recipe"]

_Share = tuple[float, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Holding:
    """`contents` are half-open ranges: 0 is the embedding, then the layers, last the head.

    Of each content the device has the shares `weights` and `optimizer`, as parts of [0, 1): the
    tensor rank's slice, and of that what ZeRO leaves to the data-parallel rank.
    """

    contents: tuple[tuple[int, int], ...]
    weights: _Share
    optimizer: _Share


NOTHING = Holding((), (0.0, 0.0), (0.0, 0.0))


def state_recipe(configuration: Configuration) -> Recipe:
    """What a parameter costs, wherever it lies: offloaded states are moved as well."""
    return recipe(
        configuration.framework,
        configuration.precision,
        configuration.zero_stage,
        pipelined=configuration.pipeline_parallel > 1,
    )


def holdings(configuration: Configuration, model: Model) -> dict[DeviceId, Holding]:
    """Of every device. ZeRO's shards are taken as equal parts of every tensor."""
    costs = state_recipe(configuration)
    found: dict[DeviceId, Holding] = {}
    for pipeline in configuration.pipelines:
        last = len(pipeline.stages) - 1
        for at, stage in enumerate(pipeline.stages):
            contents = _contents(stage, model, first=at == 0, last=at == last)
            ranks = stage.data_parallel * configuration.context_parallel
            for number, replica in enumerate(stage.replicas):
                for position, device in enumerate(replica.devices):
                    context, rank = divmod(position, stage.tensor_parallel)
                    tensor = _part((0.0, 1.0), rank, stage.tensor_parallel)
                    shard = _part(tensor, number * configuration.context_parallel + context, ranks)
                    found[device] = Holding(
                        contents,
                        weights=shard if costs.weights.sharded else tensor,
                        optimizer=shard if costs.optimizer.sharded else tensor,
                    )
    return found


def _part(whole: _Share, number: int, parts: int) -> _Share:
    begin, end = whole
    return begin + (end - begin) * number / parts, begin + (end - begin) * (number + 1) / parts


def _contents(
    stage: Stage, model: Model, *, first: bool, last: bool
) -> tuple[tuple[int, int], ...]:
    ranges = [(chunk.first + 1, chunk.stop + 1) for chunk in stage.chunks if chunk.count]
    if first or (last and model.tied_embeddings):
        ranges.append((0, 1))
    if last:
        ranges.append((model.layer_count + 1, model.layer_count + 2))
    return tuple(sorted(ranges))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of every state of a model; `before` counts the parameters ahead of each content."""

    before: tuple[float, ...]
    weight_bytes: float
    optimizer_bytes: float

    @classmethod
    def of(cls, configuration: Configuration, model: Model) -> Sizes:
        """Of experts those that one rank of their group holds."""
        layers = (layer_parameters(layer, model) for layer in model.each_layer())
        sizes = (
            float(embedding_parameters(model).total),
            *(
                own.total - own.experts + own.experts / configuration.expert_parallel
                for own in layers
            ),
            float(final_norm_parameters(model).total + head_parameters(model).total),
        )
        costs = state_recipe(configuration)
        return cls(
            (0.0, *accumulate(sizes)), float(costs.weights.total), float(costs.optimizer.total)
        )

    def missing(self, had: Sequence[Holding], needed: Sequence[Holding]) -> Floats:
        """Bytes of `needed[j]` that are not in `had[i]`: [i, j]."""
        kinds = list(dict.fromkeys(each.contents for each in (*had, *needed)))
        shared = np.array([[self._shared(one, other) for other in kinds] for one in kinds])
        rows = [kinds.index(each.contents) for each in had]
        columns = [kinds.index(each.contents) for each in needed]
        whole, common = np.diag(shared)[columns], shared[np.ix_(rows, columns)]
        nbytes = np.zeros((len(had), len(needed)))
        for cost, own, wanted in (
            (self.weight_bytes, [each.weights for each in had], [each.weights for each in needed]),
            (
                self.optimizer_bytes,
                [each.optimizer for each in had],
                [each.optimizer for each in needed],
            ),
        ):
            (first, stop), (begin, end) = np.array(own).T[:, :, None], np.array(wanted).T
            overlap = np.minimum(stop, end) - np.maximum(first, begin)
            nbytes += cost * (whole * (end - begin) - common * np.maximum(overlap, 0.0))
        return nbytes

    def _shared(
        self, some: tuple[tuple[int, int], ...], others: tuple[tuple[int, int], ...]
    ) -> float:
        """Parameters of the contents that are in both."""
        return sum(
            max(0.0, self.before[min(stop, end)] - self.before[max(first, begin)])
            for first, stop in some
            for begin, end in others
        )
