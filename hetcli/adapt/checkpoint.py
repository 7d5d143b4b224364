"""How often to save, what failures cost all the same, and how many nodes to hold in reserve."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "Saving",
    "best_interval",
    "mean_time_between_failures",
    "spare_nodes",
    "spares_that_pay",
    "work_share",
]


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


def _in_repair(count: int, mean: float) -> float:
    """Probability that `count` nodes are in repair: Poisson, by Palm's theorem."""
    if mean == 0:
        return float(count == 0)
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def work_share(
    nodes: int, spares: int, node_mtbf_s: float, repair_s: float, share_without: float
) -> float:
    """Expected speed of a job on `nodes`, as a share of that with all of them.

    Each node that is missing when the spares are used up leaves `share_without` of the speed: 0
    for a job that waits for the repair. Nodes in repair follow a Poisson distribution of mean
    nodes x repair / MTBF.
    """
    mean = nodes * repair_s / node_mtbf_s
    return math.fsum(
        _in_repair(count, mean) * share_without ** max(0, count - spares)
        for count in range(spares + nodes + 1)
    )


def spares_that_pay(
    nodes: int, node_mtbf_s: float, repair_s: float, share_without: float
) -> tuple[int, float]:
    """How many spare nodes bring most work for each node held, and the job's speed with them.

    The speed is a share of that with all nodes (`work_share`).
    """
    mean = nodes * repair_s / node_mtbf_s
    # So many are hardly ever in repair at once.
    most = min(nodes, math.ceil(mean + 10 * math.sqrt(mean)) + 10)
    speeds = [
        work_share(nodes, spares, node_mtbf_s, repair_s, share_without)
        for spares in range(most + 1)
    ]
    best = max(range(most + 1), key=lambda spares: (speeds[spares] / (nodes + spares), -spares))
    return best, speeds[best]


def spare_nodes(nodes: int, node_mtbf_s: float, repair_s: float, confidence: float = 0.99) -> int:
    """The fewest spare nodes with which the job has all its nodes with probability `confidence`.

    Nodes in repair at a time follow a Poisson distribution of mean nodes x repair / MTBF. Raises
    ValueError for a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError("the confidence lies between 0 and 1")
    mean = nodes * repair_s / node_mtbf_s
    total = _in_repair(0, mean)
    spares = 0
    while total < confidence:
        spares += 1
        total += _in_repair(spares, mean)
        if spares > 10 * nodes + 100:
            break
    return spares
