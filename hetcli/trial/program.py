"""What one device does in a step: its works in order, each with the messages around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hetcli.perf.configuration import Configuration, DeviceId, LayerRange, Replica, Stage
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.work import Kind, Place, Schedule
from hetcli.trial.assignment import Block, Unit, blocks

__all__ = ["Action", "Channel", "Message", "Program", "Seat", "programs"]


class Channel(NamedTuple):
    """Messages of one kind from one device to another; they arrive in the order of sending.

    `place` is the sender's (stage, chunk).
    """

    source: DeviceId
    destination: DeviceId
    backward: bool
    place: Place


class Message(NamedTuple):
    """Part of a micro-batch's activation, or of its gradient.

    `rows` are sequences and `positions` tokens of them, both counted inside the micro-batch that
    the device at this end holds. `tag` is unlike any other message's of the step.
    """

    channel: Channel
    tag: int
    rows: tuple[int, int]
    positions: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Action:
    """One work on one micro-batch. Without `receives` its input is data, or on the device already.

    `keeps_output` says that the next place of the route is on the same device; `embeds` and
    `ends` that the work includes the embedding, or the head and the loss.
    """

    kind: Kind
    chunk: int
    micro_batch: int
    first: int
    sequences: int
    receives: tuple[Message, ...] = ()
    sends: tuple[Message, ...] = ()
    keeps_output: bool = False
    embeds: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a device sits: in which replica of which stage, and at which position there.

    `tensor_rank` and `context_rank` follow from the position (tensor ranks innermost).
    """

    pipeline: int
    stage: int
    replica: int
    position: int
    tensor_parallel: int

    @property
    def tensor_rank(self) -> int:
        """Which slice of every sharded weight the device holds."""
        return self.position % self.tensor_parallel

    @property
    def context_rank(self) -> int:
        """Which part of every sequence it works on."""
        return self.position // self.tensor_parallel


@dataclass(frozen=True, slots=True)
class Program:
    """All actions of one device in a step, in order.

    `chunks` are the layers of its model chunks in the order of `Action.chunk`; `embeds` and `ends`
    the chunks that start with the embedding, or end with the head.
    """

    seat: Seat
    chunks: tuple[LayerRange, ...]
    actions: tuple[Action, ...]
    embeds: frozenset[int]
    ends: frozenset[int]

    @property
    def channels(self) -> tuple[tuple[Channel, tuple[Message, ...]], ...]:
        """What the device receives, channel by channel, in order."""
        found: dict[Channel, list[Message]] = {}
        for action in self.actions:
            for message in action.receives:
                found.setdefault(message.channel, []).append(message)
        return tuple((channel, tuple(each)) for channel, each in found.items())


def programs(configuration: Configuration) -> dict[DeviceId, Program]:
    """The program of every device of a configuration.

    Raises ConfigurationError for a configuration whose sequences do not add up, and for a schedule
    that does not exist for its numbers of stages and micro-batches.
    """
    found = {}
    assigned = blocks(configuration)
    for number, pipeline in enumerate(configuration.pipelines):
        for block in assigned[number]:
            order = schedule(
                configuration.schedule,
                len(pipeline.stages),
                block.micro_batches,
                len(pipeline.stages[0].chunks),
            )
            writer = _Writer(configuration, pipeline.stages, block, order)
            for index, stage in enumerate(pipeline.stages):
                for at in sorted({unit.replica for slot in block.slots[index] for unit in slot}):
                    for position, device in enumerate(stage.replicas[at].devices):
                        seat = Seat(number, index, at, position, stage.tensor_parallel)
                        found[device] = writer.program(seat)
    return found


