"""Measure, plan and run on emulated mixed clusters: does the promised time come true?

    python benchmarks/end_to_end.py                 ten drawn clusters, some 15 minutes
    python benchmarks/end_to_end.py --short         two nodes, all splits, about half a minute

Every node is a network namespace with a shaped link, every device a process that does the real
arithmetic and then waits until the emulated device would be done (`testbed`). Its layers, links and
gradient sums are measured, every plan of the space is predicted from that, and the best ones and a
sample of the others are run by the trial runtime. Without root: over loopback, links unshaped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbed.measure import Measured, Task, measure
from testbed.network import Network, available, realtime

from hetcli.perf.compute.measured import Key, MeasuredLayers, MeasuredPoint
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Replica,
    Shape,
    Stage,
)
from hetcli.perf.hardware import Hardware, LinkCurve
from hetcli.perf.prediction import Prediction
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.search.document import plan_document
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    Positions,
)
from hetcli.spec.plan import Certificate, Plan, PlanDevice
from hetcli.spec.workload import Pretrain
from hetcli.trial.compare import compare
from hetcli.trial.flops import layer_flops
from hetcli.trial.job import Job, Pacing
from hetcli.trial.launch import Placement, launch

SEQUENCE = 64
LAYER = Layer(
    attention=GroupedQueryAttention(heads=2, kv_heads=2, head_dim=32),
    feed_forward=DenseFeedForward(size=256, gated=False),
)
ACTIVATION_BYTES = SEQUENCE * 64 * 4
MEGABIT = 1e6 / 8
TIME_LIMIT_S = 1200.0


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


def measured_hardware(scenario: Scenario, found: Measured) -> Hardware:
    """The cluster with the layer times, links and sums that were measured on it."""
    hardware = resolve(scenario.cluster)
    nodes = []
    for rank, node in enumerate(hardware.nodes):
        points: dict[Key, list[MeasuredPoint]] = {
            (row.kind, 1, "fp32"): [
                MeasuredPoint(
                    SEQUENCE, row.micro_batch_size, row.forward_s, row.backward_s, row.update_s
                )
            ]
            for row in found.layers
            if row.rank == rank
        }
        kind = replace(node.device_type, measured=MeasuredLayers(points))
        nodes.append(replace(node, device_type=kind))
    pairs = {}
    for one, other in itertools.combinations(range(len(nodes)), 2):
        ends = {one, other}
        rows = [row for row in found.links if {row.source, row.destination} == ends]
        pairs[nodes[one].name, nodes[other].name] = _curve(
            {
                size: statistics.mean(row.seconds for row in rows if row.message_bytes == size)
                for size in {row.message_bytes for row in rows}
            }
        )
    return replace(hardware, nodes=tuple(nodes), pair_links=pairs)


def _curve(seconds: Mapping[int, float]) -> LinkCurve:
    """Through the measured points; the latency is in their rates."""
    points = tuple(sorted((float(size), size / took) for size, took in seconds.items()))
    return LinkCurve("measured", 0.0, points[-1][1], Origin.MEASURED, points=points)


def document(scenario: Scenario, given: Configuration, hardware: Hardware) -> Plan:
    """The plan of a configuration with its prediction."""
    prediction = predicted(scenario, given, hardware)
    return plan_document(
        given,
        prediction,
        cluster=scenario.cluster,
        model=scenario.model,
        workload=scenario.work,
        hardware=hardware,
        target="free",
        certificate=Certificate(lower_bound_s=None, gap=None, reason="enumerated"),
        alternatives=(),
        space="free",
        seen=1,
        scored=1,
        pruned={},
        complete=True,
    )


def predicted(scenario: Scenario, given: Configuration, hardware: Hardware) -> Prediction:
    """The step that the performance model promises."""
    return predict(given, model=scenario.model, workload=scenario.work, hardware=hardware)


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


@dataclass
class Row:
    """One plan that was run."""

    name: str
    predicted_s: float
    measured_s: float
    losses: tuple[float, ...]

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass
class Outcome:
    """A scenario's figures; `rows` are in the order of prediction, the planned one first."""

    name: str
    candidates: int
    realtime: bool = False
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean_error(self) -> float:
        return statistics.mean(abs(row.error) for row in self.rows)

    @property
    def largest_error(self) -> float:
        return max(abs(row.error) for row in self.rows)

    @property
    def regret(self) -> float:
        """How much slower the planned plan is than the fastest that was run."""
        return self.rows[0].measured_s / min(row.measured_s for row in self.rows) - 1

    @property
    def rank_correlation(self) -> float:
        """Spearman's, between predicted and measured."""
        from scipy.stats import spearmanr

        predicted_s = [row.predicted_s for row in self.rows]
        return float(spearmanr(predicted_s, [row.measured_s for row in self.rows]).statistic)

    @property
    def loss_curves(self) -> int:
        """Distinct loss curves, to three decimals: 1 when all plans train alike."""
        return len({tuple(round(loss, 3) for loss in row.losses) for row in self.rows})


