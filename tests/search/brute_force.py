"""The best plan of a small problem by looking at every candidate, and problems small enough."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product

from hetcli.perf.prediction import Prediction
from hetcli.perf.resolve import resolve
from hetcli.perf.rules import can_talk, runs_attention, supports
from hetcli.perf.step import predict
from hetcli.search.families import Problem, families, precisions, recomputes
from hetcli.search.layout import Degrees, Layout, configuration
from hetcli.search.options import PlanOptions
from hetcli.search.pools import Pool, orders, pools
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
)
from hetcli.spec.workload import Pretrain, RecomputeChoice

Runs = tuple[tuple[Pool, int], ...]

GPUS = ("H100-SXM5-80GB", "A100-SXM4-40GB", "V100-SXM2-16GB", "RTX-3090", "T4", "RTX-4090")


def small_problem(dice: random.Random, *, devices: int = 12, layers: int = 12) -> Problem:
    """Up to three types of devices, and a model that sometimes fills their memory."""
    groups: list[dict[str, object]] = []
    left = devices
    for index, gpu in enumerate(dice.sample(GPUS, dice.randint(1, 3))):
        size = dice.choice([1, 2, 4])
        nodes = dice.randint(1, 2)
        if size * nodes > left:
            continue
        left -= size * nodes
        rate = dice.choice(["10Gbps", "100Gbps", "400Gbps"])
        groups.append(
            {
                "name": f"g{index}-[0-{nodes - 1}]" if nodes > 1 else f"g{index}",
                "gpu": gpu,
                "gpus": size,
                "nics": ({"kind": "infiniband", "rate": rate},),
            }
        )
    hidden = dice.choice([512, 1024, 2048, 4096])
    heads = hidden // 64
    model = Model(
        name="small",
        architecture="llama",
        hidden_size=hidden,
        vocab_size=dice.choice([1000, 32000, 128000]),
        max_sequence=4096,
        layers=(
            LayerRun(
                count=dice.randint(2, layers),
                layer=Layer(
                    attention=GroupedQueryAttention(heads=heads, kv_heads=heads, head_dim=64),
                    feed_forward=DenseFeedForward(size=4 * hidden),
                ),
            ),
        ),
    )
    workload = Pretrain(global_batch=dice.choice([4, 6, 8, 12]), sequence=dice.choice([512, 2048]))
    hardware = resolve(Cluster.model_validate({"name": "small", "nodes": tuple(groups)}))
    return Problem(model, workload, hardware, pools(hardware), PlanOptions())


def candidates(problem: Problem) -> Iterator[tuple[Degrees, Runs, int]]:
    """Every shape that the rules allow, with its number of stages."""
    layers = problem.model.layer_count
    for degrees in _degrees(problem):
        most = [
            pool.group_count(degrees.tensor) // degrees.members if _runs(degrees, pool) else 0
            for pool in problem.pools
        ]
        wanted = precisions(problem)[degrees.precision]
        micro_batches = problem.workload.global_batch // (degrees.micro_batch_size * degrees.data)
        for counts in product(*(range(each + 1) for each in most)):
            depth = sum(counts)
            if not 1 <= depth <= min(layers + 2, micro_batches):
                continue
            chunks = degrees.virtual_stages
            if chunks > 1 and (depth == 1 or micro_batches % depth or depth > layers // chunks):
                continue
            used = [pool for pool, count in zip(problem.pools, counts, strict=True) if count]
            if problem.options.pipeline_parallel not in (None, depth):
                continue
            if degrees.zero_stage > 1 and depth > 1:
                continue
            if not any(pool.index in wanted and counts[pool.index] for pool in used):
                continue
            if any(not can_talk(problem.hardware, a.node, b.node) for a in used for b in used):
                continue
            for order in orders(used, lambda _one, _other: 0.0).orders:
                yield degrees, tuple((problem.pools[at], counts[at]) for at in order), depth


def _degrees(problem: Problem) -> Iterator[Degrees]:
    for degrees in families(problem, Counter()):
        yield degrees
        for chunks in range(2, 13):
            if (
                problem.model.layer_count % chunks == 0
                and problem.options.target == "megatron"
                and problem.options.virtual_stages is None
            ):
                yield replace(degrees, virtual_stages=chunks)


def _runs(degrees: Degrees, pool: Pool) -> bool:
    gpu = pool.device_type.gpu
    return supports(gpu, degrees.precision) and runs_attention(
        degrees.framework, gpu, "auto", degrees.context
    )


def splits(layers: int, stages: int, chunks: int = 1) -> Iterator[tuple[int, ...]]:
    """All splits; only the ends may hold no layer, as they hold the embedding or the head.

    Several chunks are alike, and none is empty.
    """
    if stages == 1:
        yield (layers,)
        return
    if chunks > 1:
        for split in splits(layers // chunks, stages):
            if min(split) > 0:
                yield tuple(chunks * number for number in split)
        return
    least = [0, *[1] * (stages - 2), 0]
    free = layers - sum(least)
    for bars in combinations(range(free + stages - 1), stages - 1):
        edges = (-1, *bars, free + stages - 1)
        extra = (b - a - 1 for a, b in pairwise(edges))
        yield tuple(one + more for one, more in zip(least, extra, strict=True))


def size(problem: Problem, most: int) -> int:
    """How many splits there are, or something above `most`."""
    total = 0
    for degrees, _, depth in candidates(problem):
        parts = splits(problem.model.layer_count, depth, degrees.virtual_stages)
        total += sum(1 for _ in parts)
        if total > most:
            break
    return total


def brute_force(problem: Problem) -> tuple[float, Layout | None, float]:
    """Seconds and layout of the best plan, and the least bytes that a misfit lacks."""
    best, layout, lack = float("inf"), None, float("inf")
    for degrees, runs, depth in candidates(problem):
        choices = [recomputes(problem, pool) for pool, count in runs for _ in range(count)]
        least = tuple(each[-1] for each in choices)
        for split in splits(problem.model.layer_count, depth, degrees.virtual_stages):
            for chosen in _choices(choices, degrees, runs, problem, split):
                candidate = Layout(degrees, runs, split, chosen)
                found = predicted(problem, candidate)
                short = problem.workload.memory_margin - found.worst_device.headroom_bytes
                if short > 0:
                    lack = min(lack, short)
                elif found.step_time_s < best:
                    best, layout = found.step_time_s, candidate
                if chosen == least and short <= 0:
                    break
    return best, layout, lack


def predicted(problem: Problem, layout: Layout) -> Prediction:
    """The whole prediction of a layout."""
    return predict(
        configuration(layout, problem.workload),
        model=problem.model,
        workload=problem.workload,
        hardware=problem.hardware,
    )


def _choices(
    choices: Sequence[Sequence[RecomputeChoice]],
    degrees: Degrees,
    runs: Runs,
    problem: Problem,
    split: tuple[int, ...],
) -> Iterator[tuple[RecomputeChoice, ...]]:
    """What the stages recompute, the least first; stages that share a node recompute the same."""
    yield tuple(each[-1] for each in choices)
    stages = configuration(Layout(degrees, runs, split), problem.workload).stages
    nodes = [
        {device.node for each in stage.replicas for device in each.devices} for stage in stages
    ]
    for chosen in product(*(each[::-1] for each in choices)):
        if any(
            nodes[a] & nodes[b] and chosen[a] != chosen[b]
            for a, b in combinations(range(len(chosen)), 2)
        ):
            continue
        yield chosen
