"""Every legal combination of degrees; the shape of the pipeline comes later."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.perf.compute import kernel_of
from hetcli.perf.configuration import Framework, TrainingPrecision
from hetcli.perf.hardware import Hardware
from hetcli.perf.rules import (
    check_batch,
    check_context_parallel,
    check_expert_parallel,
    check_framework,
    check_model,
    check_pipeline,
    check_precision,
    check_splits,
    check_tensor_parallel,
    divisors,
    interleaving_is_legal,
    legal_expert_parallel,
    legal_expert_tensor_parallel,
    legal_tensor_parallel,
    supports,
)
from hetcli.search.layout import Degrees
from hetcli.search.options import PlanOptions, framework_of
from hetcli.search.pools import Pool
from hetcli.spec.model.architecture import Model
from hetcli.spec.workload import Pretrain, RecomputeChoice

__all__ = ["Problem", "check_request", "families", "interleavings", "precisions", "recomputes"]

# Targets whose pipelines can have several model chunks a stage.
INTERLEAVING = frozenset[str]({"megatron", "torchtitan", "generic", "free"})

# Bounds of the space that published runs stay within: Llama 3 has 8,192 tokens a context rank
# (arXiv 2407.21783, table 4), and micro-batches of tens of sequences fit small models only.
MAX_MICRO_BATCH = 64
# NVIDIA's recipe for GPT-3 175B has 12 (NeMo framework, performance summary).
MAX_VIRTUAL_STAGES = 12
MIN_TOKENS_PER_CONTEXT_RANK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is to be planned."""

    model: Model
    workload: Pretrain
    hardware: Hardware
    pools: tuple[Pool, ...]
    options: PlanOptions

    @property
    def framework(self) -> Framework:
        """The framework whose rules hold."""
        return framework_of(self.options.target)


def precisions(problem: Problem) -> dict[TrainingPrecision, frozenset[int]]:
    """Joint precisions worth a search, and the pools that each of them is there for.

    That is the precision asked for with all pools, or bf16, fp16 and fp32 with the pools that none
    before it reaches: a plan without them would not need it.

    Raises:
        InfeasibleError: a node cannot compute in the precision that was asked for.
    """
    asked = problem.workload.precision
    everything = frozenset(pool.index for pool in problem.pools)
    if asked != "auto":
        check_precision(problem.hardware.nodes, asked)
        return {asked: everything}
    found: dict[TrainingPrecision, frozenset[int]] = {}
    reached: frozenset[int] = frozenset()
    choices: tuple[TrainingPrecision, ...] = ("bf16", "fp16", "fp32")
    for precision in choices:
        able = {pool.index for pool in problem.pools if supports(pool.device_type.gpu, precision)}
        if able - reached:
            found[precision] = frozenset(able - reached)
            reached |= able
    return found


