"""Adding up gradients among the holders of the same weights, and updating the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from hetcli.trial.groups import Group
from hetcli.trial.holders import Content, Part
from hetcli.trial.modules.weights import Shard, Weights, region_of

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Synchronisation"]

_LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class _Piece:
    """What of one weight lies in a part's region."""

    weight: nn.Parameter
    shard: Shard
    degree: int
    region: int
    regions: int

    def of(self, tensor: Tensor) -> list[Tensor]:
        """Views of `tensor`, which is the weight itself or its gradient."""
        return region_of(tensor, self.shard, self.degree, self.region, self.regions)

    def gradients(self) -> list[Tensor]:
        """The gradient's views; of a weight that was not used, zeros."""
        gradient = self.weight.grad
        return self.of(torch.zeros_like(self.weight) if gradient is None else gradient)


@dataclass
class _Share:
    """One part on this device: `master` is what it updates of it, in fp32."""

    part: Part
    group: Group
    pieces: tuple[_Piece, ...]
    master: Tensor
    length: int
    ready: bool = False
    flat: Tensor | None = None
    work: Any = None


@dataclass
class _Queue:
    """The parts of one group in the order in which all its members start them."""

    shares: list[_Share] = field(default_factory=list)
    started: int = 0


class Synchronisation:
    """The gradients and weights of one device.

    A part's collective starts when its last gradient is there (with `overlap`), or at the end. With
    `zero_stage` 0 every holder gets the whole sum and updates all; otherwise each gets and updates
    its share, and the updated shares are gathered. That is waited for where a content is used next
    (with `overlap_gather`), or at once.
    """

    def __init__(
        self,
        modules: Mapping[Content, Weights],
        parts: Sequence[Part],
        groups: Mapping[Part, Group],
        *,
        tensor: Group,
        zero_stage: int,
        gradient_dtype: torch.dtype,
        overlap: bool,
        overlap_gather: bool,
        optimizer: Literal["adam", "sgd"],
    ) -> None:
        self._modules = modules
        self._tensor = tensor
        self._sharded = zero_stage > 0
        self._dtype = gradient_dtype
        self._overlap, self._overlap_gather = overlap, overlap_gather
        self._shares: dict[Content, list[_Share]] = {}
        for part in parts:
            self._shares.setdefault(part.content, []).append(self._share(part, groups[part]))
        # Backward passes finish the last layers first.
        self._queues: dict[tuple[object, ...], _Queue] = {}
        for share in reversed(self._all()):
            self._queues.setdefault(share.part.members, _Queue()).shares.append(share)
        masters = [share.master for share in self._all()]
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(masters, lr=_LEARNING_RATE, foreach=True)
            if optimizer == "adam"
            else torch.optim.SGD(masters, lr=_LEARNING_RATE, foreach=True)
        )
        self._gathers: dict[Content, list[tuple[_Share, Tensor, Any]]] = {}

    def _all(self) -> list[_Share]:
        return [share for shares in self._shares.values() for share in shares]

    def _share(self, part: Part, group: Group) -> _Share:
        module = self._modules[part.content]
        # A device's experts are one region; of other contents it may hold several.
        degree = module.maker.size
        local, regions = 0, degree
        if part.content.kind != "experts":
            regions = part.regions
            local = part.region - self._tensor.rank * regions // degree
        pieces = tuple(
            _Piece(weight, owner.shards[name], degree, local, regions)
            for owner, name, weight in _weights(module)
        )
        views = [view for piece in pieces for view in piece.of(piece.weight.data)]
        length = sum(view.numel() for view in views)
        padded = -(-length // group.size) * group.size
        master = _flat(views, padded, torch.float32)
        if self._sharded:
            master = _own(master, group).clone()
        return _Share(part, group, pieces, master, padded)

    def ready(self, content: Content) -> None:
        """The gradients of a content are complete."""
        self._add_partial(content)
        for share in self._shares[content]:
            share.ready = True
        if self._overlap:
            self._start()

    def _add_partial(self, content: Content) -> None:
        """Add up what the tensor ranks each have a part of."""
        if self._tensor.size == 1:
            return
        partial = [
            (weight, weight.grad)
            for owner, name, weight in _weights(self._modules[content])
            if name in owner.partial and weight.grad is not None
        ]
        if partial:
            flat = torch.cat([gradient.reshape(-1) for _, gradient in partial])
            totals = self._tensor.all_reduce(flat).split([each.numel() for each, _ in partial])
            for (weight, _), total in zip(partial, totals, strict=True):
                weight.grad = total.view_as(weight)

    def _start(self) -> None:
        for queue in self._queues.values():
            while queue.started < len(queue.shares) and queue.shares[queue.started].ready:
                self._reduce(queue.shares[queue.started])
                queue.started += 1

    def _reduce(self, share: _Share) -> None:
        views = [view for piece in share.pieces for view in piece.gradients()]
        share.flat = _flat(views, share.length, self._dtype)
        if share.group.size == 1:
            return
        if not self._sharded:
            share.work = share.group.start_all_reduce(share.flat)
            return
        whole = share.flat
        share.flat = torch.empty_like(_own(whole, share.group))
        # The work keeps what it sends.
        share.work = (share.group.start_reduce_scatter(share.flat, whole), whole)

    def finish(self) -> Tensor:
        """Wait for all sums; returns the squared norm of what this device updates of them."""
        for share in self._all():
            share.ready = True
        self._start()
        squared = torch.zeros((), device=self._device)
        for share in self._all():
            work = share.work[0] if isinstance(share.work, tuple) else share.work
            if work is not None:
                work.wait()
            share.work = None
            assert share.flat is not None
            share.master.grad = share.flat.float()
            # Everyone holds the same where nothing is cut.
            copies = 1 if self._sharded else share.group.size
            squared += share.master.grad.square().sum() / copies
        return squared

    def update(self) -> None:
        """One optimizer step, and the start of gathering the new weights."""
        self._optimizer.step()
        for queue in self._queues.values():
            queue.started = 0
        for content, shares in self._shares.items():
            for share in shares:
                share.ready, share.flat = False, None
                for piece in share.pieces:
                    piece.weight.grad = None
                self._spread(content, share)
        if not self._overlap_gather:
            for content in self._shares:
                self.ensure(content)

    def _spread(self, content: Content, share: _Share) -> None:
        new = share.master.detach()
        if not self._sharded or share.group.size == 1:
            _write(share, new)
            return
        own = new.to(self._modules[content].maker.dtype)
        whole = own.new_empty(share.length)
        work = share.group.start_all_gather(whole, own)
        self._gathers.setdefault(content, []).append((share, whole, work))

    def ensure(self, content: Content) -> None:
        """Wait until a content's weights are the new ones."""
        for share, whole, work in self._gathers.pop(content, ()):
            work.wait()
            _write(share, whole)

    def summed(self) -> dict[tuple[str, int, int, int], list[tuple[int | None, Tensor]]]:
        """The last step's sums, by (kind, layer, region, regions) of the part.

        Of every block of every weight in order, the dimension along which regions follow each
        other (None: every region has it whole), and this region's sum. All holders call it.
        """
        found: dict[tuple[str, int, int, int], list[tuple[int | None, Tensor]]] = {}
        for share in self._all():
            gradient = share.master.grad
            assert gradient is not None
            whole = share.group.all_gather(gradient) if self._sharded else gradient
            sums: list[tuple[int | None, Tensor]] = []
            offset = 0
            for piece in share.pieces:
                for view in piece.of(piece.weight.data):
                    part = whole.narrow(0, offset, view.numel()).view(view.shape)
                    sums.append((piece.shard.dim, part.clone()))
                    offset += view.numel()
            found[*share.part.content, share.part.region, share.part.regions] = sums
        return found

    @property
    def _device(self) -> torch.device:
        return next(iter(self._modules.values())).maker.device


def _weights(module: Weights) -> Iterator[tuple[Weights, str, nn.Parameter]]:
    for owner in module.modules():
        if isinstance(owner, Weights):
            for name, weight in owner.named_parameters(recurse=False):
                yield owner, name, weight


def _flat(views: Sequence[Tensor], length: int, dtype: torch.dtype) -> Tensor:
    """The views one after the other, with zeros up to `length`."""
    joined = torch.cat([view.reshape(-1).to(dtype) for view in views])
    return torch.nn.functional.pad(joined, (0, length - joined.numel()))


def _own(whole: Tensor, group: Group) -> Tensor:
    size = whole.numel() // group.size
    return whole.narrow(0, group.rank * size, size)


def _write(share: _Share, flat: Tensor) -> None:
    offset = 0
    for piece in share.pieces:
        for view in piece.of(piece.weight.data):
            view.copy_(flat.narrow(0, offset, view.numel()).view_as(view))
            offset += view.numel()
