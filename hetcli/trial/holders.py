"""Which devices hold the same weights, and so must add up their gradients.

What is synchronised together is a part: one layer, or one slice of it where holders are
tensor-parallel. Holders may have unlike tensor-parallel degrees: a layer is then cut into as many
regions as the largest degree, of which a device with a smaller one holds several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import Configuration, DeviceId
from hetcli.spec.model.architecture import Model, MoeFeedForward
from hetcli.trial.program import Program

__all__ = ["Content", "Part", "parts"]


class Content(NamedTuple):
    """A module of the model: a layer by its number, or one of the two ends.

    `experts` are the routed experts of a layer, which have holders of their own.
    """

    kind: Literal["embedding", "layer", "experts", "head"]
    layer: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Region `region` of `regions` of a content, and everyone who holds it."""

    content: Content
    region: int
    regions: int
    members: tuple[DeviceId, ...]


def parts(
    configuration: Configuration, model: Model, programs: Mapping[DeviceId, Program]
) -> dict[DeviceId, tuple[Part, ...]]:
    """The parts that every device holds, in the order of the model.

    Raises ConfigurationError when the tensor-parallel degrees of a layer's holders do not divide
    each other.
    """
    expert_ranks = configuration.expert_parallel * configuration.expert_tensor_parallel
    seats = _expert_seats(configuration)
    holders: dict[Content, list[DeviceId]] = {}
    for device, program in programs.items():
        for content in _contents(model, program):
            holders.setdefault(content, []).append(device)
    found: dict[DeviceId, list[Part]] = {device: [] for device in programs}
    for content in sorted(holders, key=_order):
        devices = holders[content]
        if content.kind == "experts":
            regions = expert_ranks
            held = {device: range(seats[device], seats[device] + 1) for device in devices}
        else:
            degrees = {device: programs[device].seat.tensor_parallel for device in devices}
            regions = max(degrees.values())
            _check_degrees(content, sorted(set(degrees.values())))
            held = {}
            for device, degree in degrees.items():
                first = programs[device].seat.tensor_rank * regions // degree
                held[device] = range(first, first + regions // degree)
        for region in range(regions):
            members = tuple(sorted(device for device in devices if region in held[device]))
            part = Part(content, region, regions, members)
            for device in members:
                found[device].append(part)
    return {device: tuple(each) for device, each in found.items()}


def _expert_seats(configuration: Configuration) -> dict[DeviceId, int]:
    """Every device's rank among those that together hold a layer's experts."""
    ranks = configuration.expert_parallel * configuration.expert_tensor_parallel
    return {
        device: index % ranks
        for stage in configuration.stages
        for index, device in enumerate(
            device for replica in stage.replicas for device in replica.devices
        )
    }


def _contents(model: Model, program: Program) -> set[Content]:
    layers = tuple(model.each_layer())
    found = set()
    for chunk in program.chunks:
        for number in range(chunk.first, chunk.stop):
            found.add(Content("layer", number))
            if isinstance(layers[number].feed_forward, MoeFeedForward):
                found.add(Content("experts", number))
    if program.embeds or (program.ends and model.tied_embeddings):
        found.add(Content("embedding"))
    if program.ends:
        found.add(Content("head"))
    return found


def _order(content: Content) -> tuple[int, int, str]:
    last = {"embedding": 0, "layer": 1, "experts": 1, "head": 2}
    return last[content.kind], content.layer, content.kind


def _check_degrees(content: Content, degrees: list[int]) -> None:
    if any(degrees[-1] % degree for degree in degrees):
        raise ConfigurationError(
            f"{content.kind} {content.layer} is held with tensor_parallel {degrees}",
            why="slices of one degree are not made of whole slices of the others",
            fix="use degrees that divide each other, as 1, 2, 4, 8 do",
        )
