"""How often to save, what failures cost all the same, and how many nodes to hold in reserve."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Saving", "best_interval", "mean_time_between_failures", "spare_nodes"]


@dataclass(frozen=True, slots=True)
class Saving:
    """`interval_s` of training between two checkpoints; `goodput` is the share of time that counts.

    Lost are the writing itself, half an interval a failure, and the restart.
    """

    interval_s: float
    goodput: float
    writing: float
    repeated: float
    restarting: float


def best_interval(write_s: float, mtbf_s: float, restart_s: float = 0.0) -> Saving:
    """The interval that loses the least time, for checkpoints that stop training for `write_s`.

    Daly (Future Generation Computer Systems 22, 2006), eq. 37: sqrt(2dM) (1 + sqrt(d/2M)/3 +
    d/2M/9) - d for d < 2M, else M. The goodput is his eq. 20, exact for exponential failures:
    an interval t costs M exp(R/M) (exp((t + d)/M) - 1) of wall clock.

    Raises ValueError for times that are not positive.
    """
    if write_s <= 0 or mtbf_s <= 0 or restart_s < 0:
        raise ValueError("write_s and mtbf_s are more than 0, restart_s is not negative")
    ratio = write_s / (2 * mtbf_s)
    if ratio < 1:
        interval = math.sqrt(2 * write_s * mtbf_s)
        interval = interval * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s
    else:
        interval = mtbf_s
    return _saving(interval, write_s, mtbf_s, restart_s)


def _saving(interval: float, write_s: float, mtbf_s: float, restart_s: float) -> Saving:
    wall = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval + write_s) / mtbf_s)
    lost = wall - interval - write_s
    # Failures an interval, each of which costs its restart.
    restarts = min(lost, restart_s * wall / mtbf_s)
    return Saving(
        interval_s=interval,
        goodput=interval / wall,
        writing=write_s / wall,
        repeated=(lost - restarts) / wall,
        restarting=restarts / wall,
    )


def mean_time_between_failures(devices: int, device_mtbf_s: float) -> float:
    """Of a job on `devices` that fails when any of them does, independently."""
    return device_mtbf_s / devices


def spare_nodes(nodes: int, node_mtbf_s: float, repair_s: float, confidence: float = 0.99) -> int:
    """The fewest spare nodes with which the job has all its nodes with probability `confidence`.

    Nodes in repair at a time follow a Poisson distribution of mean nodes x repair / MTBF (Palm's
    theorem). Raises ValueError for a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError("the confidence lies between 0 and 1")
    mean = nodes * repair_s / node_mtbf_s
    term = total = math.exp(-mean)
    spares = 0
    while total < confidence:
        spares += 1
        term *= mean / spares
        total += term
        if spares > 10 * nodes + 100:
            break
    return spares
