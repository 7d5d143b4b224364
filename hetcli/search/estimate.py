"""`estimate`: the prediction of one configuration that the user gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.perf.configuration import Configuration, TrainingPrecision
from hetcli.perf.hardware import Hardware
from hetcli.perf.resolve import resolve
from hetcli.perf.rules import (
    check,
    check_batch,
    check_interleaving,
    check_model,
    check_pipeline,
    check_stage_layers,
    check_tensor_parallel,
    supports,
)
from hetcli.perf.step import predict
from hetcli.search.document import given_document
from hetcli.search.layout import Degrees, Layout, configuration
from hetcli.search.options import EstimateRequest, framework_of
from hetcli.search.partition import even_split
from hetcli.search.pools import Pool, pools
from hetcli.search.unequal import Rank, micro_batches_of, ranks_of, with_ranks
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import Model, MoeFeedForward
from hetcli.spec.plan import Plan
from hetcli.spec.workload import Pretrain

__all__ = ["estimate"]

Runs = tuple[tuple[Pool, int], ...]


def estimate(
    *, cluster: Cluster, model: Model, workload: Pretrain, request: EstimateRequest | None = None
) -> Plan:
    """What the given configuration takes, in the form of a plan; it need not fit into memory.

    Raises:
        UnsupportedByTargetError: the target cannot build the model.
        ConfigurationError: the configuration breaks a rule of the model or the framework.
        InfeasibleError: batch or devices do not suffice.
    """
    request = request or EstimateRequest()
    hardware = resolve(cluster)
    if request.target != "free":
        check_model(framework_of(request.target), model, workload.sequence)
    whole = _configuration(hardware, model, workload, request)
    check(whole, model, hardware)
    prediction = predict(whole, model=model, workload=workload, hardware=hardware)
    notes = []
    if not prediction.fits:
        worst = prediction.worst_device
        notes.append(
            f"does not fit: {worst.devices[0]} lacks {-worst.headroom_bytes / 1024**3:.2f} GiB"
        )
    return given_document(
        whole,
        prediction,
        cluster=cluster,
        model=model,
        workload=workload,
        hardware=hardware,
        target=request.target,
        reason="no search was made: the configuration was given",
        notes=notes,
    )


def _configuration(
    hardware: Hardware, model: Model, workload: Pretrain, request: EstimateRequest
) -> Configuration:
    tensor, context = request.tensor_parallel or 1, request.context_parallel or 1
    check_tensor_parallel(model, tensor)
    layers = _numbers(request.stage_layers)
    groups = _names(request.stage_groups)
    stages = request.pipeline_parallel or len(layers or groups or [0])
    if layers is not None:
        check_stage_layers(layers, model.layer_count, stages)
    if groups is not None and len(groups) != stages:
        raise ConfigurationError(
            f"{len(groups)} stage groups are given for {stages} pipeline stages",
            why="every stage needs one",
            fix=f"name {stages} node groups",
        )
    ranks = _ranks(hardware, request, stages, tensor, context)
    if ranks:
        data, size = len(ranks), max(rank.sequences for rank in ranks)
        nodes = dict.fromkeys(hardware.node_of(each) for rank in ranks for each in rank.devices)
        runs: Runs = ((Pool(0, tuple(nodes)), 1),)
        micro_batches = micro_batches_of(ranks, workload.global_batch)
    else:
        data, runs = _runs(hardware, request, stages, tensor, context, groups)
        size = request.micro_batch_size or 1
        micro_batches = check_batch(workload.global_batch, size, data)
        check_pipeline(
            pipeline_parallel=stages,
            global_batch=workload.global_batch,
            micro_batch_size=size,
            data_parallel=data,
            layers=model.layer_count,
        )
    if request.virtual_stages > 1 and request.schedule in (None, "interleaved"):
        check_interleaving(stages, micro_batches)
    framework = framework_of(request.target)
    precision = _precision(runs, workload)
    zero_stage = request.zero_stage
    if zero_stage is None:
        zero_stage = 1 if data * context > 1 else 0
    degrees = Degrees(
        precision=precision,
        tensor=tensor,
        context=context,
        data=data,
        expert=request.expert_parallel or 1,
        expert_tensor=_expert_tensor(model, request, tensor),
        micro_batch_size=size,
        virtual_stages=request.virtual_stages,
        recompute=request.recompute or "none",
        zero_stage=zero_stage,
        offload=request.offload or "none",
        sequence_parallel=_sequence_parallel(request, workload, tensor),
        framework=framework,
    )
    layout = Layout(degrees, runs, layers or even_split(model.layer_count, stages))
    whole = configuration(layout, workload)
    if ranks:
        whole = with_ranks(whole, ranks, micro_batches)
    return replace(whole, schedule=request.schedule) if request.schedule else whole


def _ranks(
    hardware: Hardware, request: EstimateRequest, stages: int, tensor: int, context: int
) -> list[Rank]:
    """The ranks with batches of their own; none where all are given the same."""
    if request.per_gpu_batch is None:
        return []
    for name, given in (
        ("--pp", stages > 1),
        ("--mbs", request.micro_batch_size is not None),
        ("--virtual-stages", request.virtual_stages > 1),
        ("--stage-groups", request.stage_groups is not None),
        ("--ep", (request.expert_parallel or 1) > 1),
    ):
        if given:
            raise ConfigurationError(
                f"--per-gpu-batch beside {name}",
                why="it says which ranks there are and what each of them reads: data-parallel "
                "replicas of the whole model",
                fix=f"leave out {name} or --per-gpu-batch",
            )
    ranks = ranks_of(hardware, request.per_gpu_batch, tensor=tensor, context=context)
    if request.data_parallel not in (None, len(ranks)):
        raise ConfigurationError(
            f"--dp {request.data_parallel} beside --per-gpu-batch",
            why=f"what it names makes {len(ranks)} data-parallel ranks",
            fix=f"--dp {len(ranks)}, or leave it out",
        )
    return ranks


def _sequence_parallel(request: EstimateRequest, workload: Pretrain, tensor: int) -> bool:
    if request.sequence_parallel is not None:
        return request.sequence_parallel and tensor > 1
    share = workload.sequence // (request.context_parallel or 1)
    return request.target != "deepspeed" and tensor > 1 and share % tensor == 0


def _expert_tensor(model: Model, request: EstimateRequest, tensor: int) -> int:
    """Megatron-LM's default is the tensor degree; a dense model has no experts to cut."""
    if request.expert_tensor_parallel is not None:
        return request.expert_tensor_parallel
    routed = any(isinstance(run.layer.feed_forward, MoeFeedForward) for run in model.layers)
    return tensor if routed else 1


