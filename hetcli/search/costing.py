"""What `perf` says of one family of candidates, as arrays over pools and layers.

Every number comes from the functions that judge a whole configuration, asked once for a small probe
of each pool; a sum over layers is then a difference of two entries of a cumulated array. Gradient
and parameter collectives are linear between no layer and all layers here; the prediction of the
chosen plans has them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.chains import chains
from hetcli.perf.compute import optimizer_time
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    Stage,
)
from hetcli.perf.hardware import Hardware
from hetcli.perf.rules import supports
from hetcli.perf.stage import Costs, replica_time
from hetcli.perf.synchronisation import synchronisation
from hetcli.search.layout import Degrees
from hetcli.search.pools import Pool
from hetcli.spec.model.architecture import Model
from hetcli.spec.workload import Pretrain

__all__ = ["Costing", "Family", "Passes", "Tail"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """Seconds of one micro-batch on one pool: cumulated over layers, and both ends' own."""

    forward: Floats
    backward: Floats
    first: tuple[float, float]
    last: tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """What follows the last backward pass on one pool: cumulated over layers, and fixed parts.

    Rows are the gradients' reduction (s), the parameters' gathering (s) and the update (s);
    `fixed` has the parts that no layer causes, `first` and `last` what the ends add.
    """

    layers: Floats
    fixed: Floats
    first: Floats
    last: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Degrees with the costs of every pool; `send[a, b]` is one boundary transfer, one direction.

    `inside[a]` is that between stages of one node.
    """

    degrees: Degrees
    micro_batches: int
    passes: tuple[Passes, ...]
    tails: tuple[Tail, ...]
    send: Floats
    inside: Floats


@dataclass(eq=False)
class Costing:
    """Asks `perf` and remembers the answers of one planning problem."""

    model: Model
    workload: Pretrain
    hardware: Hardware
    pools: Sequence[Pool]
    _costs: Costs = field(init=False)
    _passes: dict[tuple[Degrees, int], Passes] = field(default_factory=dict)
    _tails: dict[tuple[Degrees, int], Tail] = field(default_factory=dict)
    _sends: dict[tuple[Degrees, int, int, int, bool], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._costs = Costs(self.model)

    def family(self, degrees: Degrees) -> Family:
        """Costs of all pools that hold at least one stage; others get infinite seconds."""
        micro_batches = self.workload.global_batch // (degrees.micro_batch_size * degrees.data)
        usable = [self.runs(degrees, pool) for pool in self.pools]
        count = len(self.pools)
        send = np.full((count, count), np.inf)
        inside = np.full(count, np.inf)
        for a in self.pools:
            if not usable[a.index]:
                continue
            inside[a.index] = self._send(degrees, a, a, inside=True)
            for b in self.pools:
                if usable[b.index]:
                    send[a.index, b.index] = self._send(degrees, a, b, inside=False)
        return Family(
            degrees,
            micro_batches,
            tuple(
                self.passes(degrees, pool) if usable[pool.index] else self._no_passes()
                for pool in self.pools
            ),
            tuple(
                self._pool_tail(degrees, pool) if usable[pool.index] else self._no_tail()
                for pool in self.pools
            ),
            send,
            inside,
        )

    def _no_passes(self) -> Passes:
        never = np.full(self.model.layer_count + 1, np.inf)
        return Passes(never, never, (np.inf, np.inf), (np.inf, np.inf))

    def _no_tail(self) -> Tail:
        nothing = np.zeros(3)
        return Tail(np.zeros((3, self.model.layer_count + 1)), nothing, nothing, nothing)

    def runs(self, degrees: Degrees, pool: Pool) -> bool:
        """Whether a pool can hold a stage: it has the groups and the precision."""
        return pool.group_count(degrees.tensor) >= degrees.members and supports(
            pool.device_type.gpu, degrees.precision
        )

    # --- passes ---------------------------------------------------------------------------------

    def passes(self, degrees: Degrees, pool: Pool) -> Passes:
        """Costs of layers and ends on a pool."""
        # Layers cost the same whatever dp is, unless experts are shared over replicas.
        reach = -(-degrees.expert * degrees.expert_tensor // (degrees.tensor * degrees.context))
        key = (replace(degrees, data=reach, zero_stage=0), pool.index)
        if key not in self._passes:
            self._passes[key] = self._ask_passes(degrees, pool, reach)
        return self._passes[key]

    def _ask_passes(self, degrees: Degrees, pool: Pool, reach: int) -> Passes:
        configuration = self._probe(degrees, [self._members(degrees, pool, reach)])
        stage = configuration.stages[0]

        def ask(layers: LayerRange, *, first: bool = False, last: bool = False) -> Floats:
            time = replica_time(
                configuration,
                replace(stage, chunks=(layers,)),
                stage.replicas[0],
                first=first,
                last=last,
                hardware=self.hardware,
                costs=self._costs,
            )
            return np.array([time.forward[0].total, time.backward[0].total])

        each = np.zeros((2, self.model.layer_count))
        start = 0
        for run in self.model.layers:
            each[:, start : start + run.count] = ask(LayerRange(start, 1))[:, None]
            start += run.count
        first, last = ask(LayerRange(0, 0), first=True), ask(LayerRange(0, 0), last=True)
        forward, backward = _cumulated(each)
        return Passes(
            forward,
            backward,
            (float(first[0]), float(first[1])),
            (float(last[0]), float(last[1])),
        )

    # --- after the last backward pass -----------------------------------------------------------

    def _pool_tail(self, degrees: Degrees, pool: Pool) -> Tail:
        key = (replace(degrees, micro_batch_size=1, recompute="none", virtual_stages=1), pool.index)
        if key not in self._tails:
            self._tails[key] = self._ask_tail(degrees, pool)
        return self._tails[key]

    def _ask_tail(self, degrees: Degrees, pool: Pool) -> Tail:
        configuration = self._probe(degrees, [self._members(degrees, pool, degrees.data)])
        stage = configuration.stages[0]

        def ask(layers: LayerRange, *, first: bool = False, last: bool = False) -> Floats:
            sync = synchronisation(
                configuration,
                self.model,
                replace(stage, chunks=(layers,)),
                (),
                self.hardware,
                first=first,
                last=last,
            )
            update = optimizer_time(
                sync.state_parameters, pool.device_type, self.workload.optimizer, degrees.offload
            )
            return np.array([sync.reduce_s, sync.gather_s, update])

        fixed = ask(LayerRange(0, 0))
        each = np.zeros((3, self.model.layer_count))
        start = 0
        for run in self.model.layers:
            stop = start + run.count
            each[:, start:stop] = ((ask(LayerRange(start, run.count)) - fixed) / run.count)[:, None]
            start = stop
        return Tail(
            _cumulated(each),
            fixed,
            ask(LayerRange(0, 0), first=True) - fixed,
            ask(LayerRange(0, 0), last=True) - fixed,
        )

    # --- transfers ------------------------------------------------------------------------------

    def _send(self, degrees: Degrees, a: Pool, b: Pool, *, inside: bool) -> float:
        per_node = max(1, a.groups_per_node(degrees.tensor) // degrees.context)
        data = min(degrees.data, per_node)
        plain = replace(degrees, data=data, recompute="none", zero_stage=0, virtual_stages=1)
        key = (plain, a.index, b.index, data, inside)
        if key not in self._sends:
            here = self._members(degrees, a, data)
            if inside or (a is b and len(a.nodes) == 1):
                there = here
            else:
                there = self._members(degrees, b, data, skip=1 if a is b else 0)
            self._sends[key] = self._ask_send(degrees, here, there)
        return self._sends[key]

    def _ask_send(
        self,
        degrees: Degrees,
        here: Sequence[tuple[DeviceId, ...]],
        there: Sequence[tuple[DeviceId, ...]],
    ) -> float:
        configuration = self._probe(degrees, [here, there])
        found = chains(configuration, configuration.pipelines[0], self.hardware, self._costs)
        return max(chain.send_s[0] for chain in found)

    # --- probes ---------------------------------------------------------------------------------

    def _members(
        self, degrees: Degrees, pool: Pool, count: int, *, skip: int = 0
    ) -> list[tuple[DeviceId, ...]]:
        """Devices of the first `count` replicas of a stage that starts at the node `skip`."""
        groups = list(pool.groups(degrees.tensor))
        groups = groups[skip * pool.groups_per_node(degrees.tensor) :] or groups
        members = []
        for member in range(count):
            block = [
                groups[(member * degrees.context + part) % len(groups)]
                for part in range(degrees.context)
            ]
            members.append(tuple(device for group in block for device in group))
        return members

    def _probe(
        self, degrees: Degrees, stages: Sequence[Sequence[tuple[DeviceId, ...]]]
    ) -> Configuration:
        """Stages without layers on the given devices."""
        return Configuration(
            pipelines=(
                Pipeline(
                    tuple(
                        Stage(
                            chunks=(LayerRange(0, 0),),
                            tensor_parallel=degrees.tensor,
                            replicas=tuple(
                                Replica(devices, 1, degrees.micro_batch_size) for devices in members
                            ),
                            recompute=Recompute(degrees.recompute),
                        )
                        for members in stages
                    )
                ),
            ),
            micro_batch_size=degrees.micro_batch_size,
            global_batch=self.workload.global_batch,
            sequence=self.workload.sequence,
            precision=degrees.precision,
            framework=degrees.framework,
            context_parallel=degrees.context,
            expert_parallel=degrees.expert,
            expert_tensor_parallel=degrees.expert_tensor,
            sequence_parallel=degrees.sequence_parallel,
            zero_stage=degrees.zero_stage,
            offload=degrees.offload,
            attention=self.workload.attention,
        )


def _cumulated(each: Floats) -> Floats:
    """Sums of the first 0, 1, .. layers along the last axis."""
    result = np.zeros((*each.shape[:-1], each.shape[-1] + 1))
    np.cumsum(each, axis=-1, out=result[..., 1:])
    return result
