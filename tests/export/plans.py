"""Plans made by hand: a small cluster and model, a split, and a made-up prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    Stage,
)
from hetcli.perf.prediction import Breakdown, DeviceMemory, MemoryItem, Prediction, StagePrediction
from hetcli.perf.resolve import resolve
from hetcli.search.document import plan_document
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
    Norm,
    Positions,
    Rotary,
)
from hetcli.spec.plan import Certificate, Plan, Target
from hetcli.spec.workload import Pretrain

GIB = 1024**3
NONE = Recompute()

LLAMA = Layer(
    attention=GroupedQueryAttention(heads=32, kv_heads=8, head_dim=128),
    feed_forward=DenseFeedForward(size=14336),
)
ROPE = Positions(kind="rope", rotary=Rotary(base=500000.0))


def group(name: str, gpu: str = "A100-SXM4-80GB", gpus: int = 8, **more: Any) -> dict[str, Any]:
    return {"name": name, "gpu": gpu, "gpus": gpus, **more}


def cluster(*groups: dict[str, Any], name: str = "test", **more: Any) -> Cluster:
    return Cluster.model_validate({"name": name, "nodes": list(groups), **more}, strict=False)


def llama(layers: int = 32, layer: Layer = LLAMA, **more: Any) -> Model:
    return Model(
        name=more.pop("name", "llama-3-8b"),
        architecture="llama",
        hidden_size=more.pop("hidden_size", 4096),
        vocab_size=more.pop("vocab_size", 128256),
        max_sequence=more.pop("max_sequence", 8192),
        layers=more.pop("runs", (LayerRun(count=layers, layer=layer),)),
        positions=more.pop("positions", ROPE),
        **more,
    )


def mixtral(layers: int = 32) -> Model:
    layer = Layer(
        attention=GroupedQueryAttention(heads=32, kv_heads=8, head_dim=128),
        feed_forward=MoeFeedForward(experts=8, top_k=2, expert_size=14336),
    )
    return llama(layers, layer, name="mixtral", vocab_size=32000)


def deepseek(dense: int = 3, sparse: int = 9, prediction_layers: int = 1) -> Model:
    attention = LatentAttention(
        heads=128,
        query_rank=1536,
        kv_rank=512,
        head_dim_without_rope=128,
        head_dim_rope=64,
        value_head_dim=128,
    )
    moe = MoeFeedForward(
        experts=256,
        top_k=8,
        expert_size=2048,
        shared_size=2048,
        expert_bias=True,
        score_function="sigmoid",
        routed_scaling=2.5,
        groups=8,
        top_groups=4,
    )
    return llama(
        name="deepseek-v3-shape",
        hidden_size=7168,
        runs=(
            LayerRun(
                count=dense,
                layer=Layer(attention=attention, feed_forward=DenseFeedForward(size=18432)),
            ),
            LayerRun(count=sparse, layer=Layer(attention=attention, feed_forward=moe)),
        ),
        prediction_layers=prediction_layers,
        positions=Positions(kind="rope", rotary=Rotary()),
    )


def gpt(layers: int = 20) -> Model:
    layer = Layer(
        attention=GroupedQueryAttention(
            heads=16, kv_heads=16, head_dim=128, qkv_bias=True, output_bias=True
        ),
        feed_forward=DenseFeedForward(size=8192, gated=False, bias=True, activation="gelu_tanh"),
    )
    return llama(
        layers,
        layer,
        name="gpt-20l",
        hidden_size=2048,
        vocab_size=50304,
        max_sequence=2048,
        norm=Norm(kind="layernorm", bias=True),
        tied_embeddings=True,
        positions=Positions(kind="learned", table_size=2048),
    )


def tiny(layers: int = 6, **more: Any) -> Model:
    """A model that a CPU trains in seconds."""
    layer = Layer(
        attention=GroupedQueryAttention(heads=4, kv_heads=2, head_dim=16),
        feed_forward=DenseFeedForward(size=128),
    )
    sizes = {"hidden_size": 64, "vocab_size": 96, "max_sequence": 64}
    return llama(layers, more.pop("layer", layer), name="tiny", **{**sizes, **more})


def make_plan(
    where: Cluster,
    model: Model,
    layers: Sequence[int | Sequence[int]],
    *,
    tensor: int = 1,
    data: int = 1,
    context: int = 1,
    micro_batches: int = 8,
    micro_batch_size: int = 1,
    sequence: int = 4096,
    target: Target = "megatron",
    recompute: Sequence[Recompute] | Recompute = NONE,
    order: str = "stages",
    peak: int = 10 * GIB,
    precision: Any = "bf16",
    tokens: int | None = None,
    **more: Any,
) -> Plan:
    """A plan that fills the cluster's devices in order, stage by stage (or replica by replica).

    An entry of `layers` is a stage: its layer count, or the counts of its chunks.
    """
    chunks = [[entry] if isinstance(entry, int) else list(entry) for entry in layers]
    hardware = resolve(where)
    pool = iter([device for node in hardware.nodes for device in node.device_ids])
    width = tensor * context
    members: dict[tuple[int, int], tuple[DeviceId, ...]] = {}
    slots = [(s, r) for s in range(len(chunks)) for r in range(data)]
    if order == "replicas":
        slots = [(s, r) for r in range(data) for s in range(len(chunks))]
    for slot in slots:
        members[slot] = tuple(islice(pool, width))
        assert len(members[slot]) == width, "the cluster has too few devices"
    ranges: list[list[LayerRange]] = [[] for _ in chunks]
    first = 0
    for turn in range(len(chunks[0])):
        for stage, counts in enumerate(chunks):
            ranges[stage].append(LayerRange(first, counts[turn]))
            first += counts[turn]
    each = [recompute] * len(chunks) if isinstance(recompute, Recompute) else list(recompute)
    stages = tuple(
        Stage(
            tuple(ranges[stage]),
            tensor,
            tuple(
                Replica(members[stage, replica], micro_batches, micro_batch_size)
                for replica in range(data)
            ),
            each[stage],
        )
        for stage in range(len(chunks))
    )
    configuration = Configuration(
        pipelines=(Pipeline(stages),),
        micro_batch_size=micro_batch_size,
        global_batch=micro_batches * micro_batch_size * data,
        sequence=sequence,
        precision=precision,
        framework="deepspeed" if target == "deepspeed" else "megatron",
        context_parallel=context,
        expert_tensor_parallel=more.pop("expert_tensor_parallel", 1),
        sequence_parallel=more.pop("sequence_parallel", tensor > 1 and target == "megatron"),
        schedule=more.pop("schedule", "interleaved" if len(chunks[0]) > 1 else "1f1b"),
        **more,
    )
    return document(configuration, where, model, target=target, peak=peak, tokens=tokens)


def uneven_plan(
    where: Cluster,
    model: Model,
    stages: Sequence[tuple[int, int, int, int]],
    *,
    micro_batches: int = 8,
    sequence: int = 4096,
    target: Target = "flagscale",
    recompute: Recompute = NONE,
    **more: Any,
) -> Plan:
    """A plan whose stages are (layers, tensor_parallel, data_parallel, micro_batch_size)."""
    pool = iter([device for node in resolve(where).nodes for device in node.device_ids])
    made, first = [], 0
    batch = micro_batches * stages[0][2] * stages[0][3]
    for layers, tensor, data, size in stages:
        count = batch // (data * size)
        replicas = [Replica(tuple(islice(pool, tensor)), count, size) for _ in range(data)]
        assert all(len(replica.devices) == tensor for replica in replicas), "too few devices"
        made.append(Stage((LayerRange(first, layers),), tensor, tuple(replicas), recompute))
        first += layers
    configuration = Configuration(
        pipelines=(Pipeline(tuple(made)),),
        micro_batch_size=stages[0][3],
        global_batch=batch,
        sequence=sequence,
        precision=more.pop("precision", "bf16"),
        **more,
    )
    return document(configuration, where, model, target=target)


def document(
    configuration: Configuration,
    where: Cluster,
    model: Model,
    *,
    target: Target = "megatron",
    peak: int = 10 * GIB,
    tokens: int | None = None,
) -> Plan:
    """plan.json of a configuration, every device at `peak` bytes and a step of two seconds."""
    hardware = resolve(where)
    memory = tuple(
        DeviceMemory(
            stage=number,
            replica=position,
            devices=replica.devices,
            items=(MemoryItem("weights", peak, Origin.ASSUMED),),
            capacity_bytes=80 * GIB,
        )
        for number, stage in enumerate(configuration.stages)
        for position, replica in enumerate(stage.replicas)
    )
    seconds = Breakdown(compute=2.0)
    return plan_document(
        configuration,
        Prediction(
            step_time_s=2.0,
            tokens_per_s=configuration.global_batch * configuration.sequence / 2.0,
            model_flops=1e15,
            mfu=0.4,
            cost_per_step=None,
            breakdown=seconds,
            stages=tuple(
                StagePrediction(n, 0.1, 0.2, 0.0, 2.0, 0.0, 0.0, seconds, Origin.ASSUMED)
                for n in range(len(configuration.stages))
            ),
            memory=memory,
            origin=Origin.ASSUMED,
        ),
        cluster=where,
        model=model,
        workload=Pretrain(
            global_batch=configuration.global_batch,
            sequence=configuration.sequence,
            tokens=tokens,
        ),
        hardware=hardware,
        target=target,
        certificate=Certificate(lower_bound_s=None, gap=None, reason="made by hand"),
        alternatives=(),
        space="given",
        seen=1,
        scored=1,
        pruned={},
        complete=True,
    )


def with_stage_tensor(plan: Plan, index: int, tensor: int) -> Plan:
    """The plan with a narrower tensor group, and fewer devices, in one stage."""
    stages = list(plan.stages)
    replicas = tuple(
        replica.model_copy(update={"devices": replica.devices[:tensor]})
        for replica in stages[index].replicas
    )
    devices = tuple(device for replica in replicas for device in replica.devices)
    stages[index] = stages[index].model_copy(
        update={"tensor_parallel": tensor, "replicas": replicas, "devices": devices}
    )
    return plan.model_copy(update={"stages": tuple(stages)})


__all__ = [
    "GIB",
    "cluster",
    "deepseek",
    "document",
    "gpt",
    "group",
    "llama",
    "make_plan",
    "mixtral",
    "replace",
    "tiny",
    "uneven_plan",
    "with_stage_tensor",
]
