"""How many layers fit: the memory model asked for every pool, place in the pipeline and count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.compute import kernel_of
from hetcli.perf.configuration import LayerRange, Recompute, Shape
from hetcli.perf.memory import StageMemoryModel, held_chunks, layer_kinds, stage_memory_model
from hetcli.search.layout import Degrees, interleaved_chunks
from hetcli.search.pools import Pool
from hetcli.spec.model.architecture import Model
from hetcli.spec.workload import Pretrain

__all__ = ["Limits", "Rooms"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# More layers than any model has; of a stage that has no room at all.
NEVER = 10**9


@dataclass(eq=False)
class Limits:
    """Feasibility of stages for one planning problem; a device keeps the margin free."""

    model: Model
    workload: Pretrain
    _each: Ints = field(init=False)
    _tables: dict[tuple[Degrees, int, int, bool], Ints] = field(default_factory=dict)
    _ranges: dict[tuple[Degrees, int, int, bool, bool, bool], Bools] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = list(dict.fromkeys(run.layer for run in self.model.layers))
        one_hot = np.zeros((self.model.layer_count + 1, len(kinds)), np.int64)
        start = 1
        for run in self.model.layers:
            one_hot[start : start + run.count, kinds.index(run.layer)] = 1
            start += run.count
        self._each = one_hot.cumsum(axis=0)

    def memory(self, degrees: Degrees, pool: Pool, *, pipelined: bool) -> StageMemoryModel:
        """The memory model of stages on a pool."""
        shape = Shape(
            sequence=self.workload.sequence,
            micro_batch_size=degrees.micro_batch_size,
            precision=degrees.precision,
            kernel=kernel_of(pool.device_type, self.workload.attention),
            tensor_parallel=degrees.tensor,
            context_parallel=degrees.context,
            expert_parallel=degrees.expert,
            expert_tensor_parallel=degrees.expert_tensor,
            sequence_parallel=degrees.sequence_parallel,
        )
        return stage_memory_model(
            self.model,
            pool.device_type,
            shape,
            layer_kinds(
                tuple(run.layer for run in self.model.layers), Recompute(degrees.recompute)
            ),
            framework=degrees.framework,
            zero_stage=degrees.zero_stage,
            offload=degrees.offload,
            data_parallel=degrees.data,
            pipelined=pipelined,
        )

    def room(self, pool: Pool) -> int:
        """Bytes of a device that the plan may use."""
        return pool.device_type.memory_bytes - self.workload.memory_margin

    def most_layers(self, degrees: Degrees, pool: Pool, held: int, *, pipelined: bool) -> Ints:
        """Most layers of a stage, [4, held]: by role and by micro-batches in flight, 1 to `held`.

        The role is 2 x (holds the embedding) + (holds the head); -1 where not even no layer fits.
        Where layers are unlike, the lightest kind counts: a bound, not a promise.
        """
        key = (replace(degrees, virtual_stages=1), pool.index, held, pipelined)
        if key not in self._tables:
            self._tables[key] = self._most_layers(degrees, pool, held, pipelined=pipelined)
        return self._tables[key]

    def _most_layers(self, degrees: Degrees, pool: Pool, held: int, *, pipelined: bool) -> Ints:
        memory = self.memory(degrees, pool, pipelined=pipelined)
        kinds = len(memory.kinds)
        counts = np.arange(self.model.layer_count + 1)
        # Axes: role, micro-batches in flight, kind of layer, number of layers; then M's columns.
        layers = counts[:, None] * np.eye(kinds, dtype=np.int64)[:, None, :]
        flying = np.arange(1, held + 1)
        role = np.arange(4)[:, None, None, None]
        peak = memory.peak_bytes(
            layers[None, None],
            (flying[:, None, None, None] * layers)[None],
            is_first=role // 2,
            is_last=role % 2,
            first_in_flight=flying[:, None, None],
        )
        fits = peak <= self.room(pool)
        most: Ints = (np.cumprod(fits, axis=-1).sum(axis=-1) - 1).max(axis=-1)
        return most

    def ranges(
        self, degrees: Degrees, pool: Pool, held: int, *, first: bool, last: bool, pipelined: bool
    ) -> Bools:
        """Whether layers i to j - 1 fit on a stage, [layers + 1, layers + 1]."""
        key = (replace(degrees, virtual_stages=1), pool.index, held, first, last, pipelined)
        if key not in self._ranges:
            memory = self.memory(degrees, pool, pipelined=pipelined)
            layers = np.maximum(self._each[None, :, :] - self._each[:, None, :], 0)
            peak = memory.peak_bytes(
                layers, held * layers, is_first=first, is_last=last, first_in_flight=held
            )
            ordered = np.arange(len(layers))[:, None] <= np.arange(len(layers))[None, :]
            self._ranges[key] = (peak <= self.room(pool)) & ordered
        return self._ranges[key]

    def peaks(
        self, degrees: Degrees, pools: Sequence[Pool], layers: Sequence[int], micro_batches: int
    ) -> list[int]:
        """Peak bytes of a device of each stage, for one split of the layers."""
        chunked = interleaved_chunks(layers, degrees.virtual_stages)
        return [
            self._peak(degrees, pool, stage, len(pools), chunks, micro_batches)
            for stage, (pool, chunks) in enumerate(zip(pools, chunked, strict=True))
        ]

    def peaks_of_stage(
        self,
        degrees: Degrees,
        pool: Pool,
        stage: int,
        stages: int,
        layers: int,
        micro_batches: int,
    ) -> int:
        """Peak bytes of a device of one stage that holds the first `layers` layers."""
        chunks = interleaved_chunks([layers], degrees.virtual_stages)[0]
        return self._peak(degrees, pool, stage, stages, chunks, micro_batches)

    def _peak(
        self,
        degrees: Degrees,
        pool: Pool,
        stage: int,
        stages: int,
        chunks: Sequence[LayerRange],
        micro_batches: int,
    ) -> int:
        memory = self.memory(degrees, pool, pipelined=stages > 1)
        counts = np.array([self._each[chunk.stop] - self._each[chunk.first] for chunk in chunks])
        moments = np.array(held_chunks(degrees.schedule, stages, stage, micro_batches, len(chunks)))
        peak = memory.peak_bytes(
            counts.sum(0),
            moments @ counts,
            is_first=stage == 0,
            is_last=stage == stages - 1,
            first_in_flight=moments[:, 0],
        )
        return int(np.max(peak))


@dataclass(frozen=True, slots=True, eq=False)
class Rooms:
    """Most layers that whole shapes can hold, from sums over a pool's stages.

    `sums[p, h]` are the layers that fit on h middle stages of pool p with 1 to h micro-batches in
    flight; `most[p]` is the table of `Limits.most_layers`, negative entries as they are.
    """

    sums: Ints
    most: Ints
    single: Ints

    @classmethod
    def of(
        cls, limits: Limits, pools: Sequence[Pool], degrees: Degrees, stages: Ints, deepest: int
    ) -> Rooms:
        """The tables of all pools that hold a stage of a family."""
        most = np.full((len(pools), 4, deepest), -1, dtype=np.int64)
        single = np.full(len(pools), -1, dtype=np.int64)
        for index in map(int, np.flatnonzero(stages)):
            pool = pools[index]
            if deepest > 1:
                most[index] = limits.most_layers(degrees, pool, deepest, pipelined=True)
            single[index] = limits.most_layers(degrees, pool, 1, pipelined=False)[3, 0]
        # A middle stage without room for one layer spoils the whole shape.
        middle = np.where(most[:, 0, :] < 1, -NEVER, most[:, 0, :])
        sums = np.zeros((len(pools), deepest + 1), dtype=np.int64)
        np.cumsum(middle, axis=1, out=sums[:, 1:])
        return cls(sums, most, single)

    def layers(self, order: Sequence[int], counts: Ints) -> Ints:
        """Layers that fit on shapes [candidates, pools]; negative where a stage cannot exist."""
        depth = counts.sum(axis=1)
        after = depth[:, None] - np.cumsum(counts, axis=1)
        before = after + counts
        pools = np.asarray(order)
        total = (self.sums[pools, before] - self.sums[pools, after]).sum(axis=1)
        first, last = order[0], order[-1]
        head, tail = self.most[first, 2, depth - 1], self.most[last, 1, 0]
        total += head - (self.sums[first, depth] - self.sums[first, depth - 1])
        total += tail - self.sums[last, 1]
        total = np.where((head < 0) | (tail < 0), -NEVER, total)
        result: Ints = np.where(depth == 1, self.single[first], total)
        return result
