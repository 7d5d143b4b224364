"""Two models trained on the same devices at once, their pipelines in opposite directions (RLHFuse).

In RLHF the actor and the critic are trained on the same samples. One after the other each pays its
own bubble; fused, one's work fills the other's (arXiv 2409.13221, section 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hetcli.errors import ConfigurationError
from hetcli.perf.pipeline.list_scheduling import list_schedule
from hetcli.perf.pipeline.work import Place, Route, Schedule

__all__ = ["FusedModel", "fused_lower_bound", "fused_schedule", "fused_times"]


@dataclass(frozen=True, slots=True)
class FusedModel:
    """One of two models: seconds of a micro-batch at each stage, micro-batches of each pipeline.

    With fewer stages than there are devices it has several equal pipelines side by side.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    micro_batches: int

    @property
    def stages(self) -> int:
        """Stages of each pipeline."""
        return len(self.forward_s)


def _devices(first: FusedModel, second: FusedModel) -> int:
    devices = max(first.stages, second.stages)
    fewer = min(first.stages, second.stages)
    if devices % fewer:
        raise ConfigurationError(
            f"pipelines of {first.stages} and {second.stages} stages on the same devices",
            why="the shorter pipeline must fit a whole number of times",
            fix=f"{devices - devices % fewer} or {devices - devices % fewer + fewer} stages "
            f"beside {fewer}",
        )
    return devices


def _stage_of(first: FusedModel, second: FusedModel) -> Iterator[tuple[int, int]]:
    """The stage of the first and of the second model that each device holds."""
    for device in range(_devices(first, second)):
        yield device % first.stages, second.stages - 1 - device % second.stages


def fused_times(
    first: FusedModel, second: FusedModel
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
    """`forward_s` and `backward_s` of a fused schedule, as `simulate` takes them."""
    held = tuple(_stage_of(first, second))
    return (
        tuple((first.forward_s[one], second.forward_s[two]) for one, two in held),
        tuple((first.backward_s[one], second.backward_s[two]) for one, two in held),
    )


def fused_schedule(first: FusedModel, second: FusedModel) -> Schedule:
    """Return an order for both; chunk 0 is the first model, which runs from device 0 upwards.

    Forwards as early as each model's own 1F1B would allow: no device holds more activations of a
    model than in that model's 1F1B pipeline. Raises ConfigurationError when one number of stages
    is not a multiple of the other.
    """
    devices = _devices(first, second)
    routes: list[Route] = []
    route_of: list[int] = []
    for chunk, model in enumerate((first, second)):
        for start in range(0, devices, model.stages):
            members = range(start, start + model.stages)
            route_of += [len(routes)] * model.micro_batches
            routes.append(
                tuple(Place(device, chunk) for device in (reversed(members) if chunk else members))
            )
    limits = {
        place: len(route) - position for route in routes for position, place in enumerate(route)
    }
    forward, backward = fused_times(first, second)
    order = list_schedule(
        devices,
        routes,
        route_of,
        limits=limits,
        forward_s=lambda place: forward[place.stage][place.chunk],
        backward_s=lambda place: backward[place.stage][place.chunk],
        forward_first=True,
    )
    return Schedule("fused", order, tuple(routes), tuple(route_of))


def fused_lower_bound(first: FusedModel, second: FusedModel) -> float:
    """Seconds that no fused order can beat (the bound that RLHFuse measures itself against).

    A device does all its work, cannot start before the sooner of the two first micro-batches has
    come to it, and after its last backward that gradient still has to reach its first stage.
    """
    return max(
        first.micro_batches * (first.forward_s[one] + first.backward_s[one])
        + second.micro_batches * (second.forward_s[two] + second.backward_s[two])
        + min(sum(first.forward_s[:one]), sum(second.forward_s[:two]))
        + min(sum(first.backward_s[:one]), sum(second.backward_s[:two]))
        for one, two in _stage_of(first, second)
    )
