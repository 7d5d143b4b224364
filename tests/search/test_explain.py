"""Explanations name what really binds, and what-ifs are plans of their own searches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hetcli.catalog.inputs import read_model
from hetcli.search import EstimateRequest, PlanOptions, estimate, plan
from hetcli.search.explain import explain
from hetcli.spec.cluster import Cluster
from hetcli.spec.explanation import Explanation, WhatIf
from hetcli.spec.plan import Plan
from hetcli.spec.workload import Pretrain

WORK = Pretrain(global_batch=32, sequence=1024)
BIG, SMALL = "A100-SXM4-80GB", "V100-SXM2-32GB"


def mixed(rate: str = "200Gbps", nodes: int = 1) -> Cluster:
    shared = {"gpus": 4, "count": nodes, "nics": ({"kind": "infiniband", "rate": rate},)}
    groups = tuple({"name": name, "gpu": gpu, **shared} for name, gpu in (("a", BIG), ("v", SMALL)))
    return Cluster.model_validate({"name": "mixed", "nodes": groups})


def planned(cluster: Cluster, model: str = "gpt2-xl", **options: Any) -> Plan:
    return plan(
        cluster=cluster,
        model=read_model(model),
        workload=WORK,
        options=replace(PlanOptions(compare=False), **options),
    )


def what_if(found: Explanation, change: str) -> WhatIf:
    [only] = [each for each in found.what_if if each.change == change]
    return only


def test_more_of_anything_is_never_slower() -> None:
    found = explain(planned(mixed()))
    for each in found.what_if:
        if not each.change.startswith("without"):
            assert each.gain is not None
            assert each.gain > -1e-9, each.change
    for gpu in (BIG, SMALL):
        gain = what_if(found, f"without {gpu}").gain
        assert gain is not None
        assert gain <= 0


def test_a_what_if_is_the_plan_of_that_cluster() -> None:
    result = planned(mixed())
    alone = planned(Cluster.model_validate({"name": "one", "nodes": mixed().nodes[:1]}))
    without = what_if(explain(result), f"without {SMALL}")
    assert without.step_time_s == pytest.approx(alone.predicted.step_time_s)
    assert without.devices == len(alone.predicted.devices)
    double = plan(
        cluster=mixed(),
        model=read_model("gpt2-xl"),
        workload=WORK.model_copy(update={"global_batch": 64}),
        options=PlanOptions(compare=False),
    )
    batch = what_if(explain(result), "twice the global batch")
    assert batch.tokens_per_s == pytest.approx(double.predicted.tokens_per_s)


def test_the_limits_of_the_plan_hold_in_every_situation() -> None:
    found = explain(planned(mixed(nodes=2), max_nodes=2, quotas=((BIG, 4),)))
    for each in found.what_if:
        assert each.devices <= 8
    quota = explain(planned(mixed(), quotas=((BIG, 0),)))
    assert what_if(quota, f"without {SMALL}").reason


def test_a_slow_link_binds_a_plan_that_must_cross_it() -> None:
    found = explain(
        planned(mixed(rate="1Gbps"), pipeline_parallel=2, data_parallel=4, must_use=(SMALL,)),
        what_if=False,
    )
    assert found.binds.startswith("links between nodes: twice as fast")
    assert found.levers[0].kind == "link"
    assert found.levers[0].gain == max(lever.gain for lever in found.levers)
    assert found.what_if == ()


def test_one_type_of_device_binds_where_it_has_all_the_work() -> None:
    found = explain(planned(mixed(), quotas=((SMALL, 0),)), what_if=False)
    assert found.binds.startswith(f"{BIG}: twice as fast")
    assert found.levers[0].gain > 0.5
    assert found.bottleneck.gpu == BIG
    assert 0 < found.bottleneck.busy_share <= 1


def test_memory_binds_where_more_of_it_allows_a_faster_plan() -> None:
    gpu = {
        "name": "small-memory",
        "memory": "20GiB",
        "memory_rate": "2TB/s",
        "fp16_tflops": 312.0,
        "bf16_tflops": 312.0,
    }
    slow = {
        "name": "n",
        "gpu": gpu,
        "gpus": 1,
        "count": 2,
        "nics": ({"kind": "ethernet", "rate": "1Gbps"},),
    }
    result = planned(Cluster.model_validate({"name": "tight", "nodes": (slow,)}))
    found = explain(result)
    assert len(result.stages) == 2
    assert found.binds.startswith("memory: with twice as much another plan is")
    assert what_if(found, "twice the memory of every device").devices == 1


def test_what_was_rejected_and_the_next_best_are_those_of_the_plan() -> None:
    result = planned(mixed())
    found = explain(result, what_if=False)
    assert found.rejected == result.search.pruned
    assert [each.plan for each in found.neighbours] == list(result.alternatives[1:])
    for each in found.neighbours:
        assert each.slower >= 0
        assert each.differs


def test_a_given_configuration_is_explained_too() -> None:
    given = estimate(
        cluster=mixed(),
        model=read_model("gpt2-xl"),
        workload=WORK,
        request=EstimateRequest(pipeline_parallel=2),
    )
    found = explain(given)
    assert found.neighbours == ()
    assert found.plan == "the given configuration"
    gain = what_if(found, "one more node of V100-SXM2-32GB").gain
    assert gain is not None
