"""How many layers fit: the memory model asked for every pool, place in the pipeline and count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.compute import kernel_of
from hetcli.perf.configuration import Recompute, Shape
from hetcli.perf.memory import StageMemoryModel, layer_kinds, stage_memory_model
from hetcli.search.layout import Degrees
from hetcli.search.pools import Pool
from hetcli.spec.model.architecture import Model
from hetcli.spec.workload import Pretrain

__all__ = ["NEVER", "Held", "Limits", "Rooms", "peaks_by_kind"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Micro-batches that a stage holds of each of its chunks, at its fullest moments (`held_chunks`).
Held = tuple[tuple[int, ...], ...]

# More layers than any model has; of a stage that has no room at all.
NEVER = 10**9


@dataclass(eq=False)
class Limits:
    """Feasibility of stages for one planning problem; a device keeps the margin free."""

    model: Model
    workload: Pretrain
    _each: Ints = field(init=False)
    _tables: dict[object, Ints] = field(default_factory=dict)
    _ranges: dict[object, Bools] = field(default_factory=dict)
    _alike: dict[object, int] = field(default_factory=dict)

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
        Where layers are unlike, the lightest kind counts: a bound, not a promise. So it is with
        model chunks, of each of which a stage has as many layers as are counted.
        """
        key = (degrees, pool.device_type, pipelined)
        table = self._tables.get(key)
        if table is None or table.shape[1] < held:
            table = self._most_layers(degrees, pool, held, pipelined=pipelined)
            self._tables[key] = table
        return table[:, :held]

    def _most_layers(self, degrees: Degrees, pool: Pool, held: int, *, pipelined: bool) -> Ints:
        peaks = self.peaks(degrees, pool, held, pipelined=pipelined)
        most: Ints = (peaks <= self.room(pool)).sum(axis=-1) - 1
        return most

    def peaks(self, degrees: Degrees, pool: Pool, held: int, *, pipelined: bool) -> Floats:
        """Peak bytes of a stage, [4, held, layers + 1]: by role, micro-batches in flight, layers.

        Where layers are unlike, it is that of the lightest kind.
        """
        memory = self.memory(degrees, pool, pipelined=pipelined)
        chunks = degrees.virtual_stages
        peak = peaks_by_kind(memory, self.model.layer_count // chunks, held, chunks)
        lightest: Floats = peak.min(axis=-2)
        return lightest

    def holds_all(self, degrees: Degrees, pool: Pool) -> bool:
        """Whether a stage can be the whole pipeline."""
        memory = self.memory(degrees, pool, pipelined=False)
        peak = memory.peak_bytes(self._each[-1], self._each[-1], is_first=True, is_last=True)
        return bool(peak <= self.room(pool))

    def range_peaks(
        self, degrees: Degrees, pool: Pool, held: Held, *, first: bool, last: bool, pipelined: bool
    ) -> Floats:
        """Peak bytes of a stage with layers i to j - 1 of a chunk, [layers + 1, layers + 1].

        For j >= i; all chunks have the same place.
        """
        memory = self.memory(degrees, pool, pipelined=pipelined)
        moments = np.array(held)
        size = self.model.layer_count // moments.shape[1]
        starts = size * np.arange(moments.shape[1])[:, None]
        each = self._each[starts + np.arange(size + 1)]
        layers = np.maximum(each[:, None, :, :] - each[:, :, None, :], 0)
        peaks: Floats = memory.peak_bytes(
            layers.sum(axis=0),
            np.tensordot(moments, layers, axes=1),
            is_first=first,
            is_last=last,
            first_in_flight=moments[:, 0, None, None],
        ).max(axis=0)
        return peaks

    def ranges(
        self, degrees: Degrees, pool: Pool, held: Held, *, first: bool, last: bool, pipelined: bool
    ) -> Bools:
        """Whether layers i to j - 1 of a chunk fit on a stage, [layers + 1, layers + 1]."""
        key = (degrees, pool.device_type, held, first, last, pipelined)
        if key not in self._ranges:
            peak = self.range_peaks(
                degrees, pool, held, first=first, last=last, pipelined=pipelined
            )
            ordered = np.arange(len(peak))[:, None] <= np.arange(len(peak))[None, :]
            self._ranges[key] = (peak <= self.room(pool)) & ordered
        return self._ranges[key]

    def stops(
        self, degrees: Degrees, pool: Pool, held: Held, *, first: bool, last: bool, pipelined: bool
    ) -> Ints:
        """The layer up to which a stage that begins with layer i can hold layers, [layers + 1].

        It is i - 1 where the stage cannot even exist without layers.
        """
        if self._each.shape[1] == 1:
            start = np.arange(self.model.layer_count // degrees.virtual_stages + 1)
            if degrees.virtual_stages == 1:
                table = self.most_layers(degrees, pool, held[0][0], pipelined=pipelined)
                most = int(table[2 * first + last, -1])
            else:
                most = self._most_alike(
                    degrees, pool, held, first=first, last=last, pipelined=pipelined
                )
            alike: Ints = np.minimum(start + most, start[-1])
            return alike
        fits = self.ranges(degrees, pool, held, first=first, last=last, pipelined=pipelined)
        stops: Ints = np.arange(len(fits)) + fits.sum(axis=1) - 1
        return stops

    def _most_alike(
        self, degrees: Degrees, pool: Pool, held: Held, *, first: bool, last: bool, pipelined: bool
    ) -> int:
        """Most layers of each chunk that a stage holds where all layers are alike."""
        key = (degrees, pool.device_type, held, first, last, pipelined)
        if key not in self._alike:
            memory = self.memory(degrees, pool, pipelined=pipelined)
            moments = np.array(held)
            number = np.arange(self.model.layer_count // moments.shape[1] + 1)[:, None]
            peaks = memory.peak_bytes(
                moments.shape[1] * number,
                moments.sum(axis=1)[:, None, None] * number,
                is_first=first,
                is_last=last,
                first_in_flight=moments[:, :1],
            ).max(axis=0)
            self._alike[key] = int((peaks <= self.room(pool)).sum()) - 1
        return self._alike[key]


@dataclass(frozen=True, slots=True, eq=False)
class Rooms:
    """Most layers that whole shapes can hold, from sums over the stages of a row.

    `sums[r, h]` are the layers that fit on h middle stages of row r with 1 to h micro-batches in
    flight; `most[r]` is the table of `Limits.most_layers`, negative entries as they are.
    """

    sums: Ints
    most: Ints
    single: Ints

    @classmethod
    def of(
        cls,
        limits: Limits,
        rows: Sequence[tuple[Degrees, Pool]],
        deepest: int,
        alone: Sequence[bool],
    ) -> Rooms:
        """The tables of kinds of stages; `alone` says which may be a whole pipeline."""
        most = np.full((len(rows), 4, deepest), -1, dtype=np.int64)
        single = np.full(len(rows), -1, dtype=np.int64)
        for index, (degrees, pool) in enumerate(rows):
            if deepest > 1:
                most[index] = limits.most_layers(degrees, pool, deepest, pipelined=True)
            if alone[index] and limits.holds_all(degrees, pool):
                single[index] = limits.model.layer_count
        return cls.of_tables(most, single)

    @classmethod
    def of_tables(cls, most: Ints, single: Ints) -> Rooms:
        """From the most layers of a stage by row, role and micro-batches in flight, and alone."""
        # A middle stage without room for one layer spoils the whole shape.
        middle = np.where(most[:, 0, :] < 1, -NEVER, most[:, 0, :])
        sums = np.zeros((len(most), most.shape[2] + 1), dtype=np.int64)
        np.cumsum(middle, axis=1, out=sums[:, 1:])
        return cls(sums, most, single)

    @property
    def worst(self) -> Ints:
        """Layers that a stage of a row can hold where it holds most micro-batches, [rows]."""
        found: Ints = np.maximum(self.most[:, 0, -1], 0)
        return found

    def by_time(self, caps: Ints) -> Ints:
        """Layers that the last n stages of a pipeline can hold, each at most `caps` of its row.

        [rows, stages + 1]; no other n stages of the row hold more, and the ends hold less.
        """
        each = np.minimum(np.maximum(self.most[:, 0], 0), caps[:, None])
        found = np.zeros((each.shape[0], each.shape[1] + 1), dtype=np.int64)
        np.cumsum(each, axis=1, out=found[:, 1:])
        return found

    @property
    def largest(self) -> Ints:
        """Layers that no stage of a row exceeds, wherever it is, [rows]."""
        found: Ints = np.maximum(self.most[:, :, 0].max(axis=1), self.single)
        return found

    @property
    def smallest(self) -> Ints:
        """Layers that any stage of a row can hold, wherever it is, [rows]."""
        found: Ints = np.minimum(self.most.min(axis=(1, 2)), self.single)
        return found

    def of_run(self, row: Ints, number: Ints, after: Ints, *, first: bool, last: bool) -> Ints:
        """Layers that fit on a run of `number` stages with `after` stages behind it, [candidates].

        Negative where a stage cannot exist; `first` and `last` say whether the run holds the ends.
        """
        total = self.sums[row, after + number] - self.sums[row, after]
        if first:
            depth = after + number
            head = self.most[row, 2, depth - 1]
            total = total + head - (self.sums[row, depth] - self.sums[row, depth - 1])
            total = np.where(head < 0, -NEVER, total)
        if last:
            tail = self.most[row, 1, 0]
            total = np.where(tail < 0, -NEVER, total + tail - self.sums[row, 1])
        if first and last:
            total = np.where(number == 1, self.single[row], total)
        found: Ints = total
        return found

    def layers(self, rows: Ints, counts: Ints) -> Ints:
        """Layers that fit on shapes [candidates, runs]; negative where a stage cannot exist."""
        after = counts.sum(axis=1)
        found = np.zeros(len(rows), dtype=np.int64)
        runs = rows.shape[1]
        for run in range(runs):
            after = after - counts[:, run]
            found += self.of_run(
                rows[:, run], counts[:, run], after, first=run == 0, last=run + 1 == runs
            )
        return found


def peaks_by_kind(memory: StageMemoryModel, most: int, held: int, chunks: int = 1) -> Floats:
    """Peak bytes of stages of equal layers, [role, micro-batches in flight, kind, layers].

    Roles are a stage in the middle, the last, the first, and one all alone; up to `held`
    micro-batches, `most` layers. With several `chunks`, of each of which a stage has so many
    layers, it is the least: the number in flight is that of the stages from it on.
    """
    # Axes: role, micro-batches in flight, kind of layer, number of layers; then its columns.
    kinds = np.eye(len(memory.kinds), dtype=np.int64)
    layers = chunks * np.arange(most + 1)[:, None] * kinds[:, None, :]
    flying = np.arange(1, held + 1)
    if chunks > 1 and len(kinds) > 1:
        # Nothing says which kinds it is that the stage holds most micro-batches of.
        flying = np.ones(held, dtype=np.int64)
    role = np.arange(4)[:, None, None, None]
    return memory.peak_bytes(
        layers[None, None],
        (flying[:, None, None, None] * layers)[None],
        is_first=role // 2,
        is_last=role % 2,
        first_in_flight=flying[:, None, None] if chunks == 1 else 1,
    )
