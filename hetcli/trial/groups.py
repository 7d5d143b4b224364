"""Collectives over some of the ranks, and the creation of their process groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from hetcli.trial.pace import Pace

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Group", "Groups"]

# PyTorch renames these two; the old names warn where the new ones exist.
_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_into = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Group:
    """The ranks of a collective, ascending, as one of them sees it; alone, nothing is sent."""

    def __init__(self, handle: Any, ranks: Sequence[int], rank: int, pace: Pace) -> None:
        self._handle = handle
        self._pace = pace
        self.size = len(ranks)
        self.rank = ranks.index(rank)

    def all_reduce(self, tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            with self._pace.communicating():
                dist.all_reduce(tensor, operation, group=self._handle)
        return tensor

    def all_gather(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The tensors of all ranks, one after the other along `dim`."""
        if self.size == 1:
            return tensor
        part = tensor.movedim(dim, 0).contiguous()
        whole = part.new_empty((self.size * part.shape[0], *part.shape[1:]))
        with self._pace.communicating():
            _gather_into(whole, part, group=self._handle)
        return whole.movedim(0, dim)

    def reduce_scatter(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """This rank's part along `dim` of the sum over all ranks."""
        if self.size == 1:
            return tensor
        whole = tensor.movedim(dim, 0).contiguous()
        part = whole.new_empty((whole.shape[0] // self.size, *whole.shape[1:]))
        with self._pace.communicating():
            _scatter_into(part, whole, group=self._handle)
        return part.movedim(0, dim)

    def exchange(self, tensor: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """All-to-all of rows: `send[r]` of them go to rank r, `receive[r]` come from it."""
        if self.size == 1:
            return tensor
        found = tensor.new_empty((sum(receive), *tensor.shape[1:]))
        with self._pace.communicating():
            dist.all_to_all_single(
                found, tensor.contiguous(), list(receive), list(send), group=self._handle
            )
        return found

    def start_all_reduce(self, tensor: Tensor) -> Any:
        """Begin `all_reduce`; the result has a `wait()`."""
        return dist.all_reduce(tensor, group=self._handle, async_op=True)

    def start_reduce_scatter(self, part: Tensor, whole: Tensor) -> Any:
        """Begin to put this rank's part of the sum of `whole` into `part`."""
        return _scatter_into(part, whole, group=self._handle, async_op=True)

    def start_all_gather(self, whole: Tensor, part: Tensor) -> Any:
        """Begin to put everyone's `part` into `whole`."""
        return _gather_into(whole, part, group=self._handle, async_op=True)


class Groups:
    """The process groups of one process: each set of ranks gets one, however many plans use it."""

    def __init__(self, rank: int, pace: Pace) -> None:
        self._rank = rank
        self._pace = pace
        self._handles: dict[tuple[int, ...], Any] = {}

    def make(self, wanted: Iterable[Sequence[int]]) -> None:
        """Create a process group for every set of ranks; all ranks call this with the same sets."""
        for ranks in sorted({tuple(each) for each in wanted if len(each) > 1}):
            if ranks not in self._handles:
                self._handles[ranks] = dist.new_group(list(ranks))

    def of(self, ranks: Sequence[int]) -> Group:
        """The group of these ranks, which this one belongs to."""
        members = tuple(ranks)
        return Group(self._handles.get(members), members, self._rank, self._pace)
