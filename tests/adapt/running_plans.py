"""Plans that run until something happens to their devices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trial"))
from tiny import configuration, devices, plan, stage

from hetcli.perf.configuration import Configuration
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
)
from hetcli.spec.plan import Plan
from hetcli.spec.replan import Replan, ReplanOption

GROUP = 8


def gpt(layers: int = 32, hidden: int = 6144, heads: int = 48) -> Model:
    layer = Layer(
        attention=GroupedQueryAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
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


def a100(nodes: int, **more: Any) -> Cluster:
    group = {
        "name": "n",
        "count": nodes,
        "gpu": "A100-SXM4-80GB",
        "gpus": GROUP,
        "nics": [{"kind": "infiniband", "rate": "200Gbps", "count": 4}],
        **more,
    }
    return Cluster.model_validate({"name": "a100", "nodes": [group]}, strict=False)


def planned(
    given_: Configuration, made: Model, where: Cluster, target: str = "free", **more: Any
) -> Plan:
    return plan(given_, made, where, **more).model_copy(update={"target": target})


def resihp() -> Plan:
    """Three stages of four layers, each with two tensor ranks in a node of its own."""
    stages = [stage([(4 * at, 4)], [(devices(0, 2, f"n-{at}"), 12)], tp=2) for at in range(3)]
    made = gpt(12, 2048, 16)
    where = a100(3, gpus=2)
    return planned(configuration(stages, batch=12), made, where)


def option(document: Replan, name: str) -> ReplanOption:
    return next(each for each in document.options if each.name == name)


def lost_node() -> Plan:
    """dlrover issue 1135: tp 8, pp 4, dp 2 on eight nodes."""
    stages = [
        stage(
            [(8 * at, 8)],
            [(devices(0, 8, f"n-{2 * at}"), 16), (devices(0, 8, f"n-{2 * at + 1}"), 16)],
            tp=8,
        )
        for at in range(4)
    ]
    return planned(configuration(stages, batch=32), gpt(), a100(8), "megatron")
