"""What every restriction costs, and how much of the cards' own speed a mixed plan brings."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from hetcli.catalog.inputs import read_model
from hetcli.catalog.samples import read_cluster
from hetcli.search import PlanOptions, plan
from hetcli.spec.cluster import Cluster
from hetcli.spec.plan import Comparison, Plan
from hetcli.spec.workload import Pretrain

BIG, SMALL = "A100-SXM4-80GB", "V100-SXM2-32GB"


def mixed(nodes: int = 1, rate: str = "200Gbps", small: str = SMALL) -> Cluster:
    shared = {"gpus": 4, "nics": ({"kind": "infiniband", "rate": rate},)}
    groups = tuple(
        {"name": n, "gpu": g, "count": nodes, **shared} for n, g in (("a", BIG), ("v", small))
    )
    return Cluster.model_validate({"name": "mixed", "nodes": groups})


def found(cluster: Cluster, model: str = "llama-2-7b", **options: Any) -> Plan:
    return plan(
        cluster=cluster,
        model=read_model(model),
        workload=Pretrain(global_batch=32, sequence=1024),
        options=replace(PlanOptions(), **options),
    )


def entries(result: Plan, kind: str) -> list[Comparison]:
    assert result.comparisons is not None
    return [entry for entry in result.comparisons.entries if entry.kind == kind]


def test_no_restriction_is_faster_and_each_is_the_plan_of_its_own_search() -> None:
    result = found(mixed())
    compared = result.comparisons
    assert compared is not None
    for entry in compared.entries:
        if entry.step_time_s is not None:
            assert entry.step_time_s >= result.predicted.step_time_s
    only_big, only_small = entries(result, "single-type")
    assert (only_big.gpu, only_small.gpu) == (BIG, SMALL)
    alone = found(Cluster.model_validate({"name": "big", "nodes": mixed().nodes[:1]}))
    assert only_big.step_time_s == pytest.approx(alone.predicted.step_time_s)
    [even] = entries(result, "uniform-layers")
    assert max(even.layers) - min(even.layers) <= 1


def test_the_shares_are_those_of_both_papers() -> None:
    result = found(mixed(), "gpt2-xl")
    compared = result.comparisons
    assert compared is not None
    alone = entries(result, "single-type")
    speeds = [entry.tokens_per_s or 0.0 for entry in alone]
    speed = result.predicted.tokens_per_s
    assert compared.hetero_speedup_ratio == pytest.approx(speed / sum(speeds))
    bound = sum(4 * rate / entry.devices for rate, entry in zip(speeds, alone, strict=True))
    assert compared.theoretical_tokens_per_s == pytest.approx(bound)
    assert compared.share_of_theoretical == pytest.approx(speed / bound)


def test_a_type_that_slows_the_job_down_is_declined_with_what_it_would_cost() -> None:
    result = found(mixed(rate="1Gbps"), compare=True)
    assert {stage.gpu for stage in result.stages} == {BIG}
    [declined] = entries(result, "with-type")
    assert declined.gpu == SMALL
    assert declined.step_time_s is not None
    slower = declined.step_time_s / result.predicted.step_time_s - 1
    assert slower > 0
    assert f"4 x {SMALL} stay idle: the best plan with them is {slower:.1%} slower" in result.notes
    assert SMALL in {stage.gpu for stage in found(mixed(rate="1Gbps"), must_use=(SMALL,)).stages}


def test_a_type_too_small_for_the_model_alone_has_no_share() -> None:
    result = found(read_cluster("sample:flashflex"), "llama-2-13b")
    compared = result.comparisons
    assert compared is not None
    assert compared.hetero_speedup_ratio is None
    assert compared.reason == "no plan on RTX-4090, RTX-3090 alone"
    assert [entry.reason for entry in entries(result, "single-type")] == ["", *["nothing fits"] * 2]


def test_large_clusters_are_compared_only_when_asked() -> None:
    assert found(mixed(nodes=10), pipeline_parallel=2, tensor_parallel=4).comparisons is None
    small = found(mixed(), compare=False)
    assert small.comparisons is None


@pytest.mark.parametrize("pipeline", [2, 3, 4])
def test_even_layers_are_the_best_of_all_even_plans(pipeline: int) -> None:
    result = found(mixed(), pipeline_parallel=pipeline, uniform_layers=True, compare=False)
    layers = [stage.layers for stage in result.stages]
    assert sum(layers) == 32
    assert len(layers) == pipeline
    assert all(abs(a - b) <= 1 for a, b in itertools.pairwise(sorted(layers)))
    free = found(mixed(), pipeline_parallel=pipeline, compare=False)
    assert result.predicted.step_time_s >= free.predicted.step_time_s
