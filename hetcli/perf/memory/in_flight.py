"""How many micro-batches of each model chunk a stage holds at its fullest moments."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.work import Work

__all__ = ["held_chunks", "in_flight"]


@lru_cache(maxsize=4096)
def held_chunks(
    name: ScheduleName, stages: int, stage: int, micro_batches: int, chunks: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Micro-batches that stage `stage` holds of each of its chunks, at every moment that no other
    moment dominates; one entry with one number for schedules of a single chunk.

    A micro-batch is held from its forward to the end of its backward pass. The single-chunk
    schedules have closed forms (1F1B: arXiv 2006.09503, section 3.3; ZB-H1: arXiv 2401.10241,
    section 2.1); the others are read off the order of works.

    Raises ConfigurationError when the schedule is not defined for these numbers.
    """
    if name == "gpipe":
        return ((micro_batches,),)
    if name == "1f1b":
        return ((min(micro_batches, stages - stage),),)
    if name == "zb-h1":
        return ((min(micro_batches, stages),),)
    # After three micro-batches a stage the order repeats itself; more would only take time.
    enough = min(micro_batches, 3 * stages)
    works = schedule(name, stages, enough, chunks).order[stage]
    return _fullest(works, chunks)


def in_flight(
    name: ScheduleName, stages: int, stage: int, micro_batches: int, virtual_stages: int = 1
) -> float:
    """The most micro-batches that a stage holds, a part of its chunks counting as that part."""
    held = held_chunks(name, stages, stage, micro_batches, virtual_stages)
    return max(sum(each) for each in held) / virtual_stages


def _fullest(works: Iterable[Work], chunks: int) -> tuple[tuple[int, ...], ...]:
    held = [0] * chunks
    moments = set()
    for kind, _, chunk in works:
        if kind == "forward":
            held[chunk] += 1
            moments.add(tuple(held))
        elif kind != "backward-input":
            held[chunk] -= 1
    return tuple(
        sorted(
            one
            for one in moments
            if not any(
                other != one and all(a >= b for a, b in zip(other, one, strict=True))
                for other in moments
            )
        )
    )
