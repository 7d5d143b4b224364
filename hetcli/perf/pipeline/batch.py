"""Makespans of many candidates at once: what `simulate` computes, in rows of NumPy numbers."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.simulate import check_edges
from hetcli.perf.pipeline.work import Kind, Schedule

__all__ = ["makespan_1f1b_batch", "makespan_batch"]

Floats = NDArray[np.float64]

# Candidates computed together: it bounds the memory for messages under way, and rows of this length
# stay in a core's cache (15 % faster than one row of 100,000). No effect on the result.
_BLOCK: Final = 4096


def makespan_batch(
    order: Schedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    send_s: ArrayLike | None = None,
    *,
    return_s: ArrayLike | None = None,
    weight_s: ArrayLike | None = None,
    overlap: bool = True,
    exclusive_links: bool = True,
) -> Floats:
    """Return the makespan [candidates] of one schedule for many sets of times, exactly.

    Times are as `simulate` takes them, with a first axis for the candidates: [candidates, stages],
    or [candidates, stages, chunks] where stages hold several chunks, and [candidates, edges] for
    transfers. The result equals `simulate(...).makespan_s` to the last bit.

    Raises ValueError for shapes that do not fit; times are not checked one by one.
    """
    candidates = len(np.asarray(forward_s))
    forward = _times(order, forward_s, candidates, "forward_s")
    backward = _times(order, backward_s, candidates, "backward_s")
    durations: dict[Kind, Floats] = {"forward": forward, "backward": backward}
    if order.splits_backward:
        if weight_s is None:
            raise ValueError(f"{order.name} splits the backward: weight_s is needed")
        durations["backward-weight"] = _times(order, weight_s, candidates, "weight_s")
        durations["backward-input"] = backward - durations["backward-weight"]
    send = _edges(order, send_s, candidates)
    back = send if return_s is None else _edges(order, return_s, candidates)
    links = [(back if against else send)[edge] for edge, against in order.edges]

    found = np.empty(candidates)
    for first in range(0, candidates, _BLOCK):
        block = slice(first, min(first + _BLOCK, candidates))
        found[block] = _makespan(
            order,
            {kind: np.ascontiguousarray(times[..., block]) for kind, times in durations.items()},
            [np.ascontiguousarray(seconds[block]) for seconds in links],
            overlap=overlap,
            exclusive_links=exclusive_links,
        )
    return found


def makespan_1f1b_batch(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    send_s: ArrayLike | None,
    micro_batches: int,
    *,
    return_s: ArrayLike | None = None,
    overlap: bool = True,
    exclusive_links: bool = True,
) -> Floats:
    """`makespan_batch` of the 1F1B schedule: [candidates, stages] and [candidates, stages - 1]."""
    stages = np.shape(forward_s)[-1]
    return makespan_batch(
        schedule("1f1b", stages, micro_batches),
        forward_s,
        backward_s,
        send_s,
        return_s=return_s,
        overlap=overlap,
        exclusive_links=exclusive_links,
    )


def _makespan(
    order: Schedule,
    durations: dict[Kind, Floats],
    links: list[Floats],
    *,
    overlap: bool,
    exclusive_links: bool,
) -> Floats:
    candidates = durations["forward"].shape[-1]
    free = np.zeros((order.stages, candidates))
    link_free = np.zeros((len(links), candidates))
    arrival: dict[int, Floats] = {}
    for stage, kind, _, chunk, received, sent, link in order.steps:
        clock = free[stage]
        if received >= 0:
            np.maximum(clock, arrival.pop(received), out=clock)
        clock += durations[kind][stage, chunk]
        if sent < 0:
            continue
        if exclusive_links:
            leave = np.maximum(clock, link_free[link])
            arrival[sent] = np.add(leave, links[link], out=leave)
            link_free[link] = leave
        else:
            arrival[sent] = clock + links[link]
        if not overlap:
            clock[:] = arrival[sent]
    # Every message is waited for, so no stage is blocked beyond the last work anywhere.
    makespans: Floats = free.max(axis=0)
    return makespans


def _times(order: Schedule, times: ArrayLike, candidates: int, what: str) -> Floats:
    """[stages, chunks, candidates], so that one work's times lie side by side."""
    array = np.asarray(times, dtype=np.float64)
    if array.ndim == 2:
        array = array[:, :, np.newaxis]
    shape = (candidates, order.stages, max(order.chunks))
    if array.shape != shape:
        raise ValueError(f"{what}: [candidates, stages, chunks] are {shape}, not {np.shape(times)}")
    return np.moveaxis(array, 0, -1)


def _edges(order: Schedule, seconds: ArrayLike | None, candidates: int) -> Floats:
    """[edges, candidates]."""
    if seconds is None:
        return np.zeros((order.stages, candidates))
    array = np.asarray(seconds, dtype=np.float64)
    if array.ndim != 2 or len(array) != candidates:
        raise ValueError(f"transfers have shape {array.shape}, not [candidates, edges]")
    check_edges(order, array.shape[1])
    return array.T
