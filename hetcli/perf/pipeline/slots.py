"""Interleaved 1F1B of many candidates at once, slot by slot: fast enough for a search.

Where every work takes one unit and messages no time, each work has its slot. A work waits for works
of earlier slots only, however long they really take, so the works of one slot are computed
together. Between warm-up and cool-down the slots of one group of micro-batches are like those of
the group before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.work import Step

__all__ = ["finish_interleaved"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Groups of micro-batches that hold a warm-up, two groups that are alike, and a cool-down.
_GROUPS = 5
# What rounding may do to differences of clocks, as a share of the clocks.
_ROUNDING = 1e-13
# The message that is there from the start.
_PRESENT = 0


@dataclass(frozen=True, eq=False)
class _Slot:
    """Works of one slot: their stages, places among the durations, and the messages they wait for.

    The works at `sending` send the messages `sent` over the links `link`.
    """

    stage: Ints
    work: Ints
    received: Ints
    sending: Ints
    sent: Ints
    link: Ints


@dataclass(frozen=True, eq=False)
class _Program:
    """`before`, then `group` so many times, then `after`; `moving` are the messages of a group."""

    before: tuple[_Slot, ...]
    group: tuple[_Slot, ...]
    times: int
    after: tuple[_Slot, ...]
    messages: int

    @property
    def moving(self) -> Ints:
        """Messages that every group sends anew."""
        return np.unique(np.concatenate([slot.sent for slot in self.group]))


def finish_interleaved(
    forward_s: ArrayLike, backward_s: ArrayLike, send_s: ArrayLike, micro_batches: int
) -> Floats:
    """Return [candidates, stages]: when each stage is done with its last backward.

    It is what `simulate` finds for the interleaved schedule with overlap.

    Args:
        forward_s: seconds of a micro-batch, [candidates, stages, chunks].
        backward_s: the same.
        send_s: seconds of one message from each stage to the next one and back, the last entry
            between the last stage and the first, [stages].
        micro_batches: a multiple of the stages.
    """
    forward = np.asarray(forward_s, dtype=np.float64)
    candidates, stages, chunks = forward.shape
    durations = np.concatenate(
        [
            np.moveaxis(np.asarray(each, dtype=np.float64), 0, -1).reshape(-1, candidates)
            for each in (forward, backward_s)
        ]
    )
    program = _program(stages, micro_batches, chunks)
    seconds = np.tile(np.asarray(send_s, dtype=np.float64), 2)[:, None]
    free = np.zeros((stages, candidates))
    arrival = np.zeros((program.messages, candidates))
    links = np.zeros((2 * stages, candidates))

    def run(slots: Sequence[_Slot]) -> None:
        for slot in slots:
            end = np.maximum(free[slot.stage], arrival[slot.received])
            end += durations[slot.work]
            free[slot.stage] = end
            leave = np.maximum(end[slot.sending], links[slot.link])
            leave += seconds[slot.link]
            arrival[slot.sent] = links[slot.link] = leave

    run(program.before)
    if program.times:
        moving = program.moving
        used = np.unique(np.concatenate([slot.link for slot in program.group]))
        seen: Floats | None = None
        for number in range(program.times):
            clocks = np.concatenate([free, arrival[moving], links[used]])
            if seen is not None:
                moved = clocks - seen
                if (np.ptp(moved, axis=0) <= _ROUNDING * clocks.max(axis=0)).all():
                    # All clocks moved by one and the same time: they will each time.
                    further = (program.times - number) * moved[0]
                    free += further
                    arrival[moving] += further
                    links[used] += further
                    break
            seen = clocks
            run(program.group)
    run(program.after)
    return np.ascontiguousarray(free.T)


@lru_cache(maxsize=256)
def _program(stages: int, micro_batches: int, chunks: int) -> _Program:
    groups = micro_batches // stages
    if groups > _GROUPS:
        found = _repeating(stages, chunks)
        if found is not None:
            return replace(found, times=1 + groups - _GROUPS)
    slots, messages = _slots(stages, micro_batches, chunks)
    return _Program(slots, (), 0, (), messages)


@lru_cache(maxsize=256)
def _repeating(stages: int, chunks: int) -> _Program | None:
    """A program for many groups, with one of those that are alike; None if no two are."""
    slots, messages = _slots(stages, _GROUPS * stages, chunks)
    period = 2 * chunks * stages
    keys = [tuple(map(tuple, _parts(slot))) for slot in slots]
    for at in range(len(slots) - 2 * period + 1):
        stop = at + period
        if keys[at:stop] == keys[stop : stop + period]:
            group, after = slots[stop : stop + period], slots[stop + period :]
            return _Program(slots[:stop], group, 1, after, messages)
    return None


def _parts(slot: _Slot) -> tuple[list[int], ...]:
    return (
        slot.stage.tolist(),
        slot.work.tolist(),
        slot.received.tolist(),
        slot.sending.tolist(),
        slot.sent.tolist(),
        slot.link.tolist(),
    )


def _slots(stages: int, micro_batches: int, chunks: int) -> tuple[tuple[_Slot, ...], int]:
    """All slots, and how many messages there are room for.

    Messages of micro-batches that are `stages` apart share a place.
    """
    order = schedule("interleaved", stages, micro_batches, chunks)
    links = [2 * edge + back for edge, back in order.edges]
    together: defaultdict[int, list[Step]] = defaultdict(list)
    free = [0] * stages
    there: dict[int, int] = {}
    for step in order.steps:
        slot = max(free[step.stage], there.get(step.received, 0))
        free[step.stage] = there[step.sent] = slot + 1
        there[-1] = 0
        together[slot].append(step)
    waiting: set[int] = set()

    def place(message: int) -> int:
        if message < 0:
            return _PRESENT
        route, micro_batch = divmod(message, micro_batches)
        return 1 + route * stages + micro_batch % stages

    found = []
    for slot in range(len(together)):
        steps = sorted(together[slot], key=lambda step: step.stage)
        received = [place(step.received) for step in steps]
        sent = [(at, step) for at, step in enumerate(steps) if step.sent >= 0]
        waiting.difference_update(received)
        places = [place(step.sent) for _, step in sent]
        assert waiting.isdisjoint(places), "a message is lost"
        waiting.update(places)
        found.append(
            _Slot(
                stage=np.array([step.stage for step in steps]),
                work=np.array(
                    [
                        ((step.kind != "forward") * stages + step.stage) * chunks + step.chunk
                        for step in steps
                    ]
                ),
                received=np.array(received),
                sending=np.array([at for at, _ in sent], dtype=np.int64),
                sent=np.array(places, dtype=np.int64),
                link=np.array(
                    [_link(links[step.link], stages) for _, step in sent], dtype=np.int64
                ),
            )
        )
    return tuple(found), 1 + 2 * stages * chunks * stages


def _link(code: int, stages: int) -> int:
    """The place of an edge and direction: those forwards first."""
    edge, back = divmod(code, 2)
    return back * stages + edge