def _precision(runs: Runs, workload: Pretrain) -> TrainingPrecision:
    """The precision asked for, or the first that every device used has."""
    if workload.precision != "auto":
        return workload.precision
    gpus = [node.device_type.gpu for pool, _ in runs for node in pool.nodes]
    choices: tuple[TrainingPrecision, ...] = ("bf16", "fp16")
    for precision in choices:
        if all(supports(gpu, precision) for gpu in gpus):
            return precision
    return "fp32"


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigurationError(
            f"stage layers {text!r} are not numbers",
            why="one number a stage, separated by commas",
            fix="write them like 10,10,6,6",
        ) from error


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


# --- which stage is where -----------------------------------------------------------------------


def _runs(
    hardware: Hardware,
    request: EstimateRequest,
    stages: int,
    tensor: int,
    context: int,
    groups: Sequence[str] | None,
) -> tuple[int, Runs]:
    """Replicas of a stage, and the pools along the pipeline."""
    found = pools(hardware)
    if groups is not None:
        named = [_of_group(hardware, name, found) for name in groups]
        counts = {pool.index: sum(each is pool for each in named) for pool in named}
        data = request.data_parallel or min(
            pool.group_count(tensor) // (counts[pool.index] * context) for pool in named
        )
        for pool in named:
            _check_room(pool, counts[pool.index], tensor=tensor, members=context * max(data, 1))
        return data, tuple((pool, 1) for pool in named)
    if request.data_parallel is not None:
        data = request.data_parallel
    else:
        data = max(_most_replicas(found, stages, tensor, context), 1)
    runs: list[tuple[Pool, int]] = []
    left = stages
    for pool in found:
        count = min(left, pool.group_count(tensor) // (context * data))
        if count:
            runs.append((pool, count))
            left -= count
    if not left:
        return data, tuple(runs)
    # No pool has whole stages left: stages run over the borders of pools, in file order.
    everything = Pool(0, tuple(node for pool in found for node in pool.nodes))
    _check_room(everything, stages, tensor=tensor, members=context * data)
    return data, ((everything, stages),)


def _most_replicas(found: Sequence[Pool], stages: int, tensor: int, context: int) -> int:
    """The most replicas with which every stage lies in one pool; else those that fit at all."""
    groups = [pool.group_count(tensor) // context for pool in found]
    for data in range(max(groups), 0, -1):
        if sum(count // data for count in groups) >= stages:
            return data
    return sum(groups) // stages


def _of_group(hardware: Hardware, name: str, found: Sequence[Pool]) -> Pool:
    nodes = tuple(node for node in hardware.nodes if node.group == name)
    if not nodes:
        known = list(dict.fromkeys(node.group for node in hardware.nodes))
        raise ConfigurationError(
            f"{name!r} is no node group of {hardware.name}",
            why="a stage group is the name of an entry of the cluster file",
            fix=f"node groups: {', '.join(known)}",
        )
    index = list(dict.fromkeys(node.group for node in hardware.nodes)).index(name)
    return Pool(len(found) + index, nodes)


def _check_room(pool: Pool, stages: int, *, tensor: int, members: int) -> None:
    have = pool.group_count(tensor)
    if have < stages * members:
        names = ", ".join(dict.fromkeys(node.device_type.name for node in pool.nodes))
        raise InfeasibleError(
            f"{stages} stages of {members} x {tensor} devices do not fit on {names}",
            why=f"they need {stages * members} groups of {tensor} devices inside a node; "
            f"{have} exist",
            fix=f"at most {have // stages} replicas, or fewer stages",
        )
