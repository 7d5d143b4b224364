"""Plan again after a change: what is left, what each way to go on brings, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import hetcli
from hetcli.adapt.changes import Changes, changed
from hetcli.adapt.elastic import nearest_usable
from hetcli.adapt.fresh import new_plans, searches_all
from hetcli.adapt.moving import Move, move, placed_to_keep
from hetcli.adapt.strategies import candidates, lost_devices
from hetcli.errors import ConfigurationError, HetcliError, InfeasibleError
from hetcli.perf.configuration import Configuration, DeviceId
from hetcli.perf.hardware import Hardware
from hetcli.perf.prediction import Prediction
from hetcli.perf.resolve import resolve
from hetcli.perf.rules import check
from hetcli.perf.step import predict
from hetcli.search.document import configuration_of, given_document
from hetcli.spec.cluster import Cluster
from hetcli.spec.plan import Plan, PlanDevice, Target
from hetcli.spec.replan import Replan, ReplanOption

__all__ = ["replan", "share_left"]

UNCHANGED = "go on unchanged"


@dataclass(frozen=True)
class _Left:
    """What is left of the cluster; `suffix` tells apart how slow devices are treated."""

    suffix: str
    cluster: Cluster
    hardware: Hardware


@dataclass(frozen=True)
class _Way:
    """One way to go on, judged."""

    name: str
    configuration: Configuration
    prediction: Prediction
    runs_on: tuple[Target, ...]
    move: Move
    left: _Left

    @property
    def tokens_per_s(self) -> float:
        return self.prediction.tokens_per_s


def replan(
    plan: Plan,
    changes: Changes,
    *,
    batch_tolerance: float = 0.0,
    time_limit_s: float | None = None,
    any_target: bool = False,
) -> tuple[Replan, Plan]:
    """The ways to go on, and the plan of the best one.

    Best is the fastest (the cheapest, where that is the objective) that fits and that the plan's
    target can run (`any_target`: that anything can run). The global batch stays, unless
    `batch_tolerance` (a share) allows another one. Slow devices are tried with less work and left
    out. `time_limit_s` limits each search for a new plan.

    Raises InfeasibleError when nothing that is left can run the job.
    """
    before = configuration_of(plan)
    rejected: list[str] = []
    ways: list[_Way] = []
    lefts = list(_lefts(plan.inputs.cluster, changes))
    for left in lefts:
        for name, found in _found(plan, before, left, batch_tolerance, time_limit_s):
            if isinstance(found, HetcliError):
                rejected.append(f"{name}: {found}")
                continue
            try:
                ways.append(_judged(name, before, found, plan, left, lefts[0].hardware))
            except (ConfigurationError, InfeasibleError) as error:
                rejected.append(f"{name}: {error}")
    ways = _ranked(ways, plan)
    usable = [
        way
        for way in ways
        if way.prediction.fits
        and (any_target or plan.target == "free" or plan.target in way.runs_on)
    ]
    if not usable:
        raise _nothing(plan, ways, rejected, lefts[0].hardware, batch_tolerance)
    best = usable[0]
    least = min(usable, key=lambda way: (way.move.received_bytes, -way.tokens_per_s))
    hardware = lefts[0].hardware
    document = Replan(
        hetcli_version=hetcli.__version__,
        before_tokens_per_s=plan.predicted.tokens_per_s,
        lost=tuple(_device(each) for each in sorted(lost_devices(before, hardware))),
        options=tuple(_option(way, least, hardware) for way in ways),
        chosen=ways.index(best),
        checkpoint=_checkpoint(best, plan),
        rejected=tuple(rejected),
        notes=tuple(_notes(best, plan, hardware, time_limit_s)),
    )
    return document, _plan(best, plan)


def _lefts(cluster: Cluster, changes: Changes) -> Iterator[_Left]:
    """The cluster after the changes, and once more without the devices that became slow."""
    after = changed(cluster, changes)
    yield _Left("", after, resolve(after))
    if changes.slow:
        without = tuple((node, devices) for node, devices, _ in changes.slow)
        less = changed(cluster, replace(changes, slow=(), failed=(*changes.failed, *without)))
        try:
            hardware = resolve(less)
        except InfeasibleError:
            return
        yield _Left(", slow ones left out", less, hardware)


def _found(
    plan: Plan,
    before: Configuration,
    left: _Left,
    tolerance: float,
    time_limit_s: float | None,
) -> Iterator[tuple[str, Configuration | HetcliError]]:
    """Configurations by name, from the smallest change to the largest."""
    model, hardware = plan.inputs.model, left.hardware
    if not lost_devices(before, hardware):
        yield UNCHANGED, before
    for name, found in candidates(before, model, hardware, tolerance):
        yield name + left.suffix, found
    for name, fresh in new_plans(plan, left.cluster, tolerance, time_limit_s):
        if isinstance(fresh, Configuration):
            fresh = placed_to_keep(before, fresh, model, hardware)
        yield name + left.suffix, fresh


def _ranked(ways: list[_Way], plan: Plan) -> list[_Way]:
    """Best first; of ways that come to the same the one that was found first."""
    kept: dict[object, _Way] = {}
    for way in ways:
        kept.setdefault((way.configuration, way.prediction.step_time_s), way)
    by_cost = plan.inputs.workload.objective == "cost"

    def worth(way: _Way) -> float:
        cost = way.prediction.cost_per_step
        if by_cost and cost is not None:
            return -cost / way.configuration.global_batch
        return way.tokens_per_s

    return sorted(kept.values(), key=worth, reverse=True)


def share_left(document: Replan) -> float:
    """The share of its throughput that the job keeps in the chosen way, at most all of it."""
    chosen = document.options[document.chosen]
    return min(1.0, chosen.tokens_per_s / document.before_tokens_per_s)


def _device(device: DeviceId) -> PlanDevice:
    return PlanDevice(node=device.node, index=device.index)


def _judged(
    name: str,
    before: Configuration,
    found: Configuration,
    plan: Plan,
    left: _Left,
    alive: Hardware,
) -> _Way:
    """`alive` can still give its state. Raises ConfigurationError or InfeasibleError by a rule."""
    model, hardware = plan.inputs.model, left.hardware
    check(found, model, hardware)
    prediction = predict(found, model=model, workload=plan.inputs.workload, hardware=hardware)
    runs_on = tuple(_targets(found))
    return _Way(name, found, prediction, runs_on, move(before, found, model, alive), left)


def _targets(configuration: Configuration) -> Iterator[Target]:
    """Who can run it (the table of plan features): free plans run on the trial runtime alone."""
    stages = configuration.stages
    degrees = {stage.tensor_parallel for stage in stages}
    widths = {stage.data_parallel for stage in stages}
    batches = {
        (replica.micro_batches, replica.micro_batch_size)
        for stage in stages
        for replica in stage.replicas
    }
    if configuration.is_grid and len(batches) == 1:
        if len(degrees) == 1 and len(widths) == 1:
            yield "megatron"
            yield "deepspeed"
        yield "flagscale"
    yield "free"


def _option(way: _Way, least: _Way, hardware: Hardware) -> ReplanOption:
    used = set(way.configuration.devices)
    pipelines = way.configuration.pipelines
    return ReplanOption(
        name=way.name,
        step_time_s=way.prediction.step_time_s,
        tokens_per_s=way.tokens_per_s,
        global_batch=way.configuration.global_batch,
        layers=tuple(tuple(stage.layer_count for stage in each.stages) for each in pipelines),
        tensor_parallel=tuple(
            tuple(stage.tensor_parallel for stage in each.stages) for each in pipelines
        ),
        micro_batches=tuple(
            tuple(replica.micro_batches for replica in each.stages[0].replicas)
            for each in pipelines
        ),
        fits=way.prediction.fits,
        headroom_bytes=way.prediction.worst_device.headroom_bytes,
        runs_on=way.runs_on,
        idle=tuple(
            _device(device)
            for node in hardware.nodes
            for device in node.device_ids
            if device not in used
        ),
        moved_bytes=way.move.received_bytes,
        moving_s=way.move.seconds,
        from_checkpoint=way.move.state_is_lost,
        reshards=way.move.reshards,
        break_even_s=_break_even(way, least),
    )


def _break_even(way: _Way, least: _Way) -> float | None:
    """When it has trained as many tokens as the way that stands still for the shortest time.

    r (t - moving) = r0 (t - moving0), both from now on.
    """
    if way is least:
        return 0.0
    later = way.move.seconds - least.move.seconds
    faster = way.tokens_per_s - least.tokens_per_s
    if later <= 0:
        return 0.0 if faster >= 0 else None
    if faster <= 0:
        return None
    trained = way.tokens_per_s * way.move.seconds - least.tokens_per_s * least.move.seconds
    return max(0.0, trained / faster)


def _checkpoint(best: _Way, plan: Plan) -> str:
    """Whether the plan's target can load what it saved before."""
    if not best.move.reshards:
        if plan.target == "deepspeed" and best.configuration.zero_stage > 0:
            return (
                "only the data-parallel size changes; ZeRO's shards follow it, so load through "
                "DeepSpeed's universal checkpoint"
            )
        return "loads as it is: only the data-parallel size or the batch changes"
    if plan.target == "deepspeed":
        return "has to be resharded: convert it to DeepSpeed's universal checkpoint first"
    if plan.target == "megatron":
        return (
            "has to be resharded: the distributed format (--dist-ckpt-format torch_dist) does it "
            "while loading, the older one needs tools/checkpoint/convert.py"
        )
    return "has to be resharded: tensor or pipeline slices change"


