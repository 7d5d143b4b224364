"""What a pipeline schedule is: for every stage, the order of the work it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from hetcli.perf.configuration import ScheduleName

__all__ = ["Kind", "Place", "Route", "Schedule", "Step", "Work"]

# A `backward` computes both gradients. Zero-bubble schedules do `backward-input` first, which the
# previous stage waits for, and `backward-weight` when there is time (arXiv 2401.10241, section 2).
Kind = Literal["forward", "backward", "backward-input", "backward-weight"]


class Work(NamedTuple):
    """One piece of computation of a stage: what is done to which micro-batch in which chunk."""

    kind: Kind
    micro_batch: int
    chunk: int


class Place(NamedTuple):
    """Where a part of the model lives: one of the model chunks that a stage holds."""

    stage: int
    chunk: int


Route = tuple[Place, ...]


class Step(NamedTuple):
    """A work in an order in which all works can be computed one after another.

    `received` is the slot of the message that the work waits for, `sent` the slot of the message
    that it produces and `link` the index of the link which carries that (`Schedule.links`); -1
    stands for none, also where the other end is on the same stage.
    """

    stage: int
    kind: Kind
    micro_batch: int
    chunk: int
    received: int
    sent: int
    link: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """Who does what in which order.

    `order[stage]` is what a stage does, first to last: a runtime executes it as it stands.
    A route is the sequence of places that a micro-batch visits forwards (and in reverse backwards);
    `route_of[micro_batch]` says which route it takes. A place is on one route only: a device that
    serves two routes holds weights for both.
    """

    name: ScheduleName | Literal["fused"]
    order: tuple[tuple[Work, ...], ...]
    routes: tuple[Route, ...]
    route_of: tuple[int, ...]

    def __post_init__(self) -> None:
        places = [place for route in self.routes for place in route]
        if len(places) != len(set(places)):
            raise ValueError("a place is on more than one route, or twice on one")
        exist = all(0 <= stage < len(self.order) and chunk >= 0 for stage, chunk in places)
        if not exist or not all(self.routes):
            raise ValueError("a route visits no place, or one that does not exist")
        if any(not 0 <= route < len(self.routes) for route in self.route_of):
            raise ValueError("a micro-batch takes a route that does not exist")

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.order)

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of all routes together."""
        return len(self.route_of)

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Model chunks that each stage holds."""
        counts = [0] * len(self.order)
        for route in self.routes:
            for stage, chunk in route:
                counts[stage] = max(counts[stage], chunk + 1)
        return tuple(counts)

    def held(self, stage: int, activation_bytes: Sequence[float]) -> tuple[float, ...]:
        """Return the bytes of activations that a stage holds during or after each of its works.

        `activation_bytes[chunk]` is what one micro-batch leaves in a chunk. It is there from its
        forward (counted from that work on) until its backward is done (no longer counted at that
        work); of a split backward until the weight part is done, although some could go before.
        """
        levels, held, count = [], 0.0, 0
        for work in self.order[stage]:
            if work.kind == "forward":
                count += 1
                held += activation_bytes[work.chunk]
            elif work.kind != "backward-input":
                count -= 1
                # Adding and taking away floats leaves dust; nothing held is exactly nothing.
                held = held - activation_bytes[work.chunk] if count else 0.0
            levels.append(held)
        return tuple(levels)

    @cached_property
    def splits_backward(self) -> bool:
        """Whether some backward is done in two parts."""
        return any(work.kind == "backward-weight" for works in self.order for work in works)

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """(source, destination) of every directed link between two stages that carries messages."""
        hops = {
            pair
            for route in self.routes
            for (source, _), (destination, _) in pairwise(route)
            if source != destination
            for pair in ((source, destination), (destination, source))
        }
        return tuple(sorted(hops))

    @cached_property
    def edges(self) -> tuple[tuple[int, bool], ...]:
        """(edge, whether it goes against the edge's direction) of each of `links`.

        Edge i leads from stage i to stage i + 1, the last one from the last stage to the first.
        Raises ValueError when a route jumps.
        """
        found = []
        for source, destination in self.links:
            low, high = min(source, destination), max(source, destination)
            if high - low == 1:
                found.append((low, source > destination))
            elif (low, high) == (0, self.stages - 1):
                found.append((high, source < destination))
            else:
                raise ValueError(f"stages {source} and {destination} are not neighbours")
        return tuple(found)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All works in an order in which each comes after everything that it waits for.

        Raises ValueError when a stage waits for ever (the orders contradict each other, or a work
        is there twice), and when a micro-batch's forward or backward is missing somewhere.
        """
        return _topological(self)


class _Neighbours(NamedTuple):
    """Where a place gets its input and sends its output; None at the ends of the route."""

    number: int
    previous: Place | None
    following: Place | None


def _neighbours(routes: Sequence[Route]) -> dict[Place, _Neighbours]:
    found: dict[Place, _Neighbours] = {}
    for route in routes:
        for position, place in enumerate(route):
            found[place] = _Neighbours(
                len(found),
                route[position - 1] if position else None,
                route[position + 1] if position + 1 < len(route) else None,
            )
    return found


def _topological(schedule: Schedule) -> tuple[Step, ...]:
    neighbours = _neighbours(schedule.routes)
    at = [
        [neighbours.get(Place(stage, chunk)) for chunk in range(count)]
        for stage, count in enumerate(schedule.chunks)
    ]
    link_of = {pair: index for index, pair in enumerate(schedule.links)}
    micro_batches = schedule.micro_batches
    # A slot for the input of each forward, then of each backward, then of each backward-weight;
    # an input is present from the moment that it exists until it is used.
    gradients = len(neighbours) * micro_batches
    weights = 2 * gradients
    present = bytearray(3 * gradients)
    for micro_batch, route in enumerate(schedule.route_of):
        present[neighbours[schedule.routes[route][0]].number * micro_batches + micro_batch] = 1

    steps: list[Step] = []
    done = [0] * schedule.stages
    pending = list(range(schedule.stages - 1, -1, -1))
    while pending:
        stage = pending.pop()
        works, position = schedule.order[stage], done[stage]
        while position < len(works):
            kind, micro_batch, chunk = works[position]
            here = at[stage][chunk] if 0 <= chunk < len(at[stage]) else None
            if here is None or not 0 <= micro_batch < micro_batches:
                raise ValueError(f"stage {stage} has nothing to do with {works[position]}")
            own = here.number * micro_batches + micro_batch
            offset = 0
            source = target = None
            if kind == "forward":
                source, target = here.previous, here.following
            elif kind == "backward-weight":
                offset = weights
            else:
                offset, source, target = gradients, here.following, here.previous
            needed = own + offset
            if not present[needed]:
                break
            present[needed] = 0
            position += 1
            received = needed if source is not None and source.stage != stage else -1
            sent = link = -1
            if target is not None:
                slot = neighbours[target].number * micro_batches + micro_batch + offset
                present[slot] = 1
                if target.stage != stage:
                    sent, link = slot, link_of[stage, target.stage]
                    pending.append(target.stage)
            elif kind == "forward":
                present[own + gradients] = 1
            if kind == "backward-input":
                present[own + weights] = 1
            steps.append(Step(stage, kind, micro_batch, chunk, received, sent, link))
        done[stage] = position
    _check_complete(schedule, steps, done)
    return tuple(steps)


def _check_complete(schedule: Schedule, steps: Sequence[Step], done: Sequence[int]) -> None:
    for stage, works in enumerate(schedule.order):
        if done[stage] < len(works):
            raise ValueError(f"stage {stage} waits for ever for the input of {works[done[stage]]}")
    # No work ran twice (its token was used up), so equal counts mean: each exactly once.
    visits = sum(len(schedule.routes[route]) for route in schedule.route_of)
    count = {"forward": 0, "backward": 0, "backward-input": 0, "backward-weight": 0}
    for step in steps:
        count[step.kind] += 1
    if not (
        count["forward"] == visits
        and count["backward"] + count["backward-input"] == visits
        and count["backward-weight"] == count["backward-input"]
    ):
        raise ValueError(f"{visits} visits need as many forwards and backwards, not {count}")
