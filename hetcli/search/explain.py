"""`explain`: what binds a plan, what was rejected, what comes near, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from hetcli.errors import NegativeAnswer, UsageError
from hetcli.perf.configuration import Configuration
from hetcli.perf.hardware import Hardware
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.search.best import best_plan
from hetcli.search.document import alternative, configuration_of
from hetcli.search.families import Problem, check_request
from hetcli.search.found import Scored
from hetcli.search.options import options_of
from hetcli.search.pools import pools
from hetcli.search.situations import PLACES, Situation, faster_device, faster_links, situations
from hetcli.spec.explanation import Bottleneck, Explanation, Lever, Neighbour, WhatIf
from hetcli.spec.plan import Alternative, Plan

__all__ = ["explain"]

# A lever counts twice as fast: enough to show what comes next where two things bind at once.
FASTER = 2.0
# Less than this change of the step is none.
NO_GAIN = 0.005


def explain(plan: Plan, *, what_if: bool = True) -> Explanation:
    """Why the plan is as it is; with `what_if` the search is run again in other situations."""
    hardware = resolve(plan.inputs.cluster)
    problem = Problem(
        plan.inputs.model,
        plan.inputs.workload,
        hardware,
        pools(hardware),
        options_of(plan.target, plan.search.asked),
    )
    levers = sorted(_levers(problem, plan), key=lambda lever: -lever.gain)
    bottleneck = _bottleneck(plan)
    changes = tuple(_what_if(plan, each) for each in situations(problem)) if what_if else ()
    return Explanation(
        plan=_mapping(plan),
        step_time_s=plan.predicted.step_time_s,
        tokens_per_s=plan.predicted.tokens_per_s,
        binds=_binds(plan, levers, changes),
        bottleneck=bottleneck,
        levers=tuple(levers),
        rejected=plan.search.pruned,
        neighbours=tuple(_neighbours(plan)),
        what_if=changes,
    )


def _mapping(plan: Plan) -> str:
    return _short(plan).mapping if plan.alternatives else "the given configuration"


def _short(plan: Plan) -> Alternative:
    return plan.alternatives[0]


def _bottleneck(plan: Plan) -> Bottleneck:
    predicted = plan.predicted
    busiest = max(predicted.stages, key=lambda stage: stage.busy_s)
    fullest = min(predicted.devices, key=lambda device: device.headroom_bytes)
    parts = predicted.breakdown_s
    return Bottleneck(
        stage=busiest.stage,
        gpu=plan.stages[busiest.stage].gpu,
        busy_s=busiest.busy_s,
        busy_share=busiest.busy_s / predicted.step_time_s,
        bound_by=max(parts, key=lambda name: parts[name]),
        memory_device=f"{fullest.node}:{fullest.index}",
        memory_gpu=fullest.gpu,
        headroom_bytes=fullest.headroom_bytes,
    )


def _levers(problem: Problem, plan: Plan) -> Iterator[Lever]:
    """The same plan on hardware of which one thing is twice as fast."""
    configuration = configuration_of(plan)
    used = dict.fromkeys(
        problem.hardware.node_of(device).device_type.gpu.name for device in configuration.devices
    )
    whole = plan.predicted.step_time_s

    def lever(kind: Literal["device", "link"], name: str, seconds: float) -> Lever:
        return Lever(kind=kind, name=name, step_time_s=seconds, gain=whole / seconds - 1)

    for gpu in used:
        hardware = faster_device(problem.hardware, gpu, FASTER)
        yield lever("device", gpu, _seconds(problem, configuration, hardware))
    for place in PLACES:
        hardware = faster_links(problem.hardware, place, FASTER)
        yield lever("link", f"links {place}", _seconds(problem, configuration, hardware))


def _seconds(problem: Problem, configuration: Configuration, hardware: Hardware) -> float:
    return predict(
        configuration, model=problem.model, workload=problem.workload, hardware=hardware
    ).step_time_s


def _binds(plan: Plan, levers: list[Lever], changes: tuple[WhatIf, ...]) -> str:
    """The device, the link or the memory that holds the plan back most, in one sentence."""
    best = levers[0]
    memory = next((each for each in changes if each.change.startswith("twice the memory")), None)
    if memory and memory.gain is not None and memory.gain > max(best.gain, NO_GAIN):
        return f"memory: with twice as much another plan is {memory.gain:.1%} faster"
    if best.gain < NO_GAIN:
        return "neither a device nor a link alone: each of them twice as fast changes nothing"
    if best.kind == "link":
        return f"{best.name}: twice as fast they make this plan {best.gain:.1%} faster"
    bubble = plan.predicted.breakdown_s.get("pipeline_bubble", 0.0) / plan.predicted.step_time_s
    idle = f", {bubble:.0%} of the step being bubble" if bubble >= 0.1 else ""
    return f"{best.name}: twice as fast it makes this plan {best.gain:.1%} faster{idle}"


def _neighbours(plan: Plan) -> Iterator[Neighbour]:
    """The ranking behind the plan, each with the degrees in which it differs."""
    if not plan.alternatives:
        return
    best = _short(plan)
    own = best.parallelism.model_dump()
    for other in plan.alternatives[1:]:
        theirs = other.parallelism.model_dump()
        differs = [
            f"{name} {theirs[name]} instead of {own[name]}"
            for name in own
            if own[name] != theirs[name] and name != "gradient_accumulation"
        ]
        yield Neighbour(
            plan=other,
            differs=", ".join(differs) or "other stages or layers",
            slower=other.step_time_s / best.step_time_s - 1,
        )


def _what_if(plan: Plan, situation: Situation) -> WhatIf:
    problem = situation.problem
    try:
        check_request(problem)
        found = best_plan(problem)
    except (NegativeAnswer, UsageError) as error:
        return WhatIf(change=situation.change, reason=error.what)
    if found is None:
        return WhatIf(change=situation.change, reason="nothing fits")
    return _found(plan, situation.change, found)


def _found(plan: Plan, change: str, found: Scored) -> WhatIf:
    short = alternative(1, found.configuration, found.prediction)
    tokens = found.configuration.global_batch * found.configuration.sequence
    return WhatIf(
        change=change,
        mapping=short.mapping,
        layers=short.layers,
        devices=len(found.configuration.devices),
        step_time_s=short.step_time_s,
        tokens_per_s=short.tokens_per_s,
        cost_per_million_tokens=None
        if short.cost_per_step is None
        else short.cost_per_step / tokens * 1e6,
        gain=short.tokens_per_s / plan.predicted.tokens_per_s - 1,
    )
