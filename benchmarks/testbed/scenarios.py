"""Emulated clusters of unlike nodes, and every plan of a small space over them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Replica,
    Shape,
    Stage,
)
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    Positions,
)
from hetcli.spec.plan import PlanDevice
from hetcli.spec.workload import Pretrain
from hetcli.trial.flops import layer_flops
from hetcli.trial.job import Pacing

__all__ = [
    "ACTIVATION_BYTES",
    "LAYER_BYTES",
    "SEQUENCE",
    "SHORT",
    "Scenario",
    "draw",
    "short_name",
    "whole_space",
]

SEQUENCE = 64
LAYER = Layer(
    attention=GroupedQueryAttention(heads=2, kv_heads=2, head_dim=32),
    feed_forward=DenseFeedForward(size=256, gated=False),
)
ACTIVATION_BYTES = SEQUENCE * 64 * 4
# Of the gradients of one layer, about.
LAYER_BYTES = 4 * 50_000
MEGABIT = 1e6 / 8


@dataclass(frozen=True)
class Scenario:
    """A cluster of one-device nodes: seconds of a layer's forward pass, bytes/s of the link."""

    name: str
    layers: int
    batch: int
    layer_s: Mapping[str, float]
    rates: Mapping[str, float]
    space: Callable[[Scenario], Iterator[Configuration]]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.layer_s)

    @property
    def model(self) -> Model:
        return Model(
            name="tiny",
            architecture="gpt",
            hidden_size=64,
            vocab_size=256,
            max_sequence=SEQUENCE,
            layers=(LayerRun(count=self.layers, layer=LAYER),),
            positions=Positions(kind="none"),
        )

    @property
    def work(self) -> Pretrain:
        return Pretrain(global_batch=self.batch, sequence=SEQUENCE, precision="fp32")

    @property
    def cluster(self) -> Cluster:
        groups = [
            {
                "name": node,
                "gpus": 1,
                "gpu": {
                    "name": f"emulated-{node}",
                    "memory": "8GiB",
                    "memory_rate": "10GB/s",
                    "fp32_tflops": self.flop_per_s(node) / 1e12,
                    "flash_attention": False,
                },
                "nics": [{"kind": "ethernet", "rate": f"{self.rates[node] / 1e6:g}MB/s"}],
            }
            for node in self.nodes
        ]
        return Cluster.model_validate({"name": self.name, "nodes": groups}, strict=False)

    def flop_per_s(self, node: str) -> float:
        """The rate at which a layer's forward pass takes the node's seconds."""
        shape = Shape(SEQUENCE, 1, "fp32", "unfused")
        return layer_flops(LAYER, self.model, shape).forward / self.layer_s[node]

    @property
    def devices(self) -> tuple[PlanDevice, ...]:
        return tuple(PlanDevice(node=node, index=0) for node in self.nodes)

    @property
    def pacing(self) -> tuple[Pacing, ...]:
        return tuple(
            Pacing(device=device, flop_per_s=self.flop_per_s(device.node))
            for device in self.devices
        )


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to give `total` to `parts` in order, at least 1 to each."""
    for cuts in itertools.combinations(range(1, total), parts - 1):
        edges = (0, *cuts, total)
        yield tuple(edges[at + 1] - edges[at] for at in range(parts))


def grid(
    scenario: Scenario,
    order: Sequence[Sequence[str]],
    layers: Sequence[int],
    batches: Sequence[int],
) -> Configuration:
    """Replica d runs through the nodes order[d] with batches[d] micro-batches."""
    first = [sum(layers[:at]) for at in range(len(layers))]
    stages = tuple(
        Stage(
            (LayerRange(first[at], layers[at]),),
            1,
            tuple(
                Replica((DeviceId(nodes[at], 0),), count, 1)
                for nodes, count in zip(order, batches, strict=True)
            ),
        )
        for at in range(len(layers))
    )
    return Configuration(
        pipelines=(Pipeline(stages),),
        micro_batch_size=1,
        global_batch=scenario.batch,
        sequence=SEQUENCE,
        precision="fp32",
        zero_stage=0,
        overlap_grad_reduce=False,
    )


def all_splits(scenario: Scenario) -> Iterator[Configuration]:
    """One pipeline through all nodes in their order."""
    for layers in splits(scenario.layers, len(scenario.nodes)):
        yield grid(scenario, [scenario.nodes], layers, [scenario.batch])


def whole_space(scenario: Scenario) -> Iterator[Configuration]:
    """Every subset, order, data and pipeline parallel degree, split and share of the batch."""
    for used in range(1, len(scenario.nodes) + 1):
        for nodes in itertools.permutations(scenario.nodes, used):
            for replicas in range(1, used + 1):
                if used % replicas:
                    continue
                depth = used // replicas
                order = [nodes[at : at + depth] for at in range(0, used, depth)]
                if order != sorted(order) or depth > scenario.layers:
                    continue
                for layers in splits(scenario.layers, depth):
                    for batches in splits(scenario.batch, replicas):
                        yield grid(scenario, order, layers, batches)


def draw(seed: int) -> Scenario:
    """A cluster of three or four unlike nodes."""
    dice = random.Random(seed)
    count = dice.choice((3, 4))
    names = [f"n{number}" for number in range(count)]
    layer_s = {name: dice.choice((5, 6, 8, 10, 12, 15, 18)) * 1e-3 for name in names}
    rates = {name: dice.choice((25, 40, 50, 100, 150)) * MEGABIT for name in names}
    return Scenario(
        name=f"drawn-{seed}",
        layers=dice.choice((6, 7, 8)) if count == 3 else 6,
        batch=dice.choice((6, 8, 10)),
        layer_s=layer_s,
        rates=rates,
        space=whole_space,
    )


SHORT = Scenario(
    name="short",
    layers=6,
    batch=6,
    layer_s={"n0": 6e-3, "n1": 18e-3},
    rates={"n0": 100 * MEGABIT, "n1": 50 * MEGABIT},
    space=all_splits,
)


def short_name(given: Configuration) -> str:
    """`n0:3>n1:2 x4 | ...`: nodes with their layers, and the micro-batches of each replica."""
    [pipeline] = given.pipelines
    return " | ".join(
        ">".join(
            f"{stage.replicas[at].devices[0].node}:{stage.layer_count}" for stage in pipeline.stages
        )
        + f" x{pipeline.stages[0].replicas[at].micro_batches}"
        for at in range(pipeline.stages[0].data_parallel)
    )
