"""Who gets how much: layers of stages, micro-batches of replicas, after how fast each is."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hetcli.perf.configuration import Configuration, LayerRange, Pipeline, Replica, Stage
from hetcli.perf.hardware import Hardware
from hetcli.perf.stage import Costs, replica_time
from hetcli.search.partition import split_equal_layers

__all__ = ["Clock", "fastest_split", "shrunk_layers", "split_batches"]


def shrunk_layers(layers: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Layers of each stage when tensor-parallel degrees shrink from `before` to `after`.

    ResiHP (arXiv 2605.06374): each stage keeps floor(layers x after / before); the others go one
    by one to the stage where (layers + 1) / after is smallest.
    """
    kept = [count * new // old for count, old, new in zip(layers, before, after, strict=True)]
    for _ in range(sum(layers) - sum(kept)):
        at = min(range(len(kept)), key=lambda stage: ((kept[stage] + 1) / after[stage], stage))
        kept[at] += 1
    return kept


def split_batches(total: int, speeds: Sequence[float]) -> list[int] | None:
    """Micro-batches in proportion to speeds, so that the slowest is done as early as can be.

    Each gets at least one; None when there are fewer micro-batches than takers.
    """
    if total < len(speeds):
        return None
    counts = [1] * len(speeds)
    # When each would be done with one more.
    following = [(2 / speed, at) for at, speed in enumerate(speeds)]
    heapq.heapify(following)
    for _ in range(total - len(speeds)):
        _, at = following[0]
        counts[at] += 1
        heapq.heapreplace(following, ((counts[at] + 1) / speeds[at], at))
    return counts


def fastest_split(
    layers: int, times: Sequence[tuple[float, float]], micro_batches: int
) -> list[int]:
    """Layers of stages that take `times` (seconds of a layer, of what comes with none) each.

    At least one for each stage. Raises ValueError for fewer layers than stages.
    """
    if layers < len(times):
        raise ValueError(f"{layers} layers cannot fill {len(times)} stages")
    layer_s, ends_s = np.array(times).T[:, None, :]
    split, _ = split_equal_layers(
        layer_s,
        ends_s,
        least=np.ones(layer_s.shape, dtype=np.int64),
        most=np.full(layer_s.shape, layers),
        layers=layers,
        weight=np.full(layer_s.shape, float(micro_batches - 1)),
    )
    return [int(count) for count in split[0]]


@dataclass(frozen=True, slots=True)
class Clock:
    """How fast the replicas of a configuration are."""

    configuration: Configuration
    costs: Costs
    hardware: Hardware
    _known: dict[object, tuple[float, float]] = field(default_factory=dict, compare=False)

    def seconds(self, pipeline: Pipeline, at: int, replica: Replica) -> tuple[float, float]:
        """Of one micro-batch on a replica of stage `at`: a layer's, and embedding, head and loss.

        Both ways, with what tensor-parallel ranks exchange; layers count as equal.
        """
        [node, *more] = dict.fromkeys(self.hardware.node_of(each) for each in replica.devices)
        stage = pipeline.stages[at]
        ends = (at == 0, at == len(pipeline.stages) - 1)
        shape = (stage.tensor_parallel, stage.recompute, replica.micro_batch_size, ends)
        # Replicas inside equal nodes take the same time.
        key = (shape, node.device_type, node.intra, node.nic) if not more else (shape, replica)
        if key not in self._known:
            self._known[key] = self._seconds(stage, replica, *ends)
        return self._known[key]

    def _seconds(
        self, stage: Stage, replica: Replica, first: bool, last: bool
    ) -> tuple[float, float]:
        layers = self.costs.model.layer_count
        # All layers of the model, as a stage may have none.
        whole = replace(stage, chunks=(LayerRange(0, layers),))

        def total(*, first: bool, last: bool) -> float:
            time = replica_time(
                self.configuration,
                whole,
                replica,
                first=first,
                last=last,
                hardware=self.hardware,
                costs=self.costs,
            )
            return sum(each.total for each in (*time.forward, *time.backward))

        inner = total(first=False, last=False)
        return inner / layers, total(first=first, last=last) - inner

    def speed(self, pipeline: Pipeline, chain: Sequence[Replica]) -> float:
        """Micro-batches a second that the slowest stage of a chain of replicas lets through."""
        slowest = 0.0
        for at, (stage, replica) in enumerate(zip(pipeline.stages, chain, strict=True)):
            layer_s, ends_s = self.seconds(pipeline, at, replica)
            slowest = max(slowest, stage.layer_count * layer_s + ends_s)
        return 1 / slowest
