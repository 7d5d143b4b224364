"""Limits on money, speed, nodes and devices: kept, best within them, and refused with a cure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from hetcli.catalog.inputs import read_model
from hetcli.errors import ConfigurationError, InfeasibleError, UnknownNameError
from hetcli.search import PlanOptions, plan
from hetcli.search.options import asked, options_of
from hetcli.spec.cluster import Cluster
from hetcli.spec.plan import Plan
from hetcli.spec.workload import Pretrain

FAST, SLOW = "A100-SXM4-80GB", "V100-SXM2-32GB"


def cluster(*groups: dict[str, Any]) -> Cluster:
    nic = {"kind": "infiniband", "rate": "200Gbps"}
    nodes = tuple({"gpus": 4, "nics": (nic,), "fabric": "one", **group} for group in groups)
    return Cluster.model_validate({"name": "mixed", "nodes": nodes})


def found(objective: str = "throughput", tokens: int | None = None, **options: Any) -> Plan:
    return plan(
        cluster=cluster(
            {"name": "a-[0-1]", "gpu": FAST, "price_per_hour": 3.67, "zone": "east"},
            {"name": "v-[0-1]", "gpu": SLOW, "price_per_hour": 1.2, "zone": "west"},
        ),
        model=read_model("gpt2-xl"),
        workload=Pretrain.model_validate(
            {"global_batch": 64, "sequence": 1024, "objective": objective, "tokens": tokens}
        ),
        options=replace(PlanOptions(virtual_stages=1), **options),
    )


def nodes_of(result: Plan) -> set[str]:
    return {device.node for stage in result.stages for device in stage.devices}


def devices_of(result: Plan, gpu: str) -> int:
    return sum(device.gpu == gpu for device in result.predicted.devices)


def dollars(result: Plan) -> float:
    cost = result.predicted.cost_per_step
    assert cost is not None
    return cost


def seconds(result: Plan) -> float:
    return result.predicted.step_time_s


def test_fewer_nodes_are_slower_and_never_exceeded() -> None:
    times = []
    for most in (1, 2, 3, 4):
        result = found(max_nodes=most)
        assert len(nodes_of(result)) <= most
        times.append(seconds(result))
    assert times == sorted(times, reverse=True)
    assert times[-1] == seconds(found())


@pytest.mark.parametrize(("name", "gpu"), [(SLOW, SLOW), ("west", SLOW), (FAST, FAST)])
@pytest.mark.parametrize("most", [0, 2, 5])
def test_a_quota_of_a_type_or_zone_is_kept(name: str, gpu: str, most: int) -> None:
    assert devices_of(found(quotas=((name, most),)), gpu) <= most


def test_a_quota_of_all_devices_changes_nothing() -> None:
    plain, quota = found(), found(quotas=((FAST, 8), (SLOW, 8)))
    assert quota.stages == plain.stages
    assert quota.search.asked == {"virtual_stages": 1, "quotas": {FAST: 8, SLOW: 8}}


def test_two_quotas_that_forbid_everything_say_so() -> None:
    with pytest.raises(InfeasibleError, match="limits on nodes and devices") as caught:
        found(quotas=((FAST, 0), (SLOW, 0)))
    assert "without them the best one uses" in caught.value.why


def test_a_quota_of_nothing_known_lists_what_is() -> None:
    with pytest.raises(UnknownNameError, match=f"{FAST}, east, one, {SLOW}, west"):
        found(quotas=(("T4", 1),))


def test_the_cheapest_plan_is_cheaper_than_the_fastest_and_slower() -> None:
    fast, cheap = found(), found("cost")
    assert dollars(cheap) < dollars(fast)
    assert seconds(cheap) > seconds(fast)


def test_the_fastest_plan_within_a_budget_lies_between_both() -> None:
    fast, cheap = found(), found("cost")
    budget = (dollars(fast) + dollars(cheap)) / 2
    within = found(max_cost_per_step=budget)
    assert dollars(within) <= budget
    assert seconds(fast) <= seconds(within) <= seconds(cheap)


def test_the_cheapest_plan_that_is_fast_enough() -> None:
    fast, cheap = found(), found("cost")
    rate = (1 / seconds(fast) + 1 / seconds(cheap)) / 2
    within = found("cost", min_steps_per_s=rate)
    assert 1 / seconds(within) >= rate
    assert dollars(cheap) <= dollars(within) <= dollars(fast)
    same = found("cost", min_tokens_per_s=rate * 64 * 1024)
    assert same.stages == within.stages


@pytest.mark.parametrize(
    ("objective", "limit"),
    [("throughput", {"max_cost_per_step": 1e-6}), ("cost", {"min_steps_per_s": 1e6})],
)
def test_an_impossible_limit_is_refused_with_the_nearest_that_works(
    objective: str, limit: dict[str, Any]
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        found(objective, None, **limit)
    offered = re.search(r"([0-9.e-]+)(steps/s)?$", caught.value.fix)
    assert offered is not None
    assert found(objective, None, **dict.fromkeys(limit, float(offered[1]))).stages


def test_limits_that_exclude_each_other_say_which_one_to_loosen() -> None:
    fast, cheap = found(), found("cost")
    with pytest.raises(InfeasibleError, match="max-cost-per-step"):
        found(max_cost_per_step=dollars(cheap) * 1.001, min_steps_per_s=0.999 / seconds(fast))


def test_a_budget_needs_every_price() -> None:
    gpu = {"name": "own", "memory": "80GiB", "memory_rate": "2TB/s", "fp16_tflops": 300.0}
    with pytest.raises(ConfigurationError, match="price_per_hour"):
        plan(
            cluster=cluster({"name": "n", "gpu": gpu}),
            model=read_model("gpt2-xl"),
            workload=Pretrain(global_batch=64, sequence=1024),
            options=PlanOptions(max_cost_per_step=1.0),
        )


def test_no_plan_of_the_front_is_beaten_and_both_ends_are_there() -> None:
    result = found(pareto=True)
    points = [(each.step_time_s, each.cost_per_step or 0.0) for each in result.front]
    assert points == sorted(set(points))
    assert [cost for _, cost in points] == sorted((cost for _, cost in points), reverse=True)
    assert points[0] == (seconds(result), dollars(result))
    assert points[-1][1] == dollars(found("cost"))
    assert found("cost", pareto=True).front == result.front


def test_a_token_budget_gives_the_time_and_the_money_of_the_whole_run() -> None:
    result = found(tokens=10**9)
    steps = -(-(10**9) // (64 * 1024))
    assert result.predicted.training_time_s == steps * seconds(result)
    assert result.predicted.training_cost == steps * dollars(result)
    assert found().predicted.training_time_s is None


def test_what_was_asked_for_is_written_down_and_read_back() -> None:
    options = PlanOptions(tensor_parallel=2, max_nodes=3, quotas=((SLOW, 4),), top=1, pareto=True)
    assert options_of("megatron", asked(options)) == replace(options, top=5, pareto=False)
    assert asked(PlanOptions()) == {}
