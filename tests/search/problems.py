"""Small random planning problems: clusters of unlike nodes, models of unlike layers, batches."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from hetcli.catalog.inputs import read_model
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
)
from hetcli.spec.workload import Pretrain

GPUS = (
    "A100-SXM4-80GB",
    "V100-SXM2-16GB",
    "H100-SXM5-80GB",
    "RTX-3090",
    "T4",
    "MI300X",
)
# Presets that small clusters hold, and one that they do not.
PRESETS = ("gpt2", "qwen2.5-1.5b", "llama-3.2-1b", "llama-2-7b")


@dataclass(frozen=True)
class Question:
    """What a plan is asked for."""

    cluster: Cluster
    model: Model
    workload: Pretrain

    def __str__(self) -> str:
        return f"{self.cluster.name} {self.model.name} {self.workload.global_batch}"


@st.composite
def clusters(draw: st.DrawFn, groups: int = 4, nodes: int = 2, devices: int = 6) -> Cluster:
    """Up to `groups` groups of equal nodes, some devices left out, down or slow."""
    found: list[dict[str, object]] = []
    health: list[dict[str, object]] = []
    for index in range(draw(st.integers(1, groups))):
        count = draw(st.integers(1, nodes))
        size = draw(st.integers(1, devices))
        group: dict[str, object] = {
            "name": f"g{index}-[0-{count - 1}]" if count > 1 else f"g{index}",
            "gpu": draw(st.sampled_from(GPUS)),
            "gpus": size,
        }
        if draw(st.booleans()):
            kind = draw(st.sampled_from(["infiniband", "ethernet", "roce"]))
            rate = draw(st.sampled_from(["10Gbps", "100Gbps", "400Gbps"]))
            group["nics"] = ({"kind": kind, "rate": rate, "count": draw(st.integers(1, 2))},)
        if draw(st.booleans()):
            group["price_per_hour"] = draw(st.integers(1, 9)) / 2
        if draw(st.integers(0, 3)) == 0:
            chosen = draw(st.sets(st.integers(0, size - 1), min_size=1))
            group["use"] = tuple(sorted(chosen))
        if draw(st.integers(0, 3)) == 0:
            node = f"g{index}-{draw(st.integers(0, count - 1))}" if count > 1 else f"g{index}"
            one = (draw(st.integers(0, size - 1)),) if draw(st.booleans()) else None
            entry: dict[str, object] = {"node": node, "devices": one, "state": "down"}
            if draw(st.booleans()):
                entry |= {"state": "slow", "slowdown": draw(st.sampled_from([1.2, 2.0]))}
            health.append(entry)
        found.append(group)
    return Cluster.model_validate(
        {"name": "random", "nodes": tuple(found), "health": tuple(health)}
    )


@st.composite
def small_models(draw: st.DrawFn, layers: int = 12) -> Model:
    """Dense and routed layers in up to two runs, tied or untied."""
    heads = draw(st.sampled_from([4, 6, 8]))
    kv_heads = draw(st.sampled_from([n for n in (1, 2, 4, 6, 8) if heads % n == 0]))
    hidden = heads * 64 * draw(st.sampled_from([1, 4]))
    attention = GroupedQueryAttention(heads=heads, kv_heads=kv_heads, head_dim=hidden // heads)
    dense = Layer(attention=attention, feed_forward=DenseFeedForward(size=4 * hidden))
    routed = Layer(
        attention=attention,
        feed_forward=MoeFeedForward(
            experts=draw(st.sampled_from([4, 6, 8])),
            top_k=2,
            expert_size=2 * hidden,
            shared_size=draw(st.sampled_from([0, hidden])),
        ),
    )
    kinds = draw(st.sampled_from([(dense,), (routed,), (dense, routed), (routed, dense)]))
    total = draw(st.integers(len(kinds), layers))
    first = draw(st.integers(1, total - 1)) if len(kinds) == 2 else total
    counts = (first, total - first)
    return Model(
        name="random",
        architecture="llama",
        hidden_size=hidden,
        vocab_size=draw(st.sampled_from([1000, 32000, 151936])),
        max_sequence=4096,
        tied_embeddings=draw(st.booleans()),
        layers=tuple(
            LayerRun(count=count, layer=kind) for count, kind in zip(counts, kinds, strict=False)
        ),
    )


models = st.one_of(small_models(), st.sampled_from(PRESETS).map(read_model))


@st.composite
def workloads(draw: st.DrawFn) -> Pretrain:
    """Batches with few and with many divisors."""
    return Pretrain(
        global_batch=draw(st.sampled_from([1, 6, 7, 8, 24, 32, 60])),
        sequence=draw(st.sampled_from([512, 1024])),
        optimizer=draw(st.sampled_from(["adam", "sgd"])),
    )


questions = st.builds(Question, clusters(), models, workloads())
