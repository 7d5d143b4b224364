"""Sequences of tokens and the tokens that follow them, the same ones however the job is split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class Tokens:
    """Sequences cut from an array of token numbers, or of random ones; they repeat for ever."""

    def __init__(self, path: Path | None, sequence: int, vocabulary: int, seed: int) -> None:
        self.sequence, self.vocabulary, self.seed = sequence, vocabulary, seed
        self.array = None if path is None else np.load(path, mmap_mode="r")
        if self.array is not None and len(self.array) <= sequence:
            raise SystemExit(f"{path} holds {len(self.array)} tokens; a sequence is {sequence}")

    def __getitem__(self, index: int) -> Tensor:
        """One token more than a sequence has."""
        size = self.sequence + 1
        if self.array is None:
            generator = torch.Generator().manual_seed(self.seed + index)
            return torch.randint(self.vocabulary, (size,), generator=generator)
        first = index % ((len(self.array) - 1) // self.sequence) * self.sequence
        return torch.from_numpy(self.array[first : first + size].astype(np.int64))


def micro_batches(
    tokens: Tokens, step: int, replicas: list[list[int]], replica: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The micro-batches of one replica in one step (counted from 0).

    `replicas` holds the sizes of the micro-batches of every replica. In each turn the replicas take
    their sequences one after the other.
    """
    position = step * sum(map(sum, replicas))
    for turn in zip(*replicas, strict=True):
        first = position + sum(turn[:replica])
        batch = torch.stack([tokens[first + offset] for offset in range(turn[replica])])
        yield batch[:, :-1], batch[:, 1:]
        position += sum(turn)
