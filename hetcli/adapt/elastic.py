"""Batches that a changed number of devices can run: the same one, or one in a band around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hetcli.errors import InfeasibleError

__all__ = ["ElasticBatch", "elastic_batches", "elastic_micro_batch", "nearest_usable"]


@dataclass(frozen=True, slots=True)
class ElasticBatch:
    """`samples` of each data-parallel rank in a step, and the global batch that they make."""

    samples: int
    global_batch: int


def elastic_batches(ranks: int, global_batch: int, tolerance: float) -> tuple[ElasticBatch, ...]:
    """All batches within `tolerance` (a share) of `global_batch` that `ranks` can split evenly.

    Empty when there is none.
    """
    # The band's ends belong to it, whatever floats make of them.
    low = math.ceil(global_batch * (1 - tolerance) / ranks - 1e-9)
    high = math.floor(global_batch * (1 + tolerance) / ranks + 1e-9)
    return tuple(ElasticBatch(samples, samples * ranks) for samples in range(max(low, 1), high + 1))


def nearest_usable(ranks: int, step: int, global_batch: int, tolerance: float) -> int | None:
    """The largest smaller number of ranks, in steps of `step`, that has a batch within the band."""
    for fewer in range(ranks - step, 0, -step):
        if elastic_batches(fewer, global_batch, tolerance):
            return fewer
    return None


def elastic_micro_batch(
    global_batch: int, devices: int, model_parallel: int, choices: Sequence[int]
) -> int:
    """The largest micro-batch of `choices` that divides what each data-parallel rank works on.

    Ranks are groups of `model_parallel` devices, not devices. Raises InfeasibleError when the batch
    cannot be split, or no choice divides.
    """
    ranks = devices // model_parallel
    if devices % model_parallel or ranks == 0 or global_batch % ranks:
        raise InfeasibleError(
            f"a global batch of {global_batch} on {devices} devices in groups of {model_parallel}",
            why=f"{devices} / {model_parallel} data-parallel ranks must divide it",
            fix=f"a batch that is a multiple of {max(ranks, 1)}",
        )
    share = global_batch // ranks
    fitting = [choice for choice in choices if share % choice == 0]
    if not fitting:
        raise InfeasibleError(
            f"no micro-batch of {list(choices)} divides the {share} sequences of a rank",
            why=f"{global_batch} / {ranks} = {share}",
            fix=f"allow a micro-batch that divides {share}",
        )
    return max(fitting)
