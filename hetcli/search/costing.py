"""Asks `perf` what the kinds of stages of a family cost, as arrays over layers.

Every number comes from the functions that judge a whole configuration, asked once for a small probe
of each pool; a sum over layers is then a difference of two entries of a cumulated array. For stages
that are placed alike these are the numbers of the whole prediction; for others they are those of
the luckiest replica, so that bounds made from them hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.chains import boundary_seconds
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    Stage,
)
from hetcli.perf.rules import can_talk, runs_attention, supports
from hetcli.perf.stage import Costs, Pass, replica_time
from hetcli.perf.step import micro_exposed
from hetcli.perf.synchronisation import synchronisation
from hetcli.search.costs import Family, Passes, Row
from hetcli.search.families import Problem, recomputes
from hetcli.search.layout import Degrees
from hetcli.search.placement import regular_stages, stages_per_node
from hetcli.search.pools import Orders, Pool, orders
from hetcli.search.tail import ALONE, FIRST, LAST, Tail, tail_of
from hetcli.spec.model.architecture import Layer, MoeFeedForward
from hetcli.spec.workload import RecomputeChoice

__all__ = ["Costing", "stage_passes"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


# A part of a stage that is next to nothing.
_LITTLE = 1e-6


@dataclass(eq=False)
class Costing:
    """Asks `perf` and remembers the answers of one planning problem."""

    problem: Problem
    _costs: Costs = field(init=False)
    _passes: dict[object, Passes] = field(default_factory=dict)
    _tails: dict[object, Tail] = field(default_factory=dict)
    _units: dict[object, tuple[Floats, float]] = field(default_factory=dict)
    _choices: dict[int, tuple[RecomputeChoice, ...]] = field(default_factory=dict)
    _sends: dict[object, float] = field(default_factory=dict)
    _transferred: dict[object, tuple[Floats, Floats, Floats]] = field(default_factory=dict)
    _orders: dict[tuple[int, ...], Orders] = field(default_factory=dict)
    _routed: dict[int, Ints] = field(default_factory=dict)
    _kinds: dict[int, Ints] = field(default_factory=dict)
    _groups: dict[object, list[tuple[DeviceId, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._costs = Costs(self.problem.model)

    @property
    def costs(self) -> Costs:
        """Layer times and communication, each computed once."""
        return self._costs

    @cached_property
    def _each(self) -> list[Layer]:
        return list(self.problem.model.each_layer())

    def routed(self, chunks: int) -> Ints:
        """Layers with routed experts among the first 0, 1, .. layers of all chunks."""
        if chunks not in self._routed:
            each = [isinstance(layer.feed_forward, MoeFeedForward) for layer in self._each]
            number = np.array(each).reshape(chunks, -1).sum(axis=0)
            self._routed[chunks] = np.concatenate([[0], np.cumsum(number)])
        return self._routed[chunks]

    def first_chunk(self, chunks: int) -> float:
        """The least part of a stage that its first chunk is, whatever its layers are."""
        alike = len(self.kinds(1)) == 1
        return 1 / chunks if alike else min(1 / chunks, _LITTLE)

    def kinds(self, chunks: int) -> Ints:
        """The first layer of each kind; with chunks, of each combination of kinds."""
        if chunks not in self._kinds:
            kinds = np.array([id(layer) for layer in self._each]).reshape(chunks, -1)
            first: dict[tuple[int, ...], int] = {}
            for position, kind in enumerate(kinds.T.tolist()):
                first.setdefault(tuple(kind), position)
            self._kinds[chunks] = np.array(list(first.values()))
        return self._kinds[chunks]

    @cached_property
    def apart(self) -> Bools:
        """Pools that may not be in one pipeline, [pools, pools]."""
        pools = self.problem.pools
        return np.array(
            [
                [not can_talk(self.problem.hardware, one.node, other.node) for other in pools]
                for one in pools
            ]
        )

    def orders(self, chosen: tuple[int, ...]) -> Orders:
        """The orders of some pools along the pipeline."""
        if chosen not in self._orders:
            pools = [self.problem.pools[index] for index in chosen]
            self._orders[chosen] = orders(pools, self._distance)
        return self._orders[chosen]

    def _distance(self, one: Pool, other: Pool) -> float:
        """Seconds of the activations of one sequence between two pools."""
        nbytes = 2 * self.problem.workload.sequence * self.problem.model.hidden_size
        return self.problem.hardware.between(one.node, other.node).seconds(nbytes)

    def unit_seconds(self, degrees: Degrees, most_stages: Ints) -> tuple[Floats, float]:
        """Least seconds of one unit of work on each pool, the mean layer of one pool being a unit,
        and how many units what the ends of the pipeline do beside their layers is at least.

        Infinite on pools without a stage. Where layers are unlike, a pool does some of them faster
        than others; the least ratio never overestimates.
        """
        key = (_without_data(degrees), _reach(degrees), tuple(most_stages > 0))
        if key not in self._units:
            found = np.full(len(self.problem.pools), np.inf)
            ends = np.full((2, len(found)), np.inf)
            units: Floats | None = None
            for pool in self.problem.pools:
                if not most_stages[pool.index]:
                    continue
                plain = replace(degrees, virtual_stages=1)
                passes = self.passes(plain, pool, self._recomputes(pool)[-1])
                each = np.diff(passes.layers.sum(axis=0))
                if units is None:
                    units = each / each.mean()
                unit = found[pool.index] = (each / units).min()
                ends[:, pool.index] = passes.ends[:, [FIRST, LAST]].sum(axis=0) / unit
            self._units[key] = found, float(ends.min(axis=1).sum())
        return self._units[key]

    def micro_batches(self, degrees: Degrees) -> int:
        """Micro-batches of one replica."""
        return self.problem.workload.global_batch // (degrees.micro_batch_size * degrees.data)

    def runs(self, degrees: Degrees, pool: Pool) -> bool:
        """Whether a pool can hold a stage: it has the groups, the precision and the attention."""
        gpu, attention = pool.device_type.gpu, self.problem.workload.attention
        return (
            pool.group_count(degrees.tensor) >= degrees.members
            and supports(gpu, degrees.precision)
            and runs_attention(degrees.framework, gpu, attention, degrees.context)
        )

    def family(self, degrees: Degrees, most_stages: Ints) -> Family:
        """The costs of all kinds of stages.

        Args:
            degrees: of the family.
            most_stages: stages that each pool may hold, [pools]; pools without one have no row.
        """
        rows: list[Row] = []
        regular_everywhere = not self.problem.hardware.pair_links
        for pool in self.problem.pools:
            most = int(most_stages[pool.index])
            if not most:
                continue
            regular = regular_stages(
                pool,
                tensor=degrees.tensor,
                context=degrees.context,
                data=degrees.data,
                experts=degrees.expert * degrees.expert_tensor,
            )
            if not regular_everywhere and len(pool.nodes) > 1:
                regular = 0
            choices = self._recomputes(pool)
            rows.append(
                Row(
                    pool=pool,
                    most=most,
                    regular=min(regular, most),
                    per_node=stages_per_node(
                        pool, tensor=degrees.tensor, members=degrees.members, stages=1
                    ),
                    choices=choices,
                    passes=tuple(self.passes(degrees, pool, choice) for choice in choices),
                    tail=self._tail(degrees, pool),
                )
            )
        return Family(
            degrees, self.micro_batches(degrees), tuple(rows), *self._transfers(degrees, rows)
        )

    # --- passes ---------------------------------------------------------------------------------

    def passes(self, degrees: Degrees, pool: Pool, recompute: RecomputeChoice) -> Passes:
        """Costs of layers and ends on a pool."""
        # Layers cost the same whatever dp is, unless experts are shared over replicas.
        chunks = degrees.virtual_stages
        key = (_without_data(degrees), _reach(degrees), chunks, recompute, pool.index)
        if key not in self._passes:
            if chunks > 1:
                whole = self.passes(replace(degrees, virtual_stages=1), pool, recompute)
                found = Passes.of(np.diff(whole.layers), whole.ends, chunks)
            else:
                members = self._members(degrees, pool, _reach(degrees))
                configuration = self._probe(replace(degrees, recompute=recompute), [members])
                each, first, last = stage_passes(self.problem, configuration, self._costs)
                ends = np.array([np.zeros(2), last, first, first + last])
                found = Passes.of(each, ends.T, chunks)
            self._passes[key] = found
        return self._passes[key]

    def _recomputes(self, pool: Pool) -> tuple[RecomputeChoice, ...]:
        if pool.index not in self._choices:
            self._choices[pool.index] = recomputes(self.problem, pool)
        return self._choices[pool.index]

    # --- after the last backward pass -----------------------------------------------------------

    def _tail(self, degrees: Degrees, pool: Pool) -> Tail:
        chunks = degrees.virtual_stages
        key = (_of_states(degrees), degrees.data, chunks, pool.index)
        if key not in self._tails:
            if chunks > 1:
                whole = self._tail(replace(degrees, virtual_stages=1), pool)
                self._tails[key] = whole.folded(chunks)
            else:
                configuration = self._probe(degrees, [self._members(degrees, pool, degrees.data)])
                self._tails[key] = tail_of(self.problem, configuration, configuration.stages[0])
        return self._tails[key]

    def micro_exposed(self, degrees: Degrees, row: Row) -> Floats:
        """Seconds of a micro-batch that the gathers of ZeRO-3 stick out, for the whole model on one
        stage, by choice of what is recomputed."""
        if degrees.zero_stage < 3:
            return np.zeros(len(row.choices))
        members = self._members(degrees, row.pool, degrees.data)
        configuration = self._probe(degrees, [members])
        layers = self.problem.model.layer_count
        stage = replace(configuration.stages[0], chunks=(LayerRange(0, layers),))
        sync = synchronisation(
            configuration,
            self.problem.model,
            stage,
            (),
            self.problem.hardware,
            first=True,
            last=True,
        )
        return np.array(
            [
                micro_exposed(sync, *(Pass(float(seconds)) for seconds in both))
                for passes in row.passes
                for both in [passes.layers[:, -1] + passes.ends[:, ALONE]]
            ]
        )

    # --- transfers ------------------------------------------------------------------------------

    def _transfers(self, degrees: Degrees, rows: Sequence[Row]) -> tuple[Floats, Floats, Floats]:
        """`send`, `luckiest` and `inside` of the rows; there are none without a second stage."""
        where = np.array([row.pool.index for row in rows])
        together = [
            min(degrees.data, max(1, row.pool.groups_per_node(degrees.tensor) // degrees.context))
            for row in rows
        ]
        key = (_of_messages(degrees), tuple(where), tuple(together))
        if key not in self._transferred:
            self._transferred[key] = self._ask_transfers(degrees, rows, together)
        return self._transferred[key]

    def _ask_transfers(
        self, degrees: Degrees, rows: Sequence[Row], together: Sequence[int]
    ) -> tuple[Floats, Floats, Floats]:
        size = len(rows)
        send, luckiest = np.full((size, size), np.inf), np.full((size, size), np.inf)
        inside = np.full(size, np.inf)
        for one, here in enumerate(rows):
            if here.pool.groups_per_node(degrees.tensor) > degrees.context:
                inside[one] = self._send(degrees, here.pool, here.pool, 1, inside=True)
            for other, there in enumerate(rows):
                if one == other and len(here.pool.nodes) == 1:
                    continue
                for table, data in ((send, together[one]), (luckiest, 1)):
                    table[one, other] = self._send(
                        degrees, here.pool, there.pool, data, inside=False
                    )
        return send, luckiest, inside

    def _send(self, degrees: Degrees, a: Pool, b: Pool, data: int, *, inside: bool) -> float:
        key = (_of_messages(degrees), data, a.index, b.index, inside)
        if key not in self._sends:
            here = self._members(degrees, a, data)
            there = here if inside else self._members(degrees, b, data, skip=1 if a is b else 0)
            self._sends[key] = boundary_seconds(
                self._probe(degrees, [here, there]), self.problem.model, self.problem.hardware
            )
        return self._sends[key]

    # --- probes ---------------------------------------------------------------------------------

    def _members(
        self, degrees: Degrees, pool: Pool, count: int, *, skip: int = 0
    ) -> list[tuple[DeviceId, ...]]:
        """Devices of the first `count` replicas of a stage that starts at the node `skip`."""
        key = (pool.index, degrees.tensor)
        if key not in self._groups:
            self._groups[key] = list(pool.groups(degrees.tensor))
        groups = self._groups[key]
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
        workload = self.problem.workload
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
            global_batch=workload.global_batch,
            sequence=workload.sequence,
            precision=degrees.precision,
            framework=degrees.framework,
            context_parallel=degrees.context,
            expert_parallel=degrees.expert,
            expert_tensor_parallel=degrees.expert_tensor,
            sequence_parallel=degrees.sequence_parallel,
            zero_stage=degrees.zero_stage,
            offload=degrees.offload,
            attention=workload.attention,
        )


def stage_passes(
    problem: Problem, configuration: Configuration, costs: Costs
) -> tuple[Floats, Floats, Floats]:
    """Forward and backward seconds of a micro-batch on the first stage of a configuration.

    Returns:
        Those of every layer of the model, [2, layers], and what being the first and being the last
        stage adds, [2] each.
    """
    stage = configuration.stages[0]

    def ask(layers: LayerRange, *, first: bool = False, last: bool = False) -> Floats:
        time = replica_time(
            configuration,
            replace(stage, chunks=(layers,)),
            stage.replicas[0],
            first=first,
            last=last,
            hardware=problem.hardware,
            costs=costs,
        )
        return np.array([time.forward[0].total, time.backward[0].total])

    each = np.zeros((2, problem.model.layer_count))
    start = 0
    for run in problem.model.layers:
        each[:, start : start + run.count] = ask(LayerRange(start, 1))[:, None]
        start += run.count
    return each, ask(LayerRange(0, 0), first=True), ask(LayerRange(0, 0), last=True)


def _reach(degrees: Degrees) -> int:
    """Replicas over which experts are shared."""
    return -(-degrees.expert * degrees.expert_tensor // (degrees.tensor * degrees.context))


def _of_states(degrees: Degrees) -> tuple[object, ...]:
    """What the states of a stage depend on beside its replicas."""
    return (
        degrees.precision,
        degrees.tensor,
        degrees.context,
        degrees.expert,
        degrees.expert_tensor,
        degrees.offload,
        degrees.sequence_parallel,
        degrees.zero_stage,
    )


def _of_messages(degrees: Degrees) -> tuple[object, ...]:
    """What the messages between stages depend on."""
    return (
        degrees.precision,
        degrees.tensor,
        degrees.context,
        degrees.micro_batch_size,
        degrees.sequence_parallel,
    )


def _without_data(degrees: Degrees) -> tuple[object, ...]:
    """What costs depend on beside data parallelism, sharding and recomputation."""
    return (
        degrees.precision,
        degrees.tensor,
        degrees.context,
        degrees.expert,
        degrees.expert_tensor,
        degrees.micro_batch_size,
        degrees.offload,
        degrees.sequence_parallel,
    )
