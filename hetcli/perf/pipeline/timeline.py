"""What a simulated schedule did: when, who waited, what was held, and which chain decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from hetcli.perf.pipeline.work import Kind, Schedule

__all__ = ["Event", "Timeline", "Transfer"]


class Event(NamedTuple):
    """One work, as it ran. Seconds from the start of the pipeline."""

    stage: int
    kind: Kind
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


class Transfer(NamedTuple):
    """One message: an activation (`forward`) or its gradient (`backward`). `chunk` is the sender's.

    It starts when the link is free, not when the sender has it ready.
    """

    source: int
    destination: int
    kind: Literal["forward", "backward"]
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """The result of `simulate`.

    `starts_s` and `ends_s` are the works' in the order of `schedule.steps`, `leaves_s` and
    `arrivals_s` those of the messages in the same order. `makespan_s` is the end of the last work;
    `busy_s` a stage's computing, `sending_s` the time for which its own messages block it (0 where
    transfers overlap with computation), `stage_end_s` when it is done with both.
    """

    schedule: Schedule
    overlap: bool
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    leaves_s: tuple[float, ...]
    arrivals_s: tuple[float, ...]
    makespan_s: float
    busy_s: tuple[float, ...]
    sending_s: tuple[float, ...]
    stage_end_s: tuple[float, ...]

    @cached_property
    def idle_s(self) -> tuple[float, ...]:
        """Seconds of each stage's makespan in which it neither computes nor sends: the bubble."""
        return tuple(
            self.makespan_s - busy - sending
            for busy, sending in zip(self.busy_s, self.sending_s, strict=True)
        )

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All works, stage by stage, in the order in which they ran."""
        of_stage: list[list[Event]] = [[] for _ in range(self.schedule.stages)]
        for step, start, end in zip(self.schedule.steps, self.starts_s, self.ends_s, strict=True):
            of_stage[step.stage].append(Event(*step[:4], start, end))
        return tuple(event for events in of_stage for event in events)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All messages between stages, in an order in which each follows from those before."""
        senders = (step for step in self.schedule.steps if step.sent >= 0)
        return tuple(
            Transfer(
                *self.schedule.links[step.link],
                "forward" if step.kind == "forward" else "backward",
                step.micro_batch,
                step.chunk,
                leave,
                arrival,
            )
            for step, leave, arrival in zip(senders, self.leaves_s, self.arrivals_s, strict=True)
        )

    def of_stage(self, stage: int) -> tuple[Event, ...]:
        """The events of one stage."""
        first = sum(len(works) for works in self.schedule.order[:stage])
        return self.events[first : first + len(self.schedule.order[stage])]

    def held_bytes(
        self, stage: int, activation_bytes: Sequence[float]
    ) -> tuple[tuple[float, float], ...]:
        """Return (seconds, bytes of activations held from then on) for one stage, ending at 0.

        `activation_bytes[chunk]` is what one micro-batch leaves in a chunk (`Schedule.held`): from
        the start of the forward to the end of the backward.
        """
        levels = self.schedule.held(stage, activation_bytes)
        return tuple(
            (event.start_s if event.kind == "forward" else event.end_s, level)
            for event, level in zip(self.of_stage(stage), levels, strict=True)
            if event.kind != "backward-input"
        )

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """The most chunk activations that each stage holds at a time."""
        return tuple(
            round(max(self.schedule.held(stage, (1.0,) * chunks)))
            for stage, chunks in enumerate(self.schedule.chunks)
        )

    @cached_property
    def critical_path(self) -> tuple[Event | Transfer, ...]:
        """The chain of works and transfers without a gap that ends with the last work.

        Its durations add up to the makespan: making anything else faster changes nothing.
        """
        return tuple(reversed(tuple(_walk_back(self))))


def _walk_back(timeline: Timeline) -> Iterator[Event | Transfer]:
    """From the last event, step to what it waited for: its stage's last act, or its message."""
    acts: list[Event | Transfer] = []
    waited_for: list[int] = []
    last_of = [-1] * timeline.schedule.stages
    last_on = [-1] * len(timeline.schedule.links)
    carrier: dict[int, int] = {}
    events = [iter(timeline.of_stage(stage)) for stage in range(timeline.schedule.stages)]
    transfers = iter(timeline.transfers)

    def add(act: Event | Transfer, *candidates: int) -> int:
        acts.append(act)
        waited_for.append(
            next((i for i in candidates if i >= 0 and acts[i].end_s == act.start_s), -1)
        )
        return len(acts) - 1

    for step in timeline.schedule.steps:
        received = carrier.pop(step.received) if step.received >= 0 else -1
        index = add(next(events[step.stage]), last_of[step.stage], received)
        last_of[step.stage] = index
        if step.sent >= 0:
            index = add(next(transfers), index, last_on[step.link])
            carrier[step.sent] = last_on[step.link] = index
            if not timeline.overlap:
                last_of[step.stage] = index
    here = next(i for i, act in enumerate(acts) if act.end_s == timeline.makespan_s)
    while here >= 0:
        yield acts[here]
        here = waited_for[here]
