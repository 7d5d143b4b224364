"""Plans that lose a device or a node, and how long planning again takes."""

from __future__ import annotations

import statistics
import time

from hetcli.adapt.changes import read_changes
from hetcli.adapt.replan import replan
from hetcli.api import estimate
from hetcli.search import EstimateRequest
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
)
from hetcli.spec.plan import Plan
from hetcli.spec.replan import Replan

__all__ = ["replan_figures"]

REPEATS = 5


def a100(nodes: int, gpus: int) -> Cluster:
    """Nodes of A100 on 200 Gbit/s InfiniBand."""
    group = {
        "name": f"n-[000-{nodes - 1:03d}]",
        "gpu": "A100-SXM4-80GB",
        "gpus": gpus,
        "nics": [{"kind": "infiniband", "rate": "200Gbps", "count": 4}],
    }
    return Cluster.model_validate({"name": "a100", "nodes": [group]}, strict=False)


def gpt(layers: int, hidden: int, heads: int) -> Model:
    """A GPT with full attention."""
    attention = GroupedQueryAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads)
    layer = Layer(
        attention=attention,
        feed_forward=DenseFeedForward(size=4 * hidden, gated=False, activation="gelu"),
    )
    return Model(
        name=f"gpt-{layers}l",
        architecture="gpt",
        hidden_size=hidden,
        vocab_size=50304,
        max_sequence=2048,
        layers=(LayerRun(count=layers, layer=layer),),
    )


def running(cluster: Cluster, model: Model, batch: int, **degrees: int) -> Plan:
    """A plan of given degrees, one sequence a micro-batch, for any runtime."""
    request = EstimateRequest(micro_batch_size=1, zero_stage=1, **degrees)  # type: ignore[arg-type]
    plan = estimate(cluster, model, global_batch=batch, sequence=2048, request=request)
    return plan.model_copy(update={"target": "free"})


def replan_figures() -> dict[str, object]:
    """ResiHP's example (three stages of four layers, the middle one loses a tensor rank), and the
    time to plan 1,024 GPUs again when a node is lost."""
    replicas = 2
    plan = running(
        a100(3, 2 * replicas),
        gpt(12, 2048, 16),
        12 * replicas,
        tensor_parallel=2,
        pipeline_parallel=3,
        data_parallel=replicas,
    )
    document, _ = replan(plan, read_changes(fail=["n-001:0"]))
    excluded = _option(document, "exclude from the tensor group")
    alternatives = [
        option.tokens_per_s
        for option in document.options
        if option.name in ("exclude from the tensor group", "drop the replica")
    ]
    large = running(
        a100(128, 8),
        gpt(32, 6144, 48),
        1024,
        tensor_parallel=8,
        pipeline_parallel=2,
        data_parallel=64,
    )
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        replan(large, read_changes(fail=["n-005"]))
        seconds.append(time.perf_counter() - begun)
    return {
        "layers": excluded,
        "gain": document.options[document.chosen].tokens_per_s / max(alternatives),
        "seconds": statistics.median(seconds),
    }


def _option(document: Replan, name: str) -> list[int]:
    """Layers of the pipeline that lost a device."""
    layers = next(option.layers for option in document.options if option.name == name)
    return list(layers[-1])
