"""What `perf` says of one pipeline's stages: seconds, transfers, memory and synchronisation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.chains import chains
from hetcli.perf.compute import kernel_of, optimizer_time
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    Shape,
    Stage,
    TrainingPrecision,
)
from hetcli.perf.memory import layer_kinds, stage_memory_model
from hetcli.perf.stage import Costs
from hetcli.perf.synchronisation import synchronisation
from hetcli.search.costing import stage_passes
from hetcli.search.families import Problem
from hetcli.search.limits import peaks_by_kind
from hetcli.search.pools import Pool
from hetcli.spec.workload import RecomputeChoice

# Stages of most pipelines: the memory of so many micro-batches in flight is asked for at once.
COMMON_DEPTH = 16

__all__ = ["End", "Ends", "Kind", "KindCosts", "PipelineCosts", "Setting", "blank"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all stages of a pipeline share.

    `holders` is over how many replicas the optimizer states of a layer are sharded, `replicas` of
    how many equal pipelines a column is at once. About `members` pipelines, spread over the nodes
    of `pools`, synchronise their gradients.
    """

    precision: TrainingPrecision
    micro_batch_size: int
    recompute: RecomputeChoice
    holders: int = 1
    replicas: int = 1
    members: int = 1
    pools: tuple[int, ...] = ()

    @property
    def sequences(self) -> int:
        """Those of one micro-batch on every replica."""
        return self.micro_batch_size * self.replicas

    @property
    def alone(self) -> Setting:
        """What the seconds of a micro-batch depend on."""
        return Setting(self.precision, self.micro_batch_size, self.recompute)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Stages of one pool with one tensor degree."""

    pool: Pool
    tensor: int


@dataclass(frozen=True, slots=True)
class End:
    """Seconds to reduce gradients, to gather parameters and to update them, none of it hidden."""

    reduce_s: float = 0.0
    gather_s: float = 0.0
    update_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ends:
    """That of a mean layer, of the embedding and of the head."""

    layer: End
    first: End
    last: End


@dataclass(frozen=True, slots=True, eq=False)
class KindCosts:
    """Seconds of a micro-batch on a stage of one kind.

    `forward` and `backward` are cumulated over the model's layers; `first` and `last` are what the
    ends add to both passes.
    """

    forward: Floats
    backward: Floats
    first: tuple[float, float]
    last: tuple[float, float]

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.forward) - 1

    @property
    def layer_s(self) -> float:
        """Mean seconds of one layer, both passes."""
        return float(self.forward[-1] + self.backward[-1]) / self.layers


def blank(
    problem: Problem, setting: Setting, pipelines: tuple[Pipeline, ...], tensor: int
) -> Configuration:
    """A configuration of pipelines whose widest tensor group has `tensor` ranks."""
    workload = problem.workload
    return Configuration(
        pipelines=pipelines,
        micro_batch_size=setting.micro_batch_size,
        global_batch=workload.global_batch,
        sequence=workload.sequence,
        precision=setting.precision,
        framework=problem.framework,
        sequence_parallel=_splits_sequence(problem, tensor),
        zero_stage=problem.options.zero_stage if problem.options.zero_stage is not None else 1,
        offload=problem.options.offload,
        attention=workload.attention,
    )


def _splits_sequence(problem: Problem, tensor: int) -> bool:
    """Whether tensor groups keep parts of the sequence, as in `families`."""
    megatron = problem.framework == "megatron"
    return megatron and tensor > 1 and problem.workload.sequence % tensor == 0


@dataclass(eq=False)
class PipelineCosts:
    """Asks `perf` about single stages and boundaries, and remembers the answers."""

    problem: Problem
    costs: Costs = field(init=False)
    _named: dict[tuple[int, int], Kind] = field(default_factory=dict)
    _kinds: dict[tuple[Kind, Setting], KindCosts] = field(default_factory=dict)
    _ended: dict[tuple[Kind, TrainingPrecision, int, tuple[int, ...]], Ends] = field(
        default_factory=dict
    )
    _sends: dict[tuple[Kind, Kind, Setting, bool], float] = field(default_factory=dict)
    _most: dict[tuple[Kind, Setting, int, bool], Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.costs = Costs(self.problem.model)

    def kind(self, pool: Pool, tensor: int) -> Kind:
        """The kind of a pool and a tensor degree: always the same one, as answers go by it."""
        return self._named.setdefault((pool.index, tensor), Kind(pool, tensor))

    def of(self, kind: Kind, setting: Setting) -> KindCosts:
        """Seconds of stages of a kind."""
        key = (kind, setting.alone)
        if key not in self._kinds:
            self._kinds[key] = self._ask(kind, setting)
        return self._kinds[key]

    def _ask(self, kind: Kind, setting: Setting) -> KindCosts:
        configuration = self._probe(setting, [(kind, next(kind.pool.groups(kind.tensor)))])
        each, first, last = stage_passes(self.problem, configuration, self.costs)
        forward, backward = np.pad(each.cumsum(axis=1), ((0, 0), (1, 0)))
        return KindCosts(
            forward,
            backward,
            (float(first[0]), float(first[1])),
            (float(last[0]), float(last[1])),
        )

    # --- the end of a step ----------------------------------------------------------------------

    def ends(self, kind: Kind, setting: Setting) -> Ends:
        """What a mean layer, the embedding and the head add to the end of a step."""
        key = (kind, setting.precision, setting.members, setting.pools)
        if key not in self._ended:
            self._ended[key] = self._ask_ends(kind, setting)
        return self._ended[key]

    def _ask_ends(self, kind: Kind, setting: Setting) -> Ends:
        problem, count = self.problem, self.problem.model.layer_count
        own = self._stage(kind, next(kind.pool.groups(kind.tensor)), setting, LayerRange(0, count))
        mine = own.replicas[0].devices
        nodes = [
            node for pool in problem.pools if pool.index in setting.pools for node in pool.nodes
        ]
        each_node = -(-setting.members // max(len(nodes), 1))
        free = (
            device for node in nodes for device in node.device_ids[:each_node] if device not in mine
        )
        others = [
            replace(own, tensor_parallel=1, replicas=(replace(own.replicas[0], devices=(each,)),))
            for each in islice(free, setting.members - 1)
        ]
        configuration = blank(problem, setting, (Pipeline((own,)),), kind.tensor)

        def end(layers: int, *, first: bool = False, last: bool = False) -> End:
            stage = replace(own, chunks=(LayerRange(0, layers),))
            found = synchronisation(
                configuration,
                problem.model,
                stage,
                others,
                problem.hardware,
                first=first,
                last=last,
            )
            update = optimizer_time(
                found.state_parameters,
                kind.pool.device_type,
                problem.workload.optimizer,
                problem.options.offload,
            )
            return End(found.reduce_s, found.gather_s, update)

        whole = end(count)
        mean = End(whole.reduce_s / count, whole.gather_s / count, whole.update_s / count)
        return Ends(mean, end(0, first=True), end(0, last=True))

    # --- transfers ------------------------------------------------------------------------------

    def send(self, a: Kind, b: Kind, setting: Setting, *, inside: bool) -> float:
        """Seconds of one boundary, one direction; `inside` a node where both are of one kind."""
        key = (a, b, setting.alone, inside)
        if key not in self._sends:
            here = next(a.pool.groups(a.tensor))
            groups = list(b.pool.groups(b.tensor))
            away = [group for group in groups if group[0].node != here[0].node]
            there = groups[1 % len(groups)] if inside or not away else away[0]
            configuration = self._probe(setting, [(a, here), (b, there)])
            pipeline = configuration.pipelines[0]
            found = chains(configuration, pipeline, self.problem.hardware, self.costs)
            self._sends[key] = found[0].send_s[0]
        return self._sends[key]

    # --- memory ---------------------------------------------------------------------------------

    def most_layers(
        self, kind: Kind, setting: Setting, held: int, *, pipelined: bool, heaviest: bool = True
    ) -> Ints:
        """Most layers of a stage, [4, held]: by role and by micro-batches in flight, 1 to `held`.

        The role is 2 x (holds the embedding) + (holds the head); -1 where not even no layer fits.
        Where layers are unlike, the heaviest or else the lightest kind counts.
        """
        key = (kind, setting.alone, setting.holders, pipelined)
        known = self._most.get(key)
        if known is None or known.shape[-1] < held:
            known = self._ask_most(kind, setting, max(held, COMMON_DEPTH), pipelined=pipelined)
            self._most[key] = known
        return known[0 if heaviest else 1, :, :held]

    def _ask_most(self, kind: Kind, setting: Setting, held: int, *, pipelined: bool) -> Ints:
        problem, device_type = self.problem, kind.pool.device_type
        sequence = problem.workload.sequence
        memory = stage_memory_model(
            problem.model,
            device_type,
            Shape(
                sequence=sequence,
                micro_batch_size=setting.micro_batch_size,
                precision=setting.precision,
                kernel=kernel_of(device_type, problem.workload.attention),
                tensor_parallel=kind.tensor,
                sequence_parallel=_splits_sequence(problem, kind.tensor),
                expert_tensor_parallel=1,
            ),
            layer_kinds(
                tuple(run.layer for run in problem.model.layers), Recompute(setting.recompute)
            ),
            framework=problem.framework,
            zero_stage=problem.options.zero_stage if problem.options.zero_stage is not None else 1,
            offload=problem.options.offload,
            data_parallel=setting.holders,
            pipelined=pipelined,
        )
        peak = peaks_by_kind(memory, problem.model.layer_count, held)
        fits = peak <= device_type.memory_bytes - problem.workload.memory_margin
        most = np.cumprod(fits, axis=-1).sum(axis=-1) - 1
        return np.array([most.min(axis=-1), most.max(axis=-1)])

    # --- probes ---------------------------------------------------------------------------------

    def _stage(
        self, kind: Kind, devices: tuple[DeviceId, ...], setting: Setting, layers: LayerRange
    ) -> Stage:
        return Stage(
            chunks=(layers,),
            tensor_parallel=kind.tensor,
            replicas=(Replica(devices, 1, setting.micro_batch_size),),
            recompute=Recompute(setting.recompute),
        )

    def _probe(
        self, setting: Setting, stages: list[tuple[Kind, tuple[DeviceId, ...]]]
    ) -> Configuration:
        """One pipeline of stages without layers."""
        pipeline = Pipeline(
            tuple(self._stage(kind, devices, setting, LayerRange(0, 0)) for kind, devices in stages)
        )
        widest = max(kind.tensor for kind, _ in stages)
        return blank(self.problem, setting, (pipeline,), widest)
