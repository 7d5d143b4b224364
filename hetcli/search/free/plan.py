"""The plan of the free space: the best mix of unlike pipelines, or the plan of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from hetcli.errors import ConfigurationError
from hetcli.search.document import alternative, parallelism, plan_document
from hetcli.search.families import Problem
from hetcli.search.found import Found, Scored
from hetcli.search.free.search import SIZES, FreePlan, search_free
from hetcli.search.free.sets import MOST_STAGES
from hetcli.search.options import asked
from hetcli.spec.cluster import Cluster
from hetcli.spec.plan import Alternative, Certificate, Plan

__all__ = ["check_free", "free_plan"]


def check_free(problem: Problem) -> None:
    """Refuse what the free space does not have.

    Raises:
        ConfigurationError: an option or goal of the grid space.
    """
    options = problem.options
    for name, given in (
        ("--dp", options.data_parallel is not None),
        ("--pp", options.pipeline_parallel is not None),
        ("--cp", (options.context_parallel or 1) > 1),
        ("--ep", (options.expert_parallel or 1) > 1),
        ("--etp", (options.expert_tensor_parallel or 1) > 1),
        ("--pareto", options.pareto),
        ("--objective cost", problem.workload.objective != "throughput"),
        ("more than one chunk a stage", (options.virtual_stages or 1) > 1),
        ("the same number of layers on all stages", options.uniform_layers),
        ("a device type that must be used", bool(options.must_use)),
    ):
        if given:
            raise ConfigurationError(
                f"{name} in the free space",
                why="its pipelines differ in shape: their numbers, stages and layers follow from "
                "the fastest mix, without context or expert parallelism",
                fix="leave it out, or --space grid",
            )


def free_plan(problem: Problem, grid: Found, cluster: Cluster) -> Plan | None:
    """The best plan of the free space, which has all plans of `grid` too; None without any.

    Args:
        problem: that `check_free` let pass.
        grid: what the search of the grid space found.
        cluster: as the user wrote it, for the document.
    """
    known_s = grid.plans[0].prediction.step_time_s if grid.plans else np.inf
    found = search_free(problem, known_s=known_s)
    plans: list[FreePlan | Scored] = sorted(
        chain(found.plans, grid.plans), key=lambda plan: plan.prediction.step_time_s
    )
    if not plans:
        return None
    best = plans[0]
    step_s = best.prediction.step_time_s
    bound_s = min(found.bound_s, grid.bound if grid.plans else np.inf, step_s)
    return plan_document(
        best.configuration,
        best.prediction,
        cluster=cluster,
        model=problem.model,
        workload=problem.workload,
        hardware=problem.hardware,
        target=problem.options.target,
        certificate=Certificate(
            lower_bound_s=bound_s, gap=step_s / bound_s - 1, reason=_claim(problem, found.joined)
        ),
        alternatives=_distinct(plans, problem.options.top),
        space="free",
        seen=grid.seen + found.seen,
        scored=grid.scored + found.scored,
        pruned=grid.pruned,
        complete=grid.complete,
        notes=_notes(plans, known_s),
        asked=asked(problem.options),
    )


def _distinct(plans: Sequence[FreePlan | Scored], top: int) -> list[Alternative]:
    """The best plan of each mapping and split, best first."""
    kept: dict[object, FreePlan | Scored] = {}
    for plan in plans:
        layers = tuple(stage.layer_count for stage in plan.configuration.stages)
        kept.setdefault((parallelism(plan.configuration), layers), plan)
    return [
        alternative(rank, plan.configuration, plan.prediction)
        for rank, plan in enumerate(list(kept.values())[:top], start=1)
    ]


def _claim(problem: Problem, joined: int) -> str:
    """Over what the bound is."""
    fixed = problem.options.micro_batch_size
    sizes = str(fixed) if fixed else ", ".join(map(str, SIZES))
    return (
        f"the bound is over the grid space and all mixes of 1F1B pipelines on at most {joined} "
        f"kinds of nodes each, of up to {MOST_STAGES} stages (where memory asks for more, of some "
        "numbers up to half as many again), one tensor degree a kind, no or full recomputation, "
        "micro-batches of "
        f"{sizes} sequences, and no fewer micro-batches than stages"
    )


def _notes(plans: Sequence[FreePlan | Scored], known_s: float) -> list[str]:
    """What unlike pipelines bring, and who runs them."""
    best = plans[0]
    if np.isinf(known_s):
        brought = "no plan with equal replicas fits"
    elif best.prediction.step_time_s >= known_s:
        return ["no mix of unlike pipelines is faster than the best plan with equal replicas"]
    else:
        gain = known_s / best.prediction.step_time_s - 1
        brought = f"unlike replicas are {gain:.1%} faster than the best plan with equal ones"
    whole = best.configuration
    counts = {replica.micro_batches for stage in whole.stages for replica in stage.replicas}
    if len(whole.stages) == 1 and len(counts) == 1:
        return [f"{brought}; DeepSpeed and `hetcli trial` can run them, Megatron-LM cannot"]
    return [
        f"{brought}; `hetcli trial` and research runtimes can run them, Megatron-LM and DeepSpeed "
        "cannot"
    ]