def run(scenario: Scenario, *, most: int, steps: int, verbose: bool) -> Outcome:
    """Measure a scenario, predict its space, run the best `most` / 2 and a sample of the others."""
    begun = time.monotonic()
    reason = available()
    network: AbstractContextManager[Network | None] = nullcontext()
    if reason is None:
        network = Network(scenario.rates)
    elif verbose:
        print(f"no namespaces ({reason}): loopback, links unshaped", file=sys.stderr)
    with network as lab:
        placements: dict[str, Placement] = {}
        if lab is not None:
            placements = lab.placements(realtime())
        steady = lab is not None and bool(realtime())
        found = measure(_task(scenario), placements)
        hardware = measured_hardware(scenario, found)
        space = sorted(
            (predicted(scenario, each, hardware).step_time_s, at, each)
            for at, each in enumerate(scenario.space(scenario))
        )
        chosen = _sample([each for _, _, each in space], most)
        plans = tuple(document(scenario, each, hardware) for each in chosen)
        order = list(range(len(plans)))
        # Not in the order of prediction: a drift of the machine must not look like an error.
        random.Random(1).shuffle(order)
        job = Job(
            plans=tuple(plans[at] for at in order),
            devices=scenario.devices,
            steps=steps,
            warm_up=1,
            pacing=scenario.pacing,
        )
        reports = launch(job, time_limit_s=TIME_LIMIT_S, placements=placements)
    outcome = Outcome(scenario.name, len(space), steady)
    for position, at in sorted(enumerate(order), key=lambda pair: pair[1]):
        trial = compare(plans[at], job, reports[position])
        measured_s = trial.step_time_s.measured
        assert measured_s is not None
        outcome.rows.append(
            Row(
                short_name(chosen[at]),
                plans[at].predicted.step_time_s,
                measured_s,
                trial.losses,
            )
        )
    outcome.seconds = time.monotonic() - begun
    return outcome


def _task(scenario: Scenario) -> Task:
    count = len(scenario.nodes)
    groups = [
        members
        for size in range(2, count + 1)
        for members in itertools.combinations(range(count), size)
    ]
    layer_bytes = 4 * 50_000
    return Task(
        model=scenario.model,
        sequence=SEQUENCE,
        micro_batch_sizes=(1,),
        devices=scenario.devices,
        pacing=scenario.pacing,
        message_bytes=(4096, ACTIVATION_BYTES, 4 * ACTIVATION_BYTES, layer_bytes),
        groups=tuple(groups) if scenario.space is whole_space else (),
        group_bytes=(layer_bytes, 4 * layer_bytes),
    )


def _sample(space: Sequence[Configuration], most: int) -> list[Configuration]:
    """The best plan, the next ones, and some of the better half of the others."""
    if len(space) <= most:
        return list(space)
    best, rest = space[: most // 2], space[most // 2 : max(len(space) // 2, most)]
    dice = random.Random(0)
    drawn = sorted(dice.sample(range(len(rest)), most - len(best)))
    return [*best, *(rest[at] for at in drawn)]


def show(outcome: Outcome, *, verbose: bool) -> None:
    """One line, and with `verbose` one a plan."""
    print(
        f"{outcome.name:10s} {len(outcome.rows):3d} of {outcome.candidates:5d} plans run  "
        f"mean error {outcome.mean_error:6.2%}  largest {outcome.largest_error:6.2%}  "
        f"rank correlation {outcome.rank_correlation:.3f}  "
        f"planned slower than fastest by {outcome.regret:.2%}  "
        f"loss curves {outcome.loss_curves}  {outcome.seconds:.0f} s  "
        f"{'' if outcome.realtime else 'no real-time priority  '}"
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if verbose:
        for row in sorted(outcome.rows, key=lambda each: each.measured_s):
            print(
                f"    {row.predicted_s * 1e3:8.1f} ms predicted {row.measured_s * 1e3:8.1f} ms "
                f"measured {row.error:+7.2%}  {row.name}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="two nodes, all splits")
    parser.add_argument("--clusters", type=int, default=10, help="clusters to draw")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--plans", type=int, default=24, help="plans to run on each at most")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    drawn = [draw(seed) for seed in range(options.first, options.first + options.clusters)]
    outcomes = []
    for scenario in [SHORT] if options.short else drawn:
        outcome = run(scenario, most=options.plans, steps=options.steps, verbose=options.verbose)
        outcomes.append(outcome)
        show(outcome, verbose=options.verbose)
    if options.json:
        rows = [
            {
                "scenario": outcome.name,
                "realtime": outcome.realtime,
                "mean_error": outcome.mean_error,
                "regret": outcome.regret,
                "rank_correlation": outcome.rank_correlation,
                "loss_curves": outcome.loss_curves,
                "plans": [vars(row) for row in outcome.rows],
            }
            for outcome in outcomes
        ]
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
