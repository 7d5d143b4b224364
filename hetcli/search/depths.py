"""How deep the pipelines of some degrees can be, and a bound from their compute alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hetcli.search.costing import Costing
from hetcli.search.families import Problem, interleavings
from hetcli.search.layout import Degrees
from hetcli.search.passing import pipeline_bounds
from hetcli.search.requirements import Requirements
from hetcli.search.worth import SECONDS_PER_HOUR

__all__ = ["Depths"]

Ints = NDArray[np.int64]


@dataclass(eq=False)
class Depths:
    """The pipelines of one planning problem, before their stages have costs."""

    problem: Problem
    costing: Costing
    requirements: Requirements
    _most: dict[object, Ints] = field(default_factory=dict)

    def most_stages(self, degrees: Degrees) -> Ints:
        """Stages that each pool holds, [pools]."""
        key = (degrees.precision, degrees.tensor, degrees.context, degrees.data)
        if key not in self._most:
            self._most[key] = self._most_stages(degrees)
        return self._most[key]

    def _most_stages(self, degrees: Degrees) -> Ints:
        held = [
            pool.group_count(degrees.tensor) // degrees.members
            if self.costing.runs(degrees, pool)
            else 0
            for pool in self.problem.pools
        ]
        return np.minimum(held, self.requirements.most_stages(degrees))

    def deepest(self, degrees: Degrees, most: Ints, chunks: int | None = None) -> int:
        """Stages of the deepest pipeline, where the pools hold `most`, with that many chunks."""
        if degrees.zero_stage > 1:
            return 1
        chunks = chunks or degrees.virtual_stages
        layers = self.problem.model.layer_count // chunks
        # A first or last stage without layers has no chunks.
        ends = 2 if chunks == 1 else 0
        return int(min(layers + ends, self.costing.micro_batches(degrees), most.sum()))

    def chunks(self, degrees: Degrees) -> tuple[int, ...]:
        """Numbers of model chunks a stage, above one, that pipelines may have."""
        if self.deepest(degrees, self.most_stages(degrees)) < 2:
            return ()
        return interleavings(self.problem, degrees)

    def least(self, degrees: Degrees, chunks: Sequence[int] = ()) -> float:
        """A bound on the value of a family from its compute alone; infinite where none can be.

        With `chunks` it is the bound of all families with so many chunks, ascending.
        """
        chunks = chunks or (degrees.virtual_stages,)
        most = self.most_stages(degrees)
        deepest = self.deepest(degrees, most, chunks[0])
        stages = self.problem.options.pipeline_parallel
        if not most.any() or deepest < (stages or 1):
            return np.inf
        unit, ends = self.costing.unit_seconds(degrees, most)
        m, layers = self.costing.micro_batches(degrees), self.problem.model.layer_count
        if self.problem.workload.objective == "cost":
            hourly = [pool.node.price_per_device_hour or 0.0 for pool in self.problem.pools]
            dollars = unit * degrees.devices_per_stage / SECONDS_PER_HOUR
            return float(m * (layers + ends) * (dollars * hourly)[most > 0].min())
        part = self.costing.first_chunk(chunks[-1])
        even = chunks[0] if len(chunks) == 1 and part * chunks[0] == 1 else None
        found = pipeline_bounds(unit, most, layers, ends, m, deepest, part, even)
        return float(found.min() if stages is None else found[stages - 1])
