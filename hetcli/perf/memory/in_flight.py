"""How many micro-batches of each model chunk a stage holds at its fullest moments."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.in_flight import in_flight
from hetcli.perf.pipeline.rules import check_schedule
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.work import Work

__all__ = ["held_chunks", "in_flight"]


@lru_cache(maxsize=4096)
def held_chunks(
    name: ScheduleName, stages: int, stage: int, micro_batches: int, chunks: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Micro-batches that stage `stage` holds of each of its chunks, at every moment that no other
    moment dominates; one entry with one number for schedules of a single chunk.

    A micro-batch is held from its forward to the end of its backward pass. Schedules of a single
    chunk have closed forms (`pipeline.in_flight`); the others are read off the order of works.

    Raises ConfigurationError when the schedule is not defined for these numbers.
    """
    if chunks == 1:
        check_schedule(name, stages, micro_batches, chunks)
        return ((round(in_flight(name, stages, stage, micro_batches, chunks)),),)
    # After three micro-batches a stage the order repeats itself; more would only take time.
    enough = min(micro_batches, 3 * stages)
    works = schedule(name, stages, enough, chunks).order[stage]
    return _fullest(works, chunks)


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
