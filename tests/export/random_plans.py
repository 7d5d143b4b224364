"""Random plans that a target can run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any

from hypothesis import strategies as st
from plans import cluster, document, group, llama, make_plan, uneven_plan
from random_models import TENSOR, models

from hetcli.catalog.hardware import find_gpu
from hetcli.catalog.presets import find_preset
from hetcli.perf.configuration import (
    Configuration,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    Stage,
)
from hetcli.perf.resolve import resolve
from hetcli.perf.rules import interleaving_is_legal, supports
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import Model, MoeFeedForward
from hetcli.spec.plan import Plan, Target

NVIDIA = ("H100-SXM5-80GB", "A100-SXM4-80GB", "RTX-4090", "V100-SXM2-32GB")
AMD = ("MI300X", "MI325X")
RECOMPUTE = (Recompute(), Recompute("selective"), Recompute("full"), Recompute("full", 2))
PRECISIONS = ("bf16", "fp16", "fp32", "fp8")


def feasible(target: str) -> st.SearchStrategy[Plan]:
    """Plans that `target` runs."""
    return {
        "megatron": even("megatron"),
        "deepspeed": st.one_of(even("deepspeed"), unequal_replicas()),
        "flagscale": uneven(),
        "torchtitan": titanic(),
        "generic": st.one_of(
            uneven(), even("megatron"), even("deepspeed"), unequal_replicas(), unlike_pipelines()
        ),
    }[target]


def parts_of(layers: int, parts: int) -> st.SearchStrategy[list[int]]:
    """`layers` in `parts` parts, none empty."""

    def cut(edges: list[int]) -> list[int]:
        return [stop - start for start, stop in pairwise([0, *sorted(edges), layers])]

    inner = st.integers(1, max(1, layers - 1))
    return st.lists(inner, min_size=parts - 1, max_size=parts - 1, unique=True).map(cut)


def has_experts(model: Model) -> bool:
    return any(isinstance(run.layer.feed_forward, MoeFeedForward) for run in model.layers)


@dataclass(frozen=True)
class Pool:
    """Nodes of one vendor: their sizes, and the precisions that all of them have."""

    where: Cluster
    counts: tuple[int, ...]
    precisions: tuple[str, ...]
    # Whether all have the attention that context parallelism needs.
    context: bool


@st.composite
def pools(draw: st.DrawFn, sizes: tuple[int, ...] = (2, 4, 8)) -> Pool:
    """One to four nodes of unlike kinds and sizes."""
    kinds = draw(st.sampled_from((NVIDIA, NVIDIA, NVIDIA, AMD)))
    counts = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=4))
    names = [draw(st.sampled_from(kinds)) for _ in counts]
    gpus = [find_gpu(name) for name in names]
    return Pool(
        cluster(
            *(
                group(f"node-{number}", name, gpus=count)
                for number, (name, count) in enumerate(zip(names, counts, strict=True))
            )
        ),
        tuple(counts),
        tuple(p for p in PRECISIONS if all(supports(gpu, p) for gpu in gpus)),  # type: ignore[arg-type]
        all(name != "V100-SXM2-32GB" for name in names),
    )


@dataclass(frozen=True)
class Grid:
    """Degrees that fill a pool, with tensor groups inside nodes."""

    tensor: int
    context: int
    stages: int
    data: int


@st.composite
def grids(draw: st.DrawFn, pool: Pool, *, context: bool) -> Grid:
    tensor = draw(st.sampled_from([t for t in TENSOR if all(n % t == 0 for n in pool.counts)]))
    groups = sum(pool.counts) // tensor
    wide = context and pool.context and groups % 2 == 0
    parallel = draw(st.sampled_from((1, 1, 2))) if wide else 1
    groups //= parallel
    stages = draw(st.sampled_from([p for p in range(1, 17) if groups % p == 0]))
    return Grid(tensor, parallel, stages, groups // stages)


@st.composite
def even(draw: st.DrawFn, target: Target) -> Plan:
    """A plan of the grid space."""
    pool = draw(pools())
    megatron = target == "megatron"
    grid = draw(grids(pool, context=megatron))
    stages = grid.stages
    turns = draw(st.sampled_from((1, 2, 3))) if megatron and stages > 1 else 1
    layers = draw(st.integers(max(2, stages * turns), 48))
    parts = draw(parts_of(layers, stages * turns))
    if stages * turns > 2 and draw(st.booleans()):
        parts[-2:] = [parts[-2] + parts[-1], 0]  # The last part is the head alone.
    model = draw(models(layers, adapters=not megatron))
    order = draw(st.sampled_from(("stages", "replicas"))) if megatron else "stages"
    micro_batches = draw(st.integers(1, 24))
    if turns > 1 and not interleaving_is_legal(stages, micro_batches):
        micro_batches = stages * draw(st.integers(1, 4))
    zero = draw(st.sampled_from((0, 1) if megatron or stages > 1 else (0, 1, 2, 3)))
    overlap = draw(st.booleans())
    offloads = ["none", "optimizer"] + ["optimizer+parameters"] * (zero == 3)
    precisions = pool.precisions if megatron else [p for p in pool.precisions if p != "fp8"]
    return make_plan(
        pool.where,
        model,
        [parts[stage::stages] for stage in range(stages)],
        tensor=grid.tensor,
        data=grid.data,
        context=grid.context,
        micro_batches=micro_batches,
        micro_batch_size=draw(st.sampled_from((1, 2, 3))),
        sequence=draw(st.sampled_from((1024, 4096))),
        target=target,
        order=order,
        recompute=draw(recomputes(pool, grid, order)) if megatron else draw(one_recompute()),
        precision=draw(st.sampled_from(precisions)),
        zero_stage=zero,
        overlap_grad_reduce=overlap,
        overlap_param_gather=megatron and overlap and zero == 1 and draw(st.booleans()),
        offload=draw(st.sampled_from(offloads)),
        sequence_parallel=megatron
        and grid.tensor > 1
        and (has_experts(model) or draw(st.booleans())),
        **draw(expert_mesh(model, grid, order, wide=megatron)),
    )


def one_recompute() -> st.SearchStrategy[Recompute]:
    return st.sampled_from(RECOMPUTE)


@st.composite
def recomputes(draw: st.DrawFn, pool: Pool, grid: Grid, order: str) -> Any:
    """One setting, or one for every stage where no node holds two stages."""
    each = sum(pool.counts) // grid.stages
    edges = {each * stage for stage in range(1, grid.stages)}
    if order == "stages" and edges <= set(accumulate(pool.counts)) and draw(st.booleans()):
        return [draw(one_recompute()) for _ in range(grid.stages)]
    return draw(one_recompute())


@st.composite
def expert_mesh(
    draw: st.DrawFn, model: Model, grid: Grid, order: str, *, wide: bool
) -> dict[str, int]:
    """Degrees of the experts that the devices of a stage can be cut into."""
    if not has_experts(model):
        return {}
    if not wide:
        return {"expert_tensor_parallel": grid.tensor}
    dense = grid.tensor * grid.context
    devices = dense * grid.data
    meshes = [
        (expert, tensor)
        for expert in (1, 2, 4, 8)
        for tensor in (1, 2, 4)
        if devices % (expert * tensor) == 0
        and (order == "stages" or grid.stages == 1 or expert * tensor == dense)
    ]
    expert, tensor = draw(st.sampled_from(meshes)) if meshes else (1, dense)
    return {"expert_parallel": expert, "expert_tensor_parallel": tensor}


@st.composite
def unequal_replicas(draw: st.DrawFn) -> Plan:
    """Replicas whose micro-batches have unlike sizes, without a pipeline."""
    pool = draw(pools())
    tensor = draw(st.sampled_from([t for t in TENSOR if all(n % t == 0 for n in pool.counts)]))
    devices = iter([d for node in resolve(pool.where).nodes for d in node.device_ids])
    count = draw(st.integers(1, 4))
    replicas = tuple(
        Replica(tuple(islice(devices, tensor)), count, draw(st.integers(1, 4)))
        for _ in range(sum(pool.counts) // tensor)
    )
    layers = draw(st.integers(2, 48))
    model = draw(models(layers, adapters=True))
    stage = Stage((LayerRange(0, layers),), tensor, replicas, draw(one_recompute()))
    sizes = [replica.micro_batch_size for replica in replicas]
    configuration = Configuration(
        pipelines=(Pipeline((stage,)),),
        micro_batch_size=max(1, sum(sizes) // len(sizes)),
        global_batch=count * sum(sizes),
        sequence=4096,
        precision=draw(st.sampled_from([p for p in pool.precisions if p != "fp8"])),
        framework="deepspeed",
        zero_stage=draw(st.sampled_from((0, 1, 2, 3))),
        **draw(expert_mesh(model, Grid(tensor, 1, 1, len(replicas)), "stages", wide=False)),
    )
    return document(configuration, pool.where, model, target="deepspeed")


@st.composite
def uneven(draw: st.DrawFn) -> Plan:
    """One to four nodes of a stage or two each; nodes differ in tensor and data parallelism."""
    gpus = draw(st.lists(st.sampled_from(NVIDIA), min_size=1, max_size=4).map(sorted))
    where = cluster(*(group(f"node-{number}", gpu) for number, gpu in enumerate(gpus)))
    sequences = 8 * draw(st.integers(1, 2))
    shapes = []
    for _ in gpus:
        tensor, stages = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2)))
        data = 8 // stages // tensor
        shapes += [(tensor, data, sequences // data)] * stages
    layers = draw(st.integers(max(2, len(shapes)), 48))
    counts = draw(parts_of(layers, len(shapes)))
    model = draw(models(layers))
    if shapes[0][0] != shapes[-1][0]:
        model = model.model_copy(update={"tied_embeddings": False})
    experts = has_experts(model)
    replicas = min(data for _, data, _ in shapes)
    precisions = [p for p in PRECISIONS if all(supports(find_gpu(g), p) for g in gpus)]  # type: ignore[arg-type]
    zero = draw(st.sampled_from((0, 1)))
    return uneven_plan(
        where,
        model,
        [(count, *shape) for count, shape in zip(counts, shapes, strict=True)],
        micro_batches=draw(st.integers(1, 24)),
        precision=draw(st.sampled_from(precisions)),
        recompute=draw(one_recompute()),
        zero_stage=zero,
        overlap_param_gather=zero == 1,
        offload=draw(st.sampled_from(("none", "optimizer"))),
        sequence_parallel=experts or draw(st.booleans()),
        expert_parallel=draw(st.sampled_from([e for e in (1, 2, 4, 8) if replicas % e == 0]))
        if experts
        else 1,
    )


@st.composite
def unlike_pipelines(draw: st.DrawFn) -> Plan:
    """Two pipelines whose stages and tensor groups have nothing in common."""
    where = cluster(group("a", "H100-SXM5-80GB"), group("b", "A100-SXM4-80GB", gpus=4))
    layers = draw(st.integers(8, 48))
    pipelines, batch = [], 0
    for node in resolve(where).nodes:
        devices = iter(node.device_ids)
        tensor = draw(st.sampled_from((1, 2, 4)))
        depth = len(node.devices) // tensor
        count, size = draw(st.integers(1, 8)), draw(st.integers(1, 3))
        counts = draw(parts_of(layers, depth))
        firsts = [0, *accumulate(counts)]
        pipelines.append(
            Pipeline(
                tuple(
                    Stage(
                        (LayerRange(first, part),),
                        tensor,
                        (Replica(tuple(islice(devices, tensor)), count, size),),
                        draw(one_recompute()),
                    )
                    for first, part in zip(firsts, counts, strict=False)
                )
            )
        )
        batch += count * size
    configuration = Configuration(
        pipelines=tuple(pipelines),
        micro_batch_size=1,
        global_batch=batch,
        sequence=4096,
        precision="bf16",
        zero_stage=0,
    )
    return document(configuration, where, llama(layers), target="free")


@st.composite
def titanic(draw: st.DrawFn) -> Plan:
    """A plan of a model that torchtitan has, in one mesh."""
    pool = draw(pools((4, 8)))
    grid = draw(grids(pool, context=True))
    stages = grid.stages
    turns = draw(st.sampled_from((1, 2, 3))) if 1 < stages <= 8 else 1
    preset, layers = draw(st.sampled_from((("llama-3.1-8b", 32), ("llama-3.1-70b", 80))))
    parts = draw(parts_of(layers, stages * turns))
    rounds = draw(st.integers(1, 4))
    precisions = [p for p in pool.precisions if p in ("bf16", "fp32")]
    return make_plan(
        pool.where,
        find_preset(preset),
        [parts[stage::stages] for stage in range(stages)],
        tensor=grid.tensor,
        data=grid.data,
        context=grid.context,
        micro_batches=rounds * stages if turns > 1 else stages + draw(st.integers(0, 20)),
        micro_batch_size=draw(st.sampled_from((1, 2, 3))),
        sequence=draw(st.sampled_from((1024, 8192))),
        recompute=draw(st.sampled_from((Recompute(), Recompute("full")))),
        precision=draw(st.sampled_from(precisions)),
        zero_stage=draw(st.sampled_from((0, 1, 2, 3))),
        sequence_parallel=grid.tensor > 1 and draw(st.booleans()),
    )
