"""What it takes to go from one configuration to another: bytes, seconds, and the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.adapt.holding import NOTHING, Holding, Sizes, holdings
from hetcli.adapt.strategies import renamed
from hetcli.perf.configuration import Configuration, DeviceId
from hetcli.perf.hardware import Hardware, Node
from hetcli.spec.model.architecture import Model

__all__ = ["Move", "move", "placed_to_keep"]


@dataclass(frozen=True, slots=True)
class Move:
    """The change between two configurations.

    `received_bytes` come from other devices (or from storage) in `seconds`; `state_is_lost` says
    that no device left holds some of the state, so that it must come from a checkpoint;
    `reshards` that tensor or pipeline slices change, so that the checkpoint has to be cut anew.
    """

    received_bytes: float
    seconds: float
    state_is_lost: bool
    reshards: bool


def move(before: Configuration, after: Configuration, model: Model, hardware: Hardware) -> Move:
    """What the devices of `after` must get of weights and optimizer state that they do not have.

    Every node receives through its NICs at the same time; the one that gets most decides. What a
    node's own devices could give each other counts too, so that both numbers are upper bounds.
    """
    sizes = Sizes.of(after, model)
    had, needed = holdings(before, model), holdings(after, model)
    received: dict[str, float] = {}
    for node in {device.node for device in needed}:
        devices = hardware.by_name[node].device_ids
        received[node] = float(np.trace(sizes.missing(_each(devices, had), _each(devices, needed))))
    return Move(
        received_bytes=sum(received.values()),
        seconds=max(
            nbytes / hardware.by_name[node].nic.bytes_per_s for node, nbytes in received.items()
        ),
        state_is_lost=_lost(before, had, hardware),
        reshards=_shape(before) != _shape(after),
    )


def _lost(before: Configuration, had: Mapping[DeviceId, Holding], hardware: Hardware) -> bool:
    """Whether some of the state was only on devices that are gone."""
    alive = {device for node in hardware.nodes for device in node.device_ids}
    gone = [device for device in had if device not in alive]
    if not gone:
        return False
    if any(had[device].optimizer != had[device].weights for device in gone):
        # ZeRO keeps each part of the optimizer's state on one device only.
        return True
    parts = math.lcm(*(stage.tensor_parallel for stage in before.stages))
    left = {cell for device in had if device in alive for cell in _cells(had[device], parts)}
    return any(cell not in left for device in gone for cell in _cells(had[device], parts))


def _cells(holding: Holding, parts: int) -> Iterator[tuple[int, int]]:
    """(content, part) for every one of `parts` equal parts that the device has of it."""
    first, stop = (round(edge * parts) for edge in holding.weights)
    for begin, end in holding.contents:
        for content in range(begin, end):
            for part in range(first, stop):
                yield content, part


def _shape(configuration: Configuration) -> tuple[object, ...]:
    """What the slices of a checkpoint follow: layers and tensor degree of every kind of stage."""
    return tuple(
        sorted(
            {
                tuple(
                    (stage.tensor_parallel, tuple(chunk.count for chunk in stage.chunks))
                    for stage in pipeline.stages
                )
                for pipeline in configuration.pipelines
            }
        )
    )


def placed_to_keep(
    before: Configuration, after: Configuration, model: Model, hardware: Hardware
) -> Configuration:
    """`after` with equal nodes exchanged so that the fewest bytes move.

    Nodes are equal when nothing that a prediction reads tells them apart; which of them plays which
    part is then an assignment problem (Kuhn 1955), solved exactly.
    """
    from scipy.optimize import linear_sum_assignment

    if hardware.pair_links:
        return after
    sizes = Sizes.of(after, model)
    had, needed = holdings(before, model), holdings(after, model)
    plays: dict[str, str] = {}
    for nodes in _equal_nodes(hardware):
        costs = _costs(nodes, had, needed, sizes)
        # Among equally good assignments the one that changes least: all costs are in bytes.
        costs -= np.eye(len(nodes)) * 1e-3
        for actor, part in zip(*linear_sum_assignment(costs), strict=True):
            plays[nodes[part].name] = nodes[actor].name
    return renamed(after, plays)


def _equal_nodes(hardware: Hardware) -> list[list[Node]]:
    kinds: dict[object, list[Node]] = {}
    for node in hardware.nodes:
        place = (node.group, node.fabric, node.zone, node.region, node.vendor)
        links = (node.intra, node.nic, node.nic_kind, node.price_per_device_hour)
        kinds.setdefault((node.device_type, node.devices, place, links), []).append(node)
    return list(kinds.values())


def _costs(
    nodes: list[Node],
    had: Mapping[DeviceId, Holding],
    needed: Mapping[DeviceId, Holding],
    sizes: Sizes,
) -> NDArray[np.float64]:
    """Bytes that each node (row) would receive in the part of each other one (column)."""
    costs = np.zeros((len(nodes), len(nodes)))
    for index in nodes[0].devices:
        devices = [DeviceId(node.name, index) for node in nodes]
        costs += sizes.missing(_each(devices, had), _each(devices, needed))
    return costs


def _each(devices: Iterable[DeviceId], found: Mapping[DeviceId, Holding]) -> list[Holding]:
    return [found.get(device, NOTHING) for device in devices]
