"""Layers of a decoder-only language model, built from the model part of plan.json."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from attention import Attention
from parallel import Linear, Norm, Setup, copied, reduced, weight
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "relu_squared": lambda x: functional.relu(x).square(),
}


class FeedForward(nn.Module):
    """Two matrices, or three when gated."""

    def __init__(
        self,
        setup: Setup,
        name: str,
        shape: dict[str, Any],
        size: int,
        *,
        adapted: bool = True,
    ) -> None:
        super().__init__()
        self.setup = setup
        hidden = setup.model["hidden_size"]
        options = {"bias": shape["bias"], "adapted": adapted}
        self.activation = ACTIVATIONS[shape["activation"]]
        self.up = Linear(setup, f"{name}.up", hidden, size, split=0, **options)
        self.gate = None
        if shape["gated"]:
            self.gate = Linear(setup, f"{name}.gate", hidden, size, split=0, **options)
        self.down = Linear(setup, f"{name}.down", size, hidden, split=1, **options)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = copied(self.setup, hidden)
        if self.gate is None:
            return self.down(self.activation(self.up(hidden)))
        return self.down(self.activation(self.gate(hidden)) * self.up(hidden))


class Experts(nn.Module):
    """Routed experts and the shared one. Every expert runs in every step, with its tokens only.

    With ZeRO-3 all ranks must gather the same weights in the same order, also those of an expert
    that no token of theirs has chosen.
    """

    def __init__(self, setup: Setup, name: str, shape: dict[str, Any]) -> None:
        super().__init__()
        self.setup, self.shape = setup, shape
        hidden, count = setup.model["hidden_size"], shape["experts"]
        self.router = Linear(
            setup, f"{name}.router", hidden, count, bias=shape["router_bias"], adapted=False
        )
        self.experts = nn.ModuleList(
            FeedForward(setup, f"{name}.{number}", shape, shape["expert_size"], adapted=False)
            for number in range(count)
        )
        self.shared = None
        if shape["shared_size"]:
            self.shared = FeedForward(setup, f"{name}.shared", shape, shape["shared_size"])
        self.gate = None
        if shape["shared_gate"]:
            self.gate = Linear(setup, f"{name}.gate", hidden, 1, adapted=False)
        if shape["expert_bias"]:
            self.register_buffer("balance", torch.zeros(count))

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, -2)
        scores = self._scores(tokens)
        total = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            chosen = scores[:, number].nonzero().squeeze(-1)
            share = scores[chosen, number].unsqueeze(-1)
            total = total.index_add(0, chosen, (expert(tokens[chosen]) * share).to(total.dtype))
        if self.shared is not None:
            extra = self.shared(tokens)
            total = total + (extra if self.gate is None else extra * self.gate(tokens).sigmoid())
        return total.view_as(hidden)

    def _scores(self, tokens: Tensor) -> Tensor:
        """What each expert's output counts for each token; 0 for an expert that is not chosen."""
        shape = self.shape
        logits = self.router(tokens).float()
        softmax = shape["score_function"] == "softmax"
        scores = logits.softmax(-1) if softmax else logits.sigmoid()
        wanted = scores.detach() + (self.balance.float() if shape["expert_bias"] else 0.0)
        if shape["groups"] is not None:
            wanted = self._within_groups(wanted)
        chosen = wanted.topk(shape["top_k"], dim=-1).indices
        kept = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
        if shape["normalize_top_k"]:
            kept = kept / (kept.sum(-1, keepdim=True) + 1e-20)
        return (kept * shape["routed_scaling"]).to(tokens.dtype)

    def _within_groups(self, wanted: Tensor) -> Tensor:
        """Leave only the experts of the best groups; a group is as good as its two best experts."""
        grouped = wanted.unflatten(-1, (self.shape["groups"], -1))
        best = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
        kept = best.topk(self.shape["top_groups"], dim=-1).indices
        outside = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, False)
        return grouped.masked_fill(outside.unsqueeze(-1), -math.inf).flatten(1)


