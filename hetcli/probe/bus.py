"""Bus bandwidth as nccl-tests defines it, so that numbers can be compared across group sizes."""

from __future__ import annotations

from hetcli.spec.profile import LinkOperation

__all__ = ["bus_factor"]


def bus_factor(operation: LinkOperation, ranks: int) -> float:
    """What algbw is multiplied by to get busbw: nccl-tests, doc/PERFORMANCE.md.

    All-reduce 2(n-1)/n; all-gather, reduce-scatter and all-to-all (n-1)/n; broadcast and
    send-receive 1. Raises ValueError for one rank, which moves nothing.
    """
    if ranks < 2:
        raise ValueError(
            f"{operation} over {ranks} rank moves nothing; at least 2 ranks are needed"
        )
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in {"all_gather", "reduce_scatter", "all_to_all"}:
        return (ranks - 1) / ranks
    return 1.0
