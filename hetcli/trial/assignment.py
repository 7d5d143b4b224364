"""Which sequences of a step every replica works on, and in which micro-batch.

A pipeline's sequences are laid out replica by replica, the same way in every stage. Where the
layouts of all stages have a common boundary the pipeline falls apart into blocks that never talk to
each other; usually a block is one replica of each stage. In a block, stages may have different
numbers of replicas: they then take turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import Configuration, Pipeline, Stage

__all__ = ["Block", "Unit", "blocks"]


class Unit(NamedTuple):
    """One micro-batch of one replica: sequences `first` up to `stop` of the global batch."""

    replica: int
    micro_batch: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Block:
    """Replicas of a pipeline's stages that share the same sequences.

    `slots[stage][slot]` are the micro-batches that stand for micro-batch `slot` of the schedule:
    one, or several where a stage has more (or smaller) ones than another. The slots of all stages
    cover the same sequences.
    """

    slots: tuple[tuple[tuple[Unit, ...], ...], ...]

    @property
    def micro_batches(self) -> int:
        """Micro-batches that the schedule is made for."""
        return len(self.slots[0])


def blocks(configuration: Configuration) -> tuple[tuple[Block, ...], ...]:
    """The blocks of every pipeline.

    Raises ConfigurationError when stages of a pipeline work on different numbers of sequences, when
    the pipelines do not make up the global batch, or when micro-batches cannot be lined up.
    """
    found = []
    first = 0
    for number, pipeline in enumerate(configuration.pipelines):
        counts = [sum(_sequences(stage)) for stage in pipeline.stages]
        if len(set(counts)) > 1:
            raise ConfigurationError(
                f"pipeline {number}: its stages work on {counts} sequences in a step",
                why="every sequence passes all stages",
                fix="make micro_batches x micro_batch_size add up to the same in every stage",
            )
        found.append(tuple(_blocks(pipeline, first)))
        first += counts[0]
    if first != configuration.global_batch:
        raise ConfigurationError(
            f"the pipelines work on {first} sequences, the global batch is "
            f"{configuration.global_batch}",
            why="a step reads every sequence of the global batch once",
            fix=f"make the micro-batches add up to {configuration.global_batch}",
        )
    return tuple(found)


def _sequences(stage: Stage) -> list[int]:
    return [replica.micro_batches * replica.micro_batch_size for replica in stage.replicas]


def _blocks(pipeline: Pipeline, offset: int) -> Iterator[Block]:
    starts = [list(accumulate(_sequences(stage), initial=0)) for stage in pipeline.stages]
    cuts = sorted(set(starts[0]).intersection(*starts[1:]))
    for low, high in pairwise(cuts):
        units = [
            _units(stage, range(start.index(low), start.index(high)), offset + low)
            for stage, start in zip(pipeline.stages, starts, strict=True)
        ]
        slots = math.gcd(*(len(each) for each in units))
        block = Block(tuple(_grouped(each, slots) for each in units))
        _check_aligned(block)
        yield block


def _units(stage: Stage, replicas: Sequence[int], first: int) -> list[Unit]:
    """Micro-batches of some replicas in the order in which sequences reach them: evenly in turn."""
    turns = sorted(
        ((position + 0.5) / stage.replicas[index].micro_batches, index, position)
        for index in replicas
        for position in range(stage.replicas[index].micro_batches)
    )
    found = []
    for _, index, position in turns:
        stop = first + stage.replicas[index].micro_batch_size
        found.append(Unit(index, position, first, stop))
        first = stop
    return found


def _grouped(units: Sequence[Unit], slots: int) -> tuple[tuple[Unit, ...], ...]:
    size = len(units) // slots
    return tuple(tuple(units[slot * size : (slot + 1) * size]) for slot in range(slots))


def _check_aligned(block: Block) -> None:
    edges = [[slot[0].first for slot in stage] for stage in block.slots]
    if any(each != edges[0] for each in edges):
        raise ConfigurationError(
            "micro-batches of the stages cannot be lined up",
            why="replicas that share a pipeline take unequal shares of each round",
            fix="give replicas of one stage the same micro_batch_size, or pipelines of their own",
        )
