"""Tiny models, clusters of made-up devices, and plans over them, small enough for one machine."""

from __future__ import annotations

from collections.abc import Sequence
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
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.search.document import plan_document
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
    Positions,
)
from hetcli.spec.plan import Certificate, Plan, PlanDevice
from hetcli.spec.workload import Pretrain

SEQUENCE = 16
DENSE = Layer(
    attention=GroupedQueryAttention(heads=4, kv_heads=4, head_dim=8),
    feed_forward=DenseFeedForward(size=64),
)
GROUPED = Layer(
    attention=GroupedQueryAttention(
        heads=4, kv_heads=2, head_dim=8, qkv_bias=True, output_bias=True, query_key_norm="head"
    ),
    feed_forward=DenseFeedForward(size=64, gated=False, bias=True, activation="gelu"),
)
LATENT = Layer(
    attention=LatentAttention(
        heads=4,
        query_rank=12,
        kv_rank=8,
        head_dim_without_rope=8,
        head_dim_rope=4,
        value_head_dim=8,
    ),
    feed_forward=DenseFeedForward(size=64),
)
EXPERTS = Layer(
    attention=GroupedQueryAttention(heads=4, kv_heads=4, head_dim=8),
    feed_forward=MoeFeedForward(experts=4, top_k=2, expert_size=32, shared_size=16),
)


def model(layers: int = 4, layer: Layer = DENSE, **more: Any) -> Model:
    return Model(
        name="tiny",
        architecture="llama",
        hidden_size=32,
        vocab_size=64,
        max_sequence=SEQUENCE,
        layers=(LayerRun(count=layers, layer=layer),),
        positions=more.pop("positions", Positions(kind="rope")),
        **more,
    )


def cluster(nodes: int = 1, devices: int = 4) -> Cluster:
    gpu = {"name": "made-up", "memory": "8GiB", "memory_rate": "10GB/s", "fp32_tflops": 0.01}
    group = {
        "name": "n",
        "count": nodes,
        "gpu": {**gpu, "flash_attention": False},
        "gpus": devices,
        "nics": [{"kind": "ethernet", "rate": "1Gbps"}],
    }
    if nodes == 1:
        group["name"] = "n0"
    return Cluster.model_validate({"name": "tiny", "nodes": [group]}, strict=False)


def devices(first: int, count: int, node: str = "n0") -> tuple[DeviceId, ...]:
    return tuple(DeviceId(node, index) for index in range(first, first + count))


def stage(
    layers: Sequence[tuple[int, int]],
    replicas: Sequence[tuple[tuple[DeviceId, ...], int]],
    *,
    tp: int = 1,
    size: int = 1,
    recompute: Recompute | None = None,
) -> Stage:
    """`layers` are (first, count) of each chunk; `replicas` (devices, micro-batches)."""
    return Stage(
        tuple(LayerRange(*each) for each in layers),
        tp,
        tuple(Replica(members, count, size) for members, count in replicas),
        recompute or Recompute(),
    )


def configuration(*pipelines: Sequence[Stage], batch: int, **more: Any) -> Configuration:
    return Configuration(
        pipelines=tuple(Pipeline(tuple(stages)) for stages in pipelines),
        micro_batch_size=more.pop("micro_batch_size", 1),
        global_batch=batch,
        sequence=SEQUENCE,
        precision="fp32",
        **more,
    )


def plan(
    given: Configuration, made: Model, where: Cluster | None = None, optimizer: Any = "adam"
) -> Plan:
    where = where or cluster()
    work = Pretrain(
        global_batch=given.global_batch,
        sequence=given.sequence,
        precision="fp32",
        optimizer=optimizer,
    )
    hardware = resolve(where)
    return plan_document(
        given,
        predict(given, model=made, workload=work, hardware=hardware),
        cluster=where,
        model=made,
        workload=work,
        hardware=hardware,
        target="free",
        certificate=Certificate(lower_bound_s=None, gap=None, reason="made by hand"),
        alternatives=(),
        space="given",
        seen=1,
        scored=1,
        pruned={},
        complete=True,
    )


def plan_devices(given: Configuration) -> tuple[PlanDevice, ...]:
    ordered = sorted(set(given.devices))
    return tuple(PlanDevice(node=each.node, index=each.index) for each in ordered)
