"""Plans of the free space on random problems: every rule holds, and the grid is never better."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import Question, clusters, small_models, workloads

from hetcli.errors import HetcliError
from hetcli.perf.resolve import resolve
from hetcli.perf.rules import check
from hetcli.search import PlanOptions, configuration_of, plan
from hetcli.spec.plan import Plan
from hetcli.trial.assignment import blocks


def plan_of(question: Question, **options: object) -> Plan | None:
    try:
        return plan(
            cluster=question.cluster,
            model=question.model,
            workload=question.workload,
            options=PlanOptions(compare=False, **options),  # type: ignore[arg-type]
        )
    except HetcliError:
        return None


small = st.builds(
    Question, clusters(groups=2, nodes=1, devices=4), small_models(layers=6), workloads()
)


@given(small)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_free_plan_keeps_every_rule_and_is_never_worse_than_the_grid(question: Question) -> None:
    grid = plan_of(question)
    free = plan_of(question, space="free")
    if free is None:
        assert grid is None
        return
    whole = configuration_of(free)
    check(whole, question.model, resolve(question.cluster))
    assert len(set(whole.devices)) == len(whole.devices)
    for pipeline in whole.pipelines:
        assert sum(stage.layer_count for stage in pipeline.stages) == question.model.layer_count
    read = sum(
        replica.micro_batches * replica.micro_batch_size
        for pipeline in whole.pipelines
        for replica in pipeline.stages[0].replicas
    )
    assert read == question.workload.global_batch
    margin = question.workload.memory_margin
    assert all(device.headroom_bytes >= margin for device in free.predicted.devices)
    bound, gap = free.certificate.lower_bound_s, free.certificate.gap
    assert bound is not None
    assert gap is not None
    assert 0 < bound <= free.predicted.step_time_s
    if grid is not None:
        assert free.predicted.step_time_s <= grid.predicted.step_time_s * (1 + 1e-9)
    # Every block of ranks of the trial runtime has its micro-batches.
    assert blocks(whole)