def check_request(problem: Problem) -> None:
    """Refuse fixed degrees that no search could satisfy, before searching.

    Raises:
        UnsupportedByTargetError: the target cannot build the model.
        ConfigurationError: a degree that the model or framework cannot take.
        InfeasibleError: the batch or the cluster does not suffice.
    """
    options, workload, model = problem.options, problem.workload, problem.model
    if options.target != "free":
        check_model(problem.framework, model, workload.sequence)
    world = problem.hardware.device_count
    tensor = options.tensor_parallel or 1
    context = options.context_parallel or 1
    pipeline = options.pipeline_parallel or 1
    data = options.data_parallel or 1
    check_tensor_parallel(model, tensor)
    check_context_parallel(workload.sequence, context)
    check_framework(
        problem.framework,
        pipeline_parallel=pipeline,
        virtual_stages=options.virtual_stages or 1,
        zero_stage=options.zero_stage or 0,
        offload=options.offload,
        context_parallel=context,
        expert_parallel=options.expert_parallel or 1,
        precision=None if workload.precision == "auto" else workload.precision,
    )
    chunks = options.virtual_stages or 1
    if chunks > 1 and options.target not in INTERLEAVING:
        raise ConfigurationError(
            f"{options.target} pipelines have no virtual stages",
            why="its stages have one chunk of the model each",
            fix="--virtual-stages 1, or --target megatron",
        )
    if model.layer_count % chunks:
        raise ConfigurationError(
            f"{chunks} virtual stages do not divide {model.layer_count} layers",
            why="every chunk of the model has as many layers",
            fix=f"--virtual-stages {max(d for d in divisors(model.layer_count) if d < chunks)}",
        )
    size = options.micro_batch_size or 1
    if options.data_parallel or options.micro_batch_size:
        check_batch(workload.global_batch, size, data)
    check_pipeline(
        pipeline_parallel=pipeline,
        global_batch=workload.global_batch,
        micro_batch_size=size,
        data_parallel=data,
        layers=model.layer_count,
    )
    asked = tensor * context * pipeline * data
    if asked > world:
        raise InfeasibleError(
            f"the degrees ask for {asked} devices",
            why=f"tensor {tensor} x context {context} x pipeline {pipeline} x data {data}; "
            f"the cluster has {world} usable devices",
            fix=f"degrees whose product is at most {world}",
        )
    if options.expert_parallel or options.expert_tensor_parallel:
        experts = options.expert_parallel or 1
        slices = options.expert_tensor_parallel or 1
        mesh = experts * slices * pipeline
        # Without fixed degrees any multiple of the mesh up to the whole cluster may be used.
        used = (
            asked if options.data_parallel and options.pipeline_parallel else world // mesh * mesh
        )
        check_expert_parallel(
            model,
            expert_parallel=experts,
            expert_tensor_parallel=slices,
            pipeline_parallel=pipeline,
            world=used or world,
        )
    widest = max(pool.devices_per_node for pool in problem.pools)
    if tensor > widest:
        raise InfeasibleError(
            f"tensor_parallel {tensor} does not fit into a node",
            why=f"the largest node has {widest} usable devices, and a tensor group never leaves it",
            fix=f"tensor_parallel {max(t for t in legal_tensor_parallel(model) if t <= widest)}",
        )


