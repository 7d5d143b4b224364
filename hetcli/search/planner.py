"""`plan`: the best configuration of a cluster for a model and a workload, with its certificate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hetcli.errors import EnvironmentFailure, HetcliError, Interrupted
from hetcli.perf.resolve import resolve
from hetcli.search.compare import compare, worth_comparing
from hetcli.search.document import alternative, plan_document
from hetcli.search.families import Problem, check_request
from hetcli.search.found import Found, Scored
from hetcli.search.free import check_free, free_plan
from hetcli.search.front import front
from hetcli.search.grid import Grid
from hetcli.search.miss import infeasible, nearest_miss
from hetcli.search.options import PlanOptions, asked
from hetcli.search.pools import Pool, pools
from hetcli.search.relax import unsatisfied
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import Model
from hetcli.spec.plan import Certificate, Comparisons, Plan
from hetcli.spec.workload import Pretrain

__all__ = ["plan"]


def plan(
    *, cluster: Cluster, model: Model, workload: Pretrain, options: PlanOptions | None = None
) -> Plan:
    """The best plan of the space and the next best ones; the same inputs give the same plan.

    Raises:
        UnsupportedByTargetError: the target cannot build the model.
        ConfigurationError: a fixed degree that the model or the target cannot take.
        InfeasibleError: nothing fits, with the nearest miss.
        EnvironmentFailure: the limit on time ended the search before a first plan.
        Interrupted: the user did.
    """
    hardware = resolve(cluster)
    problem = Problem(model, workload, hardware, pools(hardware), options or PlanOptions())
    check_request(problem)
    free = problem.options.space == "free"
    if free:
        check_free(problem)
    found = Grid(problem).run()
    mixed = free_plan(problem, found, cluster) if free else None
    if mixed is not None:
        return mixed
    if not found.plans and not found.complete:
        raise _stopped(problem, found)
    if not found.plans:
        refused = unsatisfied(problem)
        raise refused or infeasible(problem, found.pruned, found.seen, nearest_miss(problem))
    best = found.plans[0]
    ranked = _distinct(found, problem.options.top)
    comparing = worth_comparing(problem) and not found.interrupted
    comparisons = compare(problem, best) if comparing else None
    return plan_document(
        best.configuration,
        best.prediction,
        cluster=cluster,
        model=model,
        workload=workload,
        hardware=hardware,
        target=problem.options.target,
        certificate=_certificate(problem, found, best),
        alternatives=[
            alternative(rank, each.configuration, each.prediction)
            for rank, each in enumerate(ranked, start=1)
        ],
        space="grid",
        seen=found.seen,
        scored=found.scored,
        pruned=found.pruned,
        complete=found.complete,
        notes=[
            *(["interrupted: the best plan so far"] if found.interrupted else []),
            *_notes(problem, best, comparisons),
        ],
        comparisons=comparisons,
        front=[
            alternative(rank, each.configuration, each.prediction)
            for rank, each in enumerate([] if found.interrupted else _front(problem, best), start=1)
        ],
        asked=asked(problem.options),
    )


def _stopped(problem: Problem, found: Found) -> HetcliError:
    """Why there is no answer, neither a plan nor that there is none."""
    if found.interrupted:
        return Interrupted(
            "interrupted", why="no plan was found before", fix="let the search run for longer"
        )
    limit = problem.options.time_limit_s
    return EnvironmentFailure(
        f"no plan was found in {limit:g} s",
        why="the limit on time ended the search before it came to a first plan",
        fix="a larger --time-limit",
    )


def _front(problem: Problem, best: Scored) -> list[Scored]:
    """The plans that `--pareto` asks for; they start with the fastest one."""
    if not problem.options.pareto:
        return []
    if problem.workload.objective != "throughput":
        workload = problem.workload.model_copy(update={"objective": "throughput"})
        best = Grid(replace(problem, workload=workload)).run().plans[0]
    return front(problem, best)


def _distinct(found: Found, top: int) -> list[Scored]:
    """The best plan of each mapping, best first."""
    kept: dict[object, Scored] = {}
    for each in found.plans:
        kept.setdefault((each.layout.degrees, each.layout.stages), each)
    return list(kept.values())[:top]


def _certificate(problem: Problem, found: Found, best: Scored) -> Certificate:
    """The bound is on step time, or on the time that the plan's price allows to the least cost.

    It takes collectives as linear in their bytes: elsewhere none is claimed.
    """
    if problem.hardware.has_curves:
        unproven = "unknown: links measured as curves have no bound, only a ranking"
        return Certificate(lower_bound_s=None, gap=None, reason=unproven)
    scale = best.prediction.step_time_s / best.value
    bound = min(found.bound * scale, best.prediction.step_time_s)
    reason = ""
    if problem.workload.objective == "cost":
        reason = "the bound is on cost: no plan is cheaper by more than the gap"
    return Certificate(
        lower_bound_s=bound, gap=best.prediction.step_time_s / bound - 1, reason=reason
    )


def _notes(problem: Problem, best: Scored, comparisons: Comparisons | None) -> Iterator[str]:
    """What a user should know of this plan and would not see in its numbers."""
    degrees = best.layout.degrees
    used = {pool.index for pool, _ in best.layout.runs}
    for pool in problem.pools:
        if pool.index not in used:
            yield f"{pool.device_count} x {pool.device_type.name} stay idle: " + _why_idle(
                problem, best, pool, comparisons
            )
    if degrees.precision == "fp16" and problem.workload.precision == "auto":
        yield "fp16 with loss scaling: not every device that is used has bf16"
    stages = best.layout.stages
    micro_batches = problem.workload.global_batch // (degrees.micro_batch_size * degrees.data)
    bubble = (stages - 1) / (micro_batches + stages - 1)
    # From a fifth on the bubble is worth a note; nothing is decided by it.
    if bubble > 0.2:
        yield (
            f"{micro_batches} micro-batches over {stages} stages leave a bubble of {bubble:.0%}: "
            "a larger global batch would fill it"
        )


def _why_idle(problem: Problem, best: Scored, pool: Pool, comparisons: Comparisons | None) -> str:
    """What the best plan with the devices of a pool would take or cost."""
    word = "slower" if problem.workload.objective == "throughput" else "dearer"
    for entry in comparisons.entries if comparisons else ():
        if entry.kind != "with-type" or entry.gpu != pool.device_type.gpu.name:
            continue
        if entry.step_time_s is None:
            return "no plan with them fits"
        values = (entry.step_time_s, best.prediction.step_time_s)
        if word == "dearer":
            values = (entry.cost_per_step or 0.0, best.value)
        return f"the best plan with them is {values[0] / values[1] - 1:.1%} {word}"
    return f"every plan with them that was looked at is {word}"
