"""Weights that are the same on every device layout, of which each device holds its slice."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from hetcli.trial.holders import Content
from hetcli.trial.parallel import Ranks

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Maker", "Shard", "Weights", "region_of"]

# Standard deviation of fresh weights, as in GPT-2.
_DEVIATION = 0.02


@dataclass(frozen=True)
class Shard:
    """How a weight is cut over tensor ranks: not at all (None), or along `dim`.

    Along it lie `blocks` blocks of equal rank (queries, keys and values; gate and up), each cut.
    """

    dim: int | None = None
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Maker:
    """Makes weights: for one model content, on one device, for its tensor rank."""

    content: Content
    seed: int
    device: torch.device
    dtype: torch.dtype
    rank: int
    size: int

    def normal(self, name: str, shape: Sequence[int], shard: Shard) -> Tensor:
        """Random numbers that depend on content and name only; this rank's slice of them."""
        key = f"{self.seed} {self.content.kind} {self.content.layer} {name}"
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(key.encode()))

        def draw(size: Sequence[int]) -> Tensor:
            whole = torch.empty(tuple(size), device=self.device, dtype=torch.float32)
            return whole.normal_(0.0, _DEVIATION, generator=generator)

        if shard.dim is None:
            return draw(shape).to(self.dtype)
        parts = []
        for block in shard.blocks:
            own = block // self.size
            size = [*shape[: shard.dim], block, *shape[shard.dim + 1 :]]
            parts.append(draw(size).narrow(shard.dim, self.rank * own, own).to(self.dtype))
        return torch.cat(parts, shard.dim)

    def constant(self, value: float, size: int) -> Tensor:
        """A vector of equal numbers (norms' scales, biases), whole or already sliced."""
        return torch.full((size,), value, device=self.device, dtype=self.dtype)


class Weights(nn.Module):
    """A module that knows how each of its weights is cut.

    `shards` is by the parameter's name in this module; `partial` names those replicated weights
    whose gradients the tensor ranks each have a part of. `borrows_embedding` says that it computes
    with the embedding's table.
    """

    borrows_embedding = False

    def __init__(self, maker: Maker, ranks: Ranks) -> None:
        super().__init__()
        self.maker = maker
        self.ranks = ranks
        self.shards: dict[str, Shard] = {}
        self.partial: set[str] = set()

    def matrix(self, name: str, rows: Sequence[int], columns: int, cut: int | None) -> nn.Parameter:
        """A [sum(rows), columns] weight cut along dimension 0, 1 or not; `rows` are its blocks."""
        blocks = tuple(rows) if cut == 0 else (columns,)
        shard = Shard() if cut is None else Shard(cut, blocks)
        return self._add(name, self.maker.normal(name, (sum(rows), columns), shard), shard)

    def vector(
        self, name: str, value: float, blocks: Sequence[int], *, cut: bool = False
    ) -> nn.Parameter:
        """A vector of sum(blocks) equal numbers."""
        size = sum(block // self.maker.size if cut else block for block in blocks)
        shard = Shard(0, tuple(blocks)) if cut else Shard()
        return self._add(name, self.maker.constant(value, size), shard)

    def _add(self, name: str, data: Tensor, shard: Shard) -> nn.Parameter:
        weight = nn.Parameter(data)
        self.register_parameter(name, weight)
        self.shards[name] = shard
        if shard.dim is None and self.ranks.sequence_parallel:
            self.partial.add(name)
        return weight


def region_of(tensor: Tensor, shard: Shard, ranks: int, region: int, regions: int) -> list[Tensor]:
    """Views of those parts of a rank's slice that lie in `region`; replicated weights in each.

    `ranks` is the tensor-parallel degree of the slice; `region` counts from its own first one, of
    the `regions` that the whole weight is cut into.
    """
    if shard.dim is None:
        return [tensor]
    found, offset = [], 0
    for block in shard.blocks:
        length = block // regions
        found.append(tensor.narrow(shard.dim, offset + region * length, length))
        offset += block // ranks
    return found
