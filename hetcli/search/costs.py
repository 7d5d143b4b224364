"""What one family of candidates costs, as arrays over layers, for every kind of stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetcli.search.layout import Degrees
from hetcli.search.pools import Pool
from hetcli.search.tail import Tail, cumulated, folded
from hetcli.spec.workload import RecomputeChoice

__all__ = ["Family", "Passes", "Row"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """Seconds of one micro-batch on one pool, forward and backward.

    `layers` [2, layers + 1] are cumulated over the layers of a chunk, all chunks together, `chunks`
    [2, chunks, layers + 1] those of each chunk; `ends` [2, roles] is what a stage does beside them.
    """

    layers: Floats
    chunks: Floats
    ends: Floats

    @classmethod
    def of(cls, each: Floats, ends: Floats, chunks: int) -> Passes:
        """From the seconds of every layer of the model, [2, layers]."""
        split = folded(each, chunks)
        return cls(cumulated(split.sum(axis=1)), cumulated(split), ends)


@dataclass(frozen=True, eq=False)
class Row:
    """Stages on one pool.

    `most` of them fit on it, up to `regular` all placed alike. `per_node` stages share a node, None
    where a stage has whole nodes or lies over their borders. They may recompute what `choices`
    says, most first, and take `passes` then; every other choice is faster than the one before it.
    """

    pool: Pool
    most: int
    regular: int
    per_node: int | None
    choices: tuple[RecomputeChoice, ...]
    passes: tuple[Passes, ...]
    tail: Tail


@dataclass(frozen=True, eq=False)
class Family:
    """Degrees with all their kinds of stages.

    A stage that has several chunks of the model has as many layers of each, so `layers` are those
    of a chunk: that many are shared by the stages.

    `send[a, b]` is one boundary transfer, one direction, from a stage of row a to one of row b on
    other nodes, `inside[a]` that between stages of one node; both infinite where there is none.
    `luckiest` are the same while no other rank of the stage sends.
    """

    degrees: Degrees
    micro_batches: int
    rows: tuple[Row, ...]
    send: Floats
    luckiest: Floats
    inside: Floats

    @cached_property
    def pool(self) -> Ints:
        """The pool of every row."""
        return np.array([row.pool.index for row in self.rows])

    @cached_property
    def most(self) -> Ints:
        """Stages that the pool of every row holds."""
        return np.array([row.most for row in self.rows])

    @cached_property
    def regular(self) -> Ints:
        """Stages of every row's pool up to which all are placed alike."""
        return np.array([row.regular for row in self.rows])

    @property
    def layers(self) -> int:
        """Layers of a chunk of the model; without chunks all of them."""
        return int(self.rows[0].passes[0].layers.shape[1]) - 1

    @cached_property
    def first_chunk(self) -> float:
        """The least part of the time of a stage's layers that its first chunk takes."""
        if self.degrees.virtual_stages == 1:
            return 1.0
        parts = [
            np.diff(each.chunks[:, 0].sum(axis=0)) / np.diff(each.layers.sum(axis=0))
            for row in self.rows
            for each in row.passes
        ]
        return float(min(part.min() for part in parts))

    @property
    def even_chunks(self) -> bool:
        """Whether the chunks of a stage all take as long, the ends apart."""
        return self.first_chunk * self.degrees.virtual_stages > 1 - 1e-9

    @property
    def waits(self) -> int:
        """How often a message of a boundary blocks each of its two stages.

        That is when the stage sends it; DeepSpeed's stages receive in turn, too. Between model
        chunks messages hide behind the computation of other chunks.
        """
        if self.degrees.virtual_stages > 1:
            return 0
        return 2 if self.degrees.framework == "deepspeed" else 1

    @cached_property
    def least_send(self) -> Floats:
        """The fastest boundary between two stages of a row."""
        return np.minimum(self.inside, np.diagonal(self.luckiest))

    @cached_property
    def least_across(self) -> Floats:
        """The fastest boundary between stages of two rows, whichever comes first, [rows, rows]."""
        placed_alike = (self.most <= self.regular)[:, None]
        found = np.where(placed_alike, self.send, self.luckiest)
        return np.minimum(found, found.T)
