"""Configurations on one kind of card, made from a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hetcli.catalog.hardware import find_gpu
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    Stage,
)
from hetcli.perf.hardware import DeviceType, Hardware, LinkCurve, Node
from hetcli.perf.memory import allocated_bytes, stage_memory
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    Norm,
    Positions,
)


def hardware(gpu: str = "A100-SXM4-80GB") -> Hardware:
    card = find_gpu(gpu)
    kind = DeviceType(card.name, card, card.memory_bytes, card.origin)
    link = LinkCurve("link", 1e-6, 1e11, Origin.ASSUMED)
    node = Node("n", "n", kind, (0,), link, link, "ib", 1, "f", "z", "r", "nvidia")
    return Hardware("one", (node,))


def gpt(
    layers: int = 8,
    hidden: int = 1024,
    heads: int = 16,
    *,
    vocab: int = 50257,
    sequence: int = 2048,
    tied: bool = True,
) -> Model:
    """A GPT: multi-head attention, four times as wide feed-forward, LayerNorm, dropout."""
    layer = Layer(
        attention=GroupedQueryAttention(
            heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, output_bias=True
        ),
        feed_forward=DenseFeedForward(size=4 * hidden, gated=False, bias=True, activation="gelu"),
    )
    return Model(
        name="gpt",
        architecture="gpt",
        hidden_size=hidden,
        vocab_size=vocab,
        max_sequence=sequence,
        layers=(LayerRun(count=layers, layer=layer),),
        norm=Norm(kind="layernorm", bias=True),
        tied_embeddings=tied,
        positions=Positions(kind="learned", table_size=sequence),
    )


def llama(
    layers: int,
    hidden: int,
    heads: int,
    feed_forward: int,
    *,
    vocab: int,
    kv_heads: int | None = None,
    sequence: int = 4096,
) -> Model:
    """RMSNorm, gated feed-forward, grouped queries, no dropout, untied."""
    layer = Layer(
        attention=GroupedQueryAttention(
            heads=heads, kv_heads=kv_heads or heads, head_dim=hidden // heads
        ),
        feed_forward=DenseFeedForward(size=feed_forward),
    )
    return Model(
        name="llama",
        architecture="llama",
        hidden_size=hidden,
        vocab_size=vocab,
        max_sequence=sequence,
        layers=(LayerRun(count=layers, layer=layer),),
    )


def configuration(
    split: Sequence[int] | Sequence[Sequence[int]],
    *,
    tensor: int = 1,
    data: int = 1,
    micro_batch: int = 1,
    micro_batches: int = 8,
    sequence: int = 2048,
    precision: str = "bf16",
    recompute: Recompute | None = None,
    **options: Any,
) -> Configuration:
    """`split` are the layers of every stage, or of every chunk of every stage."""
    chunks = [[each] if isinstance(each, int) else list(each) for each in split]
    ranges: list[list[LayerRange]] = [[] for _ in chunks]
    first = 0
    for chunk in range(len(chunks[0])):
        for stage, counts in enumerate(chunks):
            ranges[stage].append(LayerRange(first, counts[chunk]))
            first += counts[chunk]
    device = DeviceId("n", 0)
    replica = Replica(
        (device,) * (tensor * options.get("context_parallel", 1)), micro_batches, micro_batch
    )
    stages = tuple(
        Stage(tuple(each), tensor, (replica,) * data, recompute or Recompute()) for each in ranges
    )
    if "schedule" not in options and len(chunks[0]) > 1:
        options["schedule"] = "interleaved"
    return Configuration(
        (Pipeline(stages),),
        micro_batch_size=micro_batch,
        global_batch=micro_batch * micro_batches * data,
        sequence=sequence,
        precision=precision,  # type: ignore[arg-type]
        **options,
    )


class Build:
    """What the tests of a directory share, without a module to import."""

    hardware = staticmethod(hardware)
    gpt = staticmethod(gpt)
    llama = staticmethod(llama)
    configuration = staticmethod(configuration)

    @staticmethod
    def items(
        model: Model, configuration: Configuration, stage: int = 0, gpu: str = "A100-SXM4-80GB"
    ) -> dict[str, int]:
        found = stage_memory(configuration, model, hardware(gpu), 0, stage, 0)
        return {item.name: item.nbytes for item in found}

    @staticmethod
    def allocated(
        model: Model, configuration: Configuration, stage: int = 0, gpu: str = "A100-SXM4-80GB"
    ) -> int:
        return allocated_bytes(configuration, model, hardware(gpu), 0, stage, 0)


@pytest.fixture(scope="session")
def build() -> Build:
    return Build()
