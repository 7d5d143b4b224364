"""A new plan for what is left, within what its user asked for and a batch that may change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from hetcli.adapt.elastic import elastic_batches
from hetcli.errors import (
    ConfigurationError,
    HetcliError,
    InfeasibleError,
    UnsupportedByTargetError,
)
from hetcli.perf.configuration import Configuration
from hetcli.perf.hardware import Hardware
from hetcli.perf.resolve import resolve
from hetcli.search.document import configuration_of
from hetcli.search.options import PlanOptions, options_of
from hetcli.search.planner import plan as search
from hetcli.spec.cluster import Cluster
from hetcli.spec.plan import Plan
from hetcli.spec.workload import Pretrain

__all__ = ["KEPT", "NEW", "new_plans", "searches_all"]

KEPT = "new plan with the old tp"
NEW = "new plan"
# A search of everything takes a second or two for 1,024 devices, one that keeps some degrees a
# fifth of one (benchmarks/end_to_end.py --parts replan).
SEARCH_ALL = 256
# Batches of the band that are searched, the nearest first.
MOST_BATCHES = 4


def new_plans(
    plan: Plan, cluster: Cluster, tolerance: float, time_limit_s: float | None
) -> Iterator[tuple[str, Configuration | HetcliError]]:
    """By name, the best plan of the target for `cluster`, or why there is none.

    One keeps the old tensor-parallel degree and micro-batch, so that most slices stay; one keeps
    only what the user had fixed. The second is for clusters of at most `SEARCH_ALL` devices, unless
    `time_limit_s` says how long each search may take. With a `tolerance` (a share) the batch is
    the one of the band that trains most tokens a second.
    """
    asked = replace(
        options_of("flagscale" if plan.target == "free" else plan.target, plan.search.asked),
        compare=False,
        top=1,
        time_limit_s=time_limit_s,
    )
    yield KEPT, _best(plan, cluster, _kept(plan, asked), tolerance)
    if searches_all(resolve(cluster), time_limit_s):
        yield NEW, _best(plan, cluster, replace(asked, space=_space(plan, asked)), tolerance)


def _space(plan: Plan, asked: PlanOptions) -> Literal["grid", "free"]:
    """Unlike pipelines too, where the trial runtime runs the plan and nothing was asked for."""
    degrees = plan.parallelism
    plain = degrees.context_parallel == degrees.expert_parallel == 1
    throughput = plan.inputs.workload.objective == "throughput"
    unlike = plan.target == "free" and plain and throughput and not plan.search.asked
    return "free" if unlike else asked.space


def searches_all(hardware: Hardware, time_limit_s: float | None) -> bool:
    """Whether plans of other tensor-parallel degrees are searched as well."""
    return time_limit_s is not None or hardware.device_count <= SEARCH_ALL


def _kept(plan: Plan, asked: PlanOptions) -> PlanOptions:
    degrees = plan.parallelism
    return replace(
        asked,
        tensor_parallel=degrees.tensor_parallel,
        micro_batch_size=degrees.micro_batch_size,
        context_parallel=degrees.context_parallel,
        expert_parallel=degrees.expert_parallel,
        expert_tensor_parallel=degrees.expert_tensor_parallel,
        zero_stage=degrees.zero_stage,
        offload=degrees.offload,
        # These were for the devices that there were.
        pipeline_parallel=None,
        data_parallel=None,
    )


def _best(
    plan: Plan, cluster: Cluster, options: PlanOptions, tolerance: float
) -> Configuration | HetcliError:
    found: list[Plan] = []
    failure: HetcliError | None = None
    for work in _workloads(plan, cluster, tolerance):
        try:
            found.append(
                search(cluster=cluster, model=plan.inputs.model, workload=work, options=options)
            )
        except (InfeasibleError, ConfigurationError, UnsupportedByTargetError) as error:
            failure = failure or error
    if found:
        return configuration_of(max(found, key=lambda each: each.predicted.tokens_per_s))
    assert failure is not None
    return failure


def _workloads(plan: Plan, cluster: Cluster, tolerance: float) -> Iterator[Pretrain]:
    """The job with its own batch, then with those of the band that the devices left can split."""
    work = plan.inputs.workload
    yield work
    degrees = plan.parallelism
    model_parallel = degrees.tensor_parallel * degrees.context_parallel * degrees.pipeline_parallel
    ranks = resolve(cluster).device_count // model_parallel
    if tolerance > 0 and ranks:
        batches = elastic_batches(ranks, work.global_batch, tolerance)
        near = sorted(
            {each.global_batch for each in batches} - {work.global_batch},
            key=lambda batch: (abs(batch - work.global_batch), batch),
        )
        for batch in near[:MOST_BATCHES]:
            yield work.model_copy(update={"global_batch": batch})