def _notes(best: _Way, plan: Plan, hardware: Hardware, time_limit_s: float | None) -> Iterator[str]:
    work = plan.inputs.workload
    if best.configuration.global_batch != work.global_batch:
        yield (
            f"the global batch becomes {best.configuration.global_batch} (was "
            f"{work.global_batch}): {best.configuration.global_batch / work.global_batch - 1:+.1%}"
        )
    if best.move.state_is_lost:
        yield "some state was only on devices that are gone: restart from the last checkpoint"
    share = best.tokens_per_s / plan.predicted.tokens_per_s
    yield f"{share:.1%} of the predicted throughput before the change"
    if not searches_all(hardware, time_limit_s):
        yield "new plans were searched with the old tensor degree only: --time-limit 10 tries all"


def _nothing(
    plan: Plan, ways: list[_Way], rejected: list[str], hardware: Hardware, tolerance: float
) -> InfeasibleError:
    """Why nothing goes on, and what would: another target, fewer devices, a wider band."""
    degrees = plan.parallelism
    step = degrees.tensor_parallel * degrees.pipeline_parallel * degrees.context_parallel
    batch = plan.inputs.workload.global_batch
    others = sorted({target for way in ways if way.prediction.fits for target in way.runs_on})
    fixes = []
    if others:
        fixes.append(f"--any-target: {', '.join(others)} can go on")
    ranks = hardware.device_count // step
    fewer = nearest_usable(ranks + 1, 1, batch, tolerance)
    if fewer is not None:
        fixes.append(f"{fewer * step} of the devices left can split the batch of {batch}")
    if tolerance < 0.1:
        fixes.append("--batch-tolerance 10, so that the batch may change")
    return InfeasibleError(
        "nothing that is left can run the job",
        why="; ".join(rejected) or "no way to go on fits, or none runs on the plan's target",
        fix="; ".join(fixes) or "--add a node",
    )


def _plan(best: _Way, plan: Plan) -> Plan:
    target: Target = plan.target if plan.target in best.runs_on else "free"
    work = plan.inputs.workload.model_copy(update={"global_batch": best.configuration.global_batch})
    return given_document(
        best.configuration,
        best.prediction,
        cluster=best.left.cluster,
        model=plan.inputs.model,
        workload=work,
        hardware=best.left.hardware,
        target=target,
        reason="planned again around a change",
        asked=plan.search.asked,
        notes=(f"planned again: {best.name}",),
    )
