"""Every mix of a tiny problem, one after the other: what the search must not be beaten by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations, product

from hetcli.catalog.samples import read_cluster
from hetcli.perf.prediction import Prediction
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.search.families import Problem
from hetcli.search.free.columns import Column
from hetcli.search.free.costs import Kind, PipelineCosts, Setting
from hetcli.search.free.layout import configuration
from hetcli.search.options import PlanOptions
from hetcli.search.pools import pools
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
)
from hetcli.spec.workload import Pretrain

Shapes = list[tuple[Column, list[int]]]


def tiny_model(layers: int, hidden: int = 1024) -> Model:
    """Equal dense layers."""
    attention = GroupedQueryAttention(heads=8, kv_heads=8, head_dim=hidden // 8)
    layer = Layer(attention=attention, feed_forward=DenseFeedForward(size=4 * hidden))
    return Model(
        name="tiny",
        architecture="llama",
        hidden_size=hidden,
        vocab_size=1000,
        max_sequence=4096,
        tied_embeddings=False,
        layers=(LayerRun(count=layers, layer=layer),),
    )


def tiny_problem(cluster: str, layers: int, batch: int) -> Problem:
    """One tensor degree, one micro-batch size and no recomputation, so that all can be listed."""
    hardware = resolve(read_cluster(cluster))
    return Problem(
        tiny_model(layers),
        Pretrain(global_batch=batch, sequence=1024, precision="fp16"),
        hardware,
        pools(hardware),
        PlanOptions(space="free", tensor_parallel=1, micro_batch_size=1, recompute="none"),
    )


def columns(problem: Problem) -> list[Column]:
    """Every pipeline: all numbers of stages of all pools, all their orders and all splits."""
    setting = Setting("fp16", 1, "none")
    costs = PipelineCosts(problem)
    kinds = [Kind(pool, 1) for pool in problem.pools]
    found = []
    for counts in product(*(range(kind.pool.device_count + 1) for kind in kinds)):
        used = [(kind, count) for kind, count in zip(kinds, counts, strict=True) if count]
        for order in permutations(used):
            for layers in _splits(problem.model.layer_count, sum(counts)):
                if order:
                    found.append(Column(setting, order, layers, 0.0, 0.0, 0.0))
    assert costs.problem is problem
    return found


def _splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """All splits; only the first and the last stage may be without layers."""
    for split in product(range(layers + 1), repeat=stages):
        if sum(split) == layers and all(split[1:-1]):
            yield split


def mixes(problem: Problem) -> Iterator[Shapes]:
    """Every mix of pipelines that the devices suffice for, with every share of the batch."""
    batch = problem.workload.global_batch
    listed = columns(problem)
    for number in range(1, sum(pool.device_count for pool in problem.pools) + 1):
        for chosen in combinations_with_replacement(listed, number):
            if not _fits(problem, chosen):
                continue
            for counts in _shares(batch, [each.depth for each in chosen]):
                shapes: dict[Column, list[int]] = {}
                for column, count in zip(chosen, counts, strict=True):
                    shapes.setdefault(column, []).append(count)
                # Equal pipelines: which of them has how many does not matter.
                if all(each == sorted(each, reverse=True) for each in shapes.values()):
                    yield list(shapes.items())


def _fits(problem: Problem, chosen: tuple[Column, ...]) -> bool:
    for pool in problem.pools:
        used = sum(count for each in chosen for kind, count in each.runs if kind.pool is pool)
        if used > pool.device_count:
            return False
    return True


def _shares(batch: int, least: list[int]) -> Iterator[tuple[int, ...]]:
    """All ways to share a batch in which no pipeline has fewer micro-batches than stages."""
    if len(least) == 1:
        if batch >= least[0]:
            yield (batch,)
        return
    for first in range(least[0], batch + 1):
        for rest in _shares(batch - first, least[1:]):
            yield (first, *rest)


def predictions(problem: Problem) -> Iterator[tuple[Shapes, Prediction]]:
    """Every mix predicted, in every placement."""
    for shapes in mixes(problem):
        for order in ("stages", "replicas"):
            whole = configuration(problem, shapes, order)
            if whole is not None:
                yield (
                    shapes,
                    predict(
                        whole,
                        model=problem.model,
                        workload=problem.workload,
                        hardware=problem.hardware,
                    ),
                )
