"""The same job in another situation: one node more, faster links, a type less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from hetcli.perf.hardware import DeviceType, Hardware, LinkCurve, Node
from hetcli.search.families import Problem
from hetcli.search.pools import pools

__all__ = ["PLACES", "Situation", "faster_device", "faster_links", "on", "situations"]

Place = Literal["inside nodes", "between nodes"]
PLACES: Final[tuple[Place, ...]] = ("inside nodes", "between nodes")
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """A change, in words, and the problem that it leads to."""

    change: str
    problem: Problem


def situations(problem: Problem) -> Iterator[Situation]:
    """One more node of each type, one type less, faster links, more memory, twice the batch."""
    hardware = problem.hardware
    types = dict.fromkeys(node.device_type.gpu.name for node in hardware.nodes)
    for name in types:
        yield Situation(f"one more node of {name}", on(problem, _with_node(hardware, name)))
    if len(types) > 1:
        for name in types:
            others = tuple(node for node in hardware.nodes if node.device_type.gpu.name != name)
            yield Situation(f"without {name}", on(problem, replace(hardware, nodes=others)))
    for place in PLACES:
        if _has_links(hardware, place):
            yield Situation(
                f"links {place} twice as fast", on(problem, faster_links(hardware, place))
            )
    yield Situation("twice the memory of every device", on(problem, _roomier(hardware)))
    workload = problem.workload.model_copy(
        update={"global_batch": 2 * problem.workload.global_batch}
    )
    yield Situation("twice the global batch", replace(problem, workload=workload))


def on(problem: Problem, hardware: Hardware) -> Problem:
    """The problem on other hardware, without quotas of what that does not have."""
    here = {
        name
        for node in hardware.nodes
        for name in (node.device_type.gpu.name, node.zone, node.region, node.fabric)
    }
    options = replace(
        problem.options,
        quotas=tuple(quota for quota in problem.options.quotas if quota[0] in here),
        must_use=tuple(name for name in problem.options.must_use if name in here),
    )
    return replace(problem, hardware=hardware, pools=pools(hardware), options=options)


def faster_device(hardware: Hardware, gpu: str, factor: float) -> Hardware:
    """All devices of a type computing `factor` times as fast."""

    def sped_up(kind: DeviceType) -> DeviceType:
        return replace(kind, slowdown=kind.slowdown / factor) if kind.gpu.name == gpu else kind

    return _with_types(hardware, sped_up)


def faster_links(hardware: Hardware, place: Place, factor: float = 2.0) -> Hardware:
    """All links inside nodes, or all between them, with `factor` times the bandwidth."""

    def sped_up(link: LinkCurve) -> LinkCurve:
        return replace(
            link,
            bytes_per_s=link.bytes_per_s * factor,
            points=tuple((size, rate * factor) for size, rate in link.points),
        )

    known: dict[LinkCurve, LinkCurve] = {}

    def once(link: LinkCurve) -> LinkCurve:
        return known.setdefault(link, sped_up(link))

    def all_of(links: Mapping[Key, LinkCurve]) -> dict[Key, LinkCurve]:
        return {between: once(link) for between, link in links.items()}

    if place == "inside nodes":
        nodes = tuple(replace(node, intra=once(node.intra)) for node in hardware.nodes)
        return replace(hardware, nodes=nodes)
    return replace(
        hardware,
        nodes=tuple(replace(node, nic=once(node.nic)) for node in hardware.nodes),
        place_links=all_of(hardware.place_links),
        pair_links=all_of(hardware.pair_links),
        cross_vendor=hardware.cross_vendor and once(hardware.cross_vendor),
    )


def _has_links(hardware: Hardware, place: Place) -> bool:
    if place == "inside nodes":
        return any(len(node.devices) > 1 for node in hardware.nodes)
    return len(hardware.nodes) > 1


def _with_node(hardware: Hardware, gpu: str) -> Hardware:
    """One more node, like the last one of the type in every respect."""
    model = [node for node in hardware.nodes if node.device_type.gpu.name == gpu][-1]
    name = f"{model.name}-more"
    while name in hardware.by_name:
        name += "-more"
    position = hardware.nodes.index(model) + 1
    nodes = (
        *hardware.nodes[:position],
        replace(model, name=name, host=""),
        *hardware.nodes[position:],
    )
    return replace(hardware, nodes=nodes)


def _roomier(hardware: Hardware) -> Hardware:
    return _with_types(hardware, lambda kind: replace(kind, memory_bytes=2 * kind.memory_bytes))


def _with_types(hardware: Hardware, change: Callable[[DeviceType], DeviceType]) -> Hardware:
    """Device types are told apart by identity: each is changed once."""
    changed: dict[int, DeviceType] = {}
    nodes: list[Node] = []
    for node in hardware.nodes:
        kind = node.device_type
        if id(kind) not in changed:
            changed[id(kind)] = change(kind)
        nodes.append(replace(node, device_type=changed[id(kind)]))
    return replace(hardware, nodes=tuple(nodes))
