"""Run a scenario: measure it, predict every plan of its space, run the best ones and others."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from hetcli.perf.compute.measured import Key, MeasuredLayers, MeasuredPoint
from hetcli.perf.configuration import Configuration
from hetcli.perf.hardware import Hardware, LinkCurve
from hetcli.perf.prediction import Prediction
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.search.document import plan_document
from hetcli.search.families import Problem
from hetcli.search.grid import Grid
from hetcli.search.options import PlanOptions
from hetcli.search.pools import pools
from hetcli.spec.base import Origin
from hetcli.spec.plan import Certificate, Plan
from hetcli.trial.compare import compare
from hetcli.trial.job import Job
from hetcli.trial.launch import Placement, launch
from testbed.measure import Measured, Task, measure
from testbed.network import Network, available, realtime
from testbed.outcome import Outcome, Row
from testbed.scenarios import (
    ACTIVATION_BYTES,
    LAYER_BYTES,
    SEQUENCE,
    Scenario,
    short_name,
    whole_space,
)

__all__ = ["run"]

TIME_LIMIT_S = 1200.0


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
    excess = _search_excess(scenario, hardware, space)
    outcome = Outcome(scenario.name, len(space), steady, search_excess=excess)
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
    outcome.load = os.getloadavg()[0]
    return outcome


def _search_excess(
    scenario: Scenario, hardware: Hardware, space: Sequence[tuple[float, int, Configuration]]
) -> float:
    """By how much hetcli's own search misses the best plan that gives all replicas equal work."""
    options = PlanOptions(
        tensor_parallel=1, micro_batch_size=1, zero_stage=0, recompute="none", compare=False
    )
    problem = Problem(scenario.model, scenario.work, hardware, pools(hardware), options)
    pick = Grid(problem).run().plans[0].configuration
    # The trial adds up gradients after the last backward pass, as the enumerated plans say.
    pick = replace(pick, overlap_grad_reduce=False)
    best = min(
        seconds
        for seconds, _, given in space
        if len({each.micro_batches for stage in given.stages for each in stage.replicas}) == 1
    )
    return predicted(scenario, pick, hardware).step_time_s / best - 1


def _task(scenario: Scenario) -> Task:
    count = len(scenario.nodes)
    groups = [
        members
        for size in range(2, count + 1)
        for members in itertools.combinations(range(count), size)
    ]
    return Task(
        model=scenario.model,
        sequence=SEQUENCE,
        micro_batch_sizes=(1,),
        devices=scenario.devices,
        pacing=scenario.pacing,
        message_bytes=(4096, ACTIVATION_BYTES, 4 * ACTIVATION_BYTES, LAYER_BYTES),
        groups=tuple(groups) if scenario.space is whole_space else (),
        group_bytes=(LAYER_BYTES, 4 * LAYER_BYTES),
    )


def _sample(space: Sequence[Configuration], most: int) -> list[Configuration]:
    """The best plan, the next ones, and some of the better half of the others."""
    if len(space) <= most:
        return list(space)
    best, rest = space[: most // 2], space[most // 2 : max(len(space) // 2, most)]
    dice = random.Random(0)
    drawn = sorted(dice.sample(range(len(rest)), most - len(best)))
    return [*best, *(rest[at] for at in drawn)]
