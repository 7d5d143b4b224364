"""What follows the last backward pass of a stage: reduction, gathering and update, by layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.compute import optimizer_time
from hetcli.perf.configuration import Configuration, LayerRange, Stage
from hetcli.perf.synchronisation import rings, synchronised
from hetcli.search.families import Problem
from hetcli.spec.model.architecture import MoeFeedForward

__all__ = ["ALONE", "FIRST", "LAST", "MIDDLE", "Tail", "cumulated", "folded", "tail_of"]

Floats = NDArray[np.float64]

# Where a stage is in the pipeline: in the middle, last, first, or all alone.
MIDDLE, LAST, FIRST, ALONE = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """What follows the last backward pass of a stage.

    Rows are the gradients' reduction, the parameters' gathering and the update, in seconds:
    `layers` [3, layers + 1] cumulated over layers, `ends` [3, roles] what no layer causes, and
    `experts` [3] what any layer with routed experts adds once.
    """

    layers: Floats
    ends: Floats
    experts: Floats

    def folded(self, chunks: int) -> Tail:
        """The same by layers of a chunk, where every stage has that many chunks of the model."""
        each = folded(np.diff(self.layers), chunks).sum(axis=-2)
        return Tail(cumulated(each), self.ends, self.experts)


def tail_of(problem: Problem, configuration: Configuration, stage: Stage) -> Tail:
    """What follows the last backward pass on the devices of a stage, for any layers on it."""
    ask = _asking(problem, configuration, stage)
    ends = [
        ask(LayerRange(0, 0), first, last)
        for first, last in ((False, False), (False, True), (True, False), (True, True))
    ]
    fixed = ends[MIDDLE]
    each = np.zeros((3, problem.model.layer_count))
    experts = np.zeros(3)
    start = 0
    for run in problem.model.layers:
        one = ask(LayerRange(start, 1), False, False) - fixed
        share = one
        if isinstance(run.layer.feed_forward, MoeFeedForward):
            # A second collective, of the experts' ring, is there once for all of them.
            if run.count > 1:
                share = ask(LayerRange(start, 2), False, False) - fixed - one
            experts = np.maximum(experts, one - share)
        each[:, start : start + run.count] = share[:, None]
        start += run.count
    return Tail(cumulated(each), np.array(ends).T, experts)


def _asking(
    problem: Problem, configuration: Configuration, stage: Stage
) -> Callable[[LayerRange, bool, bool], Floats]:
    hardware = problem.hardware
    kinds = {hardware.node_of(replica.devices[0]).device_type for replica in stage.replicas}
    found = rings(configuration, stage, (), hardware)
    # Only the first replica says something more than the rings do.
    small = replace(stage, replicas=stage.replicas[:1])

    def ask(layers: LayerRange, first: bool, last: bool) -> Floats:
        sync = synchronised(
            configuration,
            problem.model,
            replace(small, chunks=(layers,)),
            found,
            hardware,
            first=first,
            last=last,
        )
        update = max(
            optimizer_time(
                sync.state_parameters, kind, problem.workload.optimizer, configuration.offload
            )
            for kind in kinds
        )
        return np.array([sync.reduce_s, sync.gather_s, update])

    return ask


def folded(each: Floats, chunks: int) -> Floats:
    """What is given for each layer, last axis, as [.., chunks, layers of a chunk]."""
    found: Floats = each.reshape(*each.shape[:-1], chunks, -1)
    return found


def cumulated(each: Floats) -> Floats:
    """Sums of the first 0, 1, .. layers along the last axis."""
    result = np.zeros((*each.shape[:-1], each.shape[-1] + 1))
    np.cumsum(each, axis=-1, out=result[..., 1:])
    return result
