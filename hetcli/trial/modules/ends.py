"""The embedding at the start of the model, and the head with the loss at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from hetcli.spec.model.architecture import Model
from hetcli.trial.modules.layer import Normalised
from hetcli.trial.modules.weights import Maker, Weights
from hetcli.trial.parallel import Ranks, enter, leave, linear

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Embedding", "Head"]


class Embedding(Weights):
    """Word table, cut over the vocabulary, with whatever the model adds to it."""

    def __init__(self, maker: Maker, ranks: Ranks, model: Model, vocabulary: int) -> None:
        super().__init__(maker, ranks)
        self._model = model
        width = model.embedding_size or model.hidden_size
        self.words = self.matrix("words", (vocabulary,), width, cut=0)
        self._project = None
        if model.embedding_size is not None:
            self._project = self.matrix("project", (model.hidden_size,), width, cut=None)
        self._table = None
        if model.positions.table_size:
            rows = (model.positions.table_size,)
            self._table = self.matrix("positions", rows, model.hidden_size, cut=None)
        self.norm = None
        if model.embedding_norm:
            self.norm = Normalised(maker, ranks, model.norm, "norm", model.hidden_size)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[sequences, tokens of the context rank] to [sequences, own tokens, hidden]."""
        own = self.words.shape[0]
        local = tokens - self.maker.rank * own
        elsewhere = (local < 0) | (local >= own)
        looked_up = F.embedding(local.masked_fill(elsewhere, 0), self.words)
        x = leave(looked_up.masked_fill(elsewhere[..., None], 0.0), self.ranks)
        if self._project is not None:
            x = linear(x, self._project, None, self.ranks)
        if self._model.embedding_scale is not None:
            x = x * self._model.embedding_scale
        if self._table is not None:
            if self.ranks.sequence_parallel:
                positions = positions.chunk(self.ranks.tensor.size)[self.ranks.tensor.rank]
            x = x + self._table[positions]
        return x if self.norm is None else self.norm(x)


class Head(Weights):
    """Final norm, logits over the vocabulary, and the cross-entropy of the next tokens."""

    def __init__(
        self,
        maker: Maker,
        ranks: Ranks,
        model: Model,
        vocabulary: int,
        embedding: Embedding | None,
    ) -> None:
        super().__init__(maker, ranks)
        self._model = model
        width = model.embedding_size or model.hidden_size
        self.norm = None
        if model.final_norm:
            self.norm = Normalised(maker, ranks, model.norm, "norm", model.hidden_size)
        self._project = None
        if model.embedding_size is not None:
            self._project = self.matrix("project", (width,), model.hidden_size, cut=None)
        # A tied table belongs to the embedding, also where this device holds a copy of it.
        self._tied = () if embedding is None else (embedding,)
        self.borrows_embedding = embedding is not None
        self._own = None
        if embedding is None:
            self._own = self.matrix("words", (vocabulary,), width, cut=0)
        self._bias = None
        if model.head_bias:
            self._bias = self.vector("bias", 0.0, (vocabulary,), cut=True)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The sum of the losses of all tokens, which every tensor rank gets whole."""
        if self.norm is not None:
            x = self.norm(x)
        if self._project is not None:
            x = linear(x, self._project, None, self.ranks)
        words = self._tied[0].words if self._tied else self._own
        assert words is not None
        logits = linear(enter(x, self.ranks), words, self._bias, self.ranks).float()
        cap = self._model.logit_softcap
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        return self._loss(logits, targets)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over a vocabulary cut over the ranks (arXiv 1909.08053, section 3)."""
        group = self.ranks.tensor
        highest = logits.detach().amax(-1)
        highest = group.all_reduce(highest, dist.ReduceOp.MAX)
        local = targets - group.rank * logits.shape[-1]
        elsewhere = (local < 0) | (local >= logits.shape[-1])
        index = local.masked_fill(elsewhere, 0)[..., None]
        shifted = logits - highest[..., None]
        right = shifted.gather(-1, index)[..., 0].masked_fill(elsewhere, 0.0)
        plain = Ranks(group, self.ranks.context, self.ranks.expert, self.ranks.expert_tensor)
        total, right = leave(torch.stack([shifted.exp().sum(-1), right]), plain)
        return (total.log() - right).sum()