class _Writer:
    """Writes the programs of one block."""

    def __init__(
        self,
        configuration: Configuration,
        stages: tuple[Stage, ...],
        block: Block,
        order: Schedule,
    ) -> None:
        self._configuration = configuration
        self._stages = stages
        self._block = block
        self._order = order
        self._previous: dict[Place, Place | None] = {}
        self._following: dict[Place, Place | None] = {}
        for route in order.routes:
            for at, place in enumerate(route):
                self._previous[place] = route[at - 1] if at else None
                self._following[place] = route[at + 1] if at + 1 < len(route) else None
        chunks = max(order.chunks)
        self._number = {place: place.stage * chunks + place.chunk for place in self._previous}
        # A route passes the layers in order, whatever way it takes through the stages.
        self._layers: dict[Place, LayerRange] = {}
        for route in order.routes:
            first = 0
            for place in route:
                count = stages[place.stage].chunks[place.chunk].count
                self._layers[place] = LayerRange(first, count)
                first += count

    def program(self, seat: Seat) -> Program:
        """Everything that the device on `seat` does."""
        own = sorted(place for place in self._previous if place.stage == seat.stage)
        return Program(
            seat,
            tuple(self._layers[place] for place in own),
            tuple(self._actions(seat)),
            frozenset(place.chunk for place in own if self._previous[place] is None),
            frozenset(place.chunk for place in own if self._following[place] is None),
        )

    def _actions(self, seat: Seat) -> Iterator[Action]:
        for kind, slot, chunk in self._order.order[seat.stage]:
            for unit in self._block.slots[seat.stage][slot]:
                if unit.replica == seat.replica:
                    yield self._action(seat, kind, slot, unit, Place(seat.stage, chunk))

    def _action(self, seat: Seat, kind: Kind, slot: int, unit: Unit, place: Place) -> Action:
        forward = kind == "forward"
        before, after = self._previous[place], self._following[place]
        source, target = (before, after) if forward else (after, before)
        if kind == "backward-weight":
            source = target = None
        receives: tuple[Message, ...] = ()
        sends: tuple[Message, ...] = ()
        if source is not None and source.stage != place.stage:
            receives = tuple(self._messages(seat, slot, unit, source, place, sending=False))
        if target is not None and target.stage != place.stage:
            sends = tuple(self._messages(seat, slot, unit, place, target, sending=True))
        return Action(
            kind,
            place.chunk,
            unit.micro_batch,
            unit.first,
            unit.stop - unit.first,
            receives,
            sends,
            keeps_output=target is not None and target.stage == place.stage,
            embeds=before is None,
            ends=after is None,
        )

    def _messages(
        self, seat: Seat, slot: int, unit: Unit, source: Place, target: Place, *, sending: bool
    ) -> Iterator[Message]:
        """Messages between the micro-batch `unit` here and those of the stage at the other end."""
        here = self._stages[seat.stage].replicas[seat.replica]
        there = target if sending else source
        backward = self._previous[source] == target
        for other in self._block.slots[there.stage][slot]:
            first, stop = max(unit.first, other.first), min(unit.stop, other.stop)
            if first >= stop:
                continue
            peers = self._stages[there.stage].replicas[other.replica]
            for peer, positions in self._peers(seat, there.stage, peers, sending=sending):
                ends = (here.devices[seat.position], peer)
                channel = Channel(*(ends if sending else ends[::-1]), backward, source)
                yield Message(
                    channel,
                    (self._number[source] * 2 + backward) * self._configuration.global_batch
                    + first,
                    (first - unit.first, stop - unit.first),
                    positions,
                )

    def _peers(
        self, seat: Seat, stage: int, replica: Replica, *, sending: bool
    ) -> Iterator[tuple[DeviceId, tuple[int, int]]]:
        """Devices of the other stage's replica that exchange with this one, and which tokens.

        With sequence parallelism every tensor rank has a part of the tokens; without, all have the
        whole activation and each receiver takes it from one sender.
        """
        own, other = seat.tensor_parallel, self._stages[stage].tensor_parallel
        tokens = self._configuration.sequence // self._configuration.context_parallel
        base = seat.context_rank * other
        if not self._configuration.sequence_parallel:
            for rank in range(other):
                source, target = (seat.tensor_rank, rank) if sending else (rank, seat.tensor_rank)
                senders, receivers = (own, other) if sending else (other, own)
                if target * senders // receivers == source:
                    yield replica.devices[base + rank], (0, tokens)
            return
        part, parts = tokens // own, tokens // other
        low = seat.tensor_rank * part
        for rank in range(other):
            first, stop = max(low, rank * parts), min(low + part, (rank + 1) * parts)
            if first < stop:
                yield replica.devices[base + rank], (first - low, stop - low)