def families(problem: Problem, pruned: Counter[str]) -> Iterator[Degrees]:
    """All degrees that some pool can hold a stage of; what a rule leaves out is counted.

    What is recomputed is chosen for each pool, not for a family.
    """
    workload, options = problem.workload, problem.options
    for precision in precisions(problem):
        usable = [pool for pool in problem.pools if supports(pool.device_type.gpu, precision)]
        widest = max(pool.devices_per_node for pool in usable)
        for tensor in _chosen(options.tensor_parallel, legal_tensor_parallel(problem.model)):
            if tensor > widest:
                pruned["tensor group larger than a node"] += 1
                continue
            groups = max(pool.group_count(tensor) for pool in usable)
            for context in _contexts(problem, pruned):
                for size in _micro_batches(problem, pruned):
                    if math.gcd(context, size) > 1 and _is_free(options):
                        # Smaller micro-batches on more replicas: as many tokens and micro-batches
                        # on every rank, and no keys and values to exchange.
                        pruned["context ranks in place of replicas"] += 1
                        continue
                    for data in _chosen(
                        options.data_parallel, divisors(workload.global_batch // size)
                    ):
                        if context * data > groups:
                            pruned["stage larger than every pool"] += 1
                            continue
                        yield from _variants(
                            problem, pruned, precision, tensor, context, data, size
                        )


def interleavings(problem: Problem, degrees: Degrees) -> tuple[int, ...]:
    """Numbers of model chunks a stage, ascending, that pipelines of these degrees may have.

    None where the user says how many, and where the target's pipelines have one. All chunks are as
    long, and every stage has as many layers of each, as Megatron-LM counts them
    (--num-layers-per-virtual-pipeline-stage).
    """
    options, workload = problem.options, problem.workload
    if options.virtual_stages is not None or options.target not in INTERLEAVING:
        return ()
    micro_batches = workload.global_batch // (degrees.micro_batch_size * degrees.data)
    layers = problem.model.layer_count
    return tuple(
        chunks
        for chunks in range(2, MAX_VIRTUAL_STAGES + 1)
        if layers % chunks == 0
        and any(
            interleaving_is_legal(stages, micro_batches)
            for stages in range(2, min(layers // chunks, micro_batches) + 1)
        )
    )


def _is_free(options: PlanOptions) -> bool:
    """Whether context, data and micro-batch sizes may all be exchanged for each other."""
    fixed = (options.context_parallel, options.data_parallel, options.micro_batch_size)
    return fixed == (None, None, None)


def _chosen(fixed: int | None, choices: Sequence[int]) -> Sequence[int]:
    return choices if fixed is None else [choice for choice in choices if choice == fixed]


def _contexts(problem: Problem, pruned: Counter[str]) -> list[int]:
    if problem.options.context_parallel is not None:
        return [problem.options.context_parallel]
    if problem.framework == "deepspeed":
        return [1]
    found, context = [1], 2
    while problem.workload.sequence % (2 * context) == 0:
        if problem.workload.sequence // context < MIN_TOKENS_PER_CONTEXT_RANK:
            pruned["context rank with few tokens"] += 1
            break
        found.append(context)
        context *= 2
    return found


def _micro_batches(problem: Problem, pruned: Counter[str]) -> list[int]:
    sizes = divisors(problem.workload.global_batch)
    if problem.options.micro_batch_size is not None:
        return [size for size in sizes if size == problem.options.micro_batch_size]
    pruned["micro-batch larger than 64"] += sum(size > MAX_MICRO_BATCH for size in sizes)
    return [size for size in sizes if size <= MAX_MICRO_BATCH]


def _variants(
    problem: Problem,
    pruned: Counter[str],
    precision: TrainingPrecision,
    tensor: int,
    context: int,
    data: int,
    size: int,
) -> Iterator[Degrees]:
    framework = problem.framework
    options, sequence = problem.options, problem.workload.sequence
    sequence_parallel = framework == "megatron" and tensor > 1 and sequence // context % tensor == 0
    for expert, expert_tensor in _experts(problem, tensor, context * data * tensor):
        try:
            check_splits(
                framework,
                problem.model,
                sequence=sequence,
                precision=precision,
                tensor_parallel=tensor,
                context_parallel=context,
                expert_tensor_parallel=expert_tensor,
                sequence_parallel=sequence_parallel,
            )
        except ConfigurationError:
            pruned["layers that the target cannot split so"] += 1
            continue
        for zero_stage in _zero_stages(problem, tensor, context * data):
            yield Degrees(
                precision=precision,
                tensor=tensor,
                context=context,
                data=data,
                expert=expert,
                expert_tensor=expert_tensor,
                micro_batch_size=size,
                virtual_stages=options.virtual_stages or 1,
                zero_stage=zero_stage,
                offload=options.offload,
                sequence_parallel=sequence_parallel,
                overlap_grad_reduce=options.overlap_grad_reduce,
                framework=framework,
            )


def _experts(problem: Problem, tensor: int, stage: int) -> Iterator[tuple[int, int]]:
    """Expert and expert-tensor degrees that divide a stage of `stage` devices."""
    options, model = problem.options, problem.model
    if legal_expert_parallel(model) == [1] or problem.framework == "deepspeed":
        slices = tensor if _is_routed(model) else 1
        if options.expert_tensor_parallel in (None, slices):
            yield (1, slices)
        return
    legal = {1, tensor} & set(legal_expert_tensor_parallel(model))
    for expert_tensor in _chosen(options.expert_tensor_parallel, sorted(legal)):
        for expert in _chosen(options.expert_parallel, legal_expert_parallel(model)):
            if stage % (expert * expert_tensor) == 0:
                yield (expert, expert_tensor)


def _is_routed(model: Model) -> bool:
    return any(
        run.layer.feed_forward and run.layer.feed_forward.kind == "moe" for run in model.layers
    )


def _zero_stages(problem: Problem, tensor: int, ranks: int) -> list[int]:
    """Sharding over one rank is no sharding; ZeRO-2 and 3 run without a pipeline only."""
    if problem.options.zero_stage is not None:
        return [problem.options.zero_stage]
    if problem.framework == "megatron":
        # The distributed optimizer moves the same bytes and holds less: never worse.
        return [1 if ranks > 1 else 0]
    if ranks == 1:
        return [0]
    return [0, 1, 2, 3] if tensor == 1 else [0, 1, 2]


def recomputes(problem: Problem, pool: Pool) -> tuple[RecomputeChoice, ...]:
    """What stages on a pool may recompute, the most first.

    `selective` drops the attention core, which a fused kernel never stores.
    """
    if problem.options.recompute is not None:
        return (problem.options.recompute,)
    if kernel_of(pool.device_type, problem.workload.attention) == "unfused":
        return ("full", "selective", "none")
    return ("full", "none")