class Block(nn.Module):
    """One residual layer."""

    def __init__(self, setup: Setup, index: int, layer: dict[str, Any]) -> None:
        super().__init__()
        recompute = setup.recompute[index] if setup.recompute else "none"
        self.whole = recompute == "full"
        self.placement, self.parallel = layer["norm_placement"], layer["parallel"]
        hidden, name = setup.model["hidden_size"], f"layer.{index}"
        self.norms = nn.ModuleList(Norm(setup, hidden) for _ in range(layer["norms"]))
        self.parts = nn.ModuleList()
        if layer["attention"] is not None:
            selective = recompute == "selective"
            self.parts.append(Attention(setup, f"{name}.attention", layer["attention"], selective))
        shape = layer["feed_forward"]
        if shape is not None:
            name = f"{name}.feed_forward"
            routed = shape["kind"] == "moe"
            self.parts.append(
                Experts(setup, name, shape)
                if routed
                else FeedForward(setup, name, shape, shape["size"])
            )

    def forward(self, hidden: Tensor) -> Tensor:
        if self.whole and torch.is_grad_enabled():
            return checkpoint(self._layer, hidden, use_reentrant=False)
        return self._layer(hidden)

    def _layer(self, hidden: Tensor) -> Tensor:
        if self.parallel:
            normed = [norm(hidden) for norm in self.norms] or [hidden]
            for part, given in zip(self.parts, normed * len(self.parts), strict=False):
                hidden = hidden + part(given)
            return hidden
        for position, part in enumerate(self.parts):
            hidden = self._residual(hidden, part, position)
        return hidden

    def _residual(self, hidden: Tensor, part: nn.Module, position: int) -> Tensor:
        norms = self.norms
        match self.placement:
            case "pre":
                return hidden + part(norms[position](hidden) if norms else hidden)
            case "post":
                return norms[position](hidden + part(hidden))
            case "output":
                return hidden + norms[position](part(hidden))
            case "sandwich":
                before, after = norms[2 * position], norms[2 * position + 1]
                return hidden + after(part(before(hidden)))
        raise ValueError(self.placement)


class Words(nn.Module):
    """The matrix of the word embeddings, which a tied head shares."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup, model = setup, setup.model
        size = model["embedding_size"] or model["hidden_size"]
        self.rows = -(-model["vocab_size"] // setup.size)
        self.weight = weight(setup, "words", (self.rows * setup.size, size), 0)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.setup.size == 1:
            return functional.embedding(tokens, self.weight)
        local = tokens - self.setup.rank * self.rows
        foreign = (local < 0) | (local >= self.rows)
        words = functional.embedding(local.masked_fill(foreign, 0), self.weight)
        return reduced(self.setup, words.masked_fill(foreign.unsqueeze(-1), 0.0))


class Embedding(nn.Module):
    """What is done to word embeddings before the first layer."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        model, hidden = setup.model, setup.model["hidden_size"]
        size = model["embedding_size"] or hidden
        self.scale = model["embedding_scale"]
        self.project = (
            Linear(setup, "project", size, hidden, adapted=False) if size != hidden else None
        )
        self.norm = Norm(setup, hidden) if model["embedding_norm"] else None
        self.positions = None
        if model["positions"]["kind"] == "learned":
            rows = model["positions"]["table_size"]
            self.positions = weight(setup, "positions", (rows, hidden), None)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden if self.scale is None else hidden * self.scale
        hidden = hidden if self.project is None else self.project(hidden)
        if self.positions is not None:
            hidden = hidden + self.positions[: hidden.shape[1]]
        return hidden if self.norm is None else self.norm(hidden)


class FinalNorm(nn.Module):
    """What stands between the last layer and the output matrix."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup, model = setup, setup.model
        self.norm = Norm(setup, model["hidden_size"]) if model["final_norm"] else None
        self.project = None
        if model["embedding_size"] not in (None, model["hidden_size"]):
            size = model["embedding_size"]
            self.project = Linear(setup, "head.project", model["hidden_size"], size, adapted=False)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden if self.norm is None else self.norm(hidden)
        return hidden if self.project is None else self.project(hidden)


class Head(FinalNorm):
    """The final norm and an output matrix of its own."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        model = setup.model
        rows = -(-model["vocab_size"] // setup.size) * setup.size
        size = model["embedding_size"] or model["hidden_size"]
        self.output = Linear(
            setup, "head", size, rows, bias=model["head_bias"], split=0, adapted=False
        )

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = copied(self.setup, super().forward(hidden))
        return capped(self.setup, self.output(hidden))


def tied_logits(words: Words, hidden: Tensor) -> Tensor:
    """The logits of a head that shares the matrix of the word embeddings."""
    hidden = copied(words.setup, hidden)
    return capped(words.setup, functional.linear(hidden, words.weight))


def capped(setup: Setup, logits: Tensor) -> Tensor:
    """The logits, capped where the model says so."""
    cap = setup.model["logit_softcap"]
    return logits if cap is None else cap * torch.tanh(logits / cap)


class Loss:
    """The mean cross entropy of a micro-batch's tokens."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        setup = self.setup
        logits = logits.float().flatten(0, 1)
        labels = labels.flatten()
        first = setup.rank * logits.shape[-1]
        columns = torch.arange(first, first + logits.shape[-1], device=logits.device)
        # Rows that only pad the vocabulary never win.
        logits = logits.masked_fill(columns >= setup.model["vocab_size"], -torch.inf)
        if setup.size == 1:
            return functional.cross_entropy(logits, labels)
        highest = logits.detach().amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=setup.group)
        logits = logits - highest.unsqueeze(-1)
        local = labels - first
        foreign = (local < 0) | (local >= logits.shape[-1])
        own = logits.gather(1, local.masked_fill(foreign, 0).unsqueeze(-1)).squeeze(-1)
        own = reduced(setup, own.masked_fill(foreign, 0.0))
        return (reduced(setup, logits.exp().sum(-1)).log() - own).mean()
