"""The latency that Zorse publishes for one machine of unlike cards, and what it is made of.

benson-guo/zorse (105c41a), example/training_config.json: 7,721 ms for 64 micro-batches of two
sequences, dealt out by speed. It is its planner's own estimate (grolar_optimizer/optimizer.py,
`calculate_pipeline_latency`), not a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hetcli.catalog.inputs import read_cluster
from hetcli.perf.compute import LayerTime, layer_time
from hetcli.perf.compute.measured import LayerKind, MeasuredLayers, MeasuredPoint
from hetcli.perf.configuration import (
    Configuration,
    LayerRange,
    Pipeline,
    Recompute,
    Replica,
    Shape,
    Stage,
)
from hetcli.perf.hardware import DeviceType, Hardware
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    Positions,
)
from hetcli.spec.workload import Pretrain

PUBLISHED_S = 7.721
LAYERS, SEQUENCE, MICRO_BATCH_SIZE = 22, 512, 2
# Its data/model_latencies.json: ms of a layer = slope x sequences + intercept, both passes.
FITS = {
    "L4": ((1.115, 0.213), (2.574, 2.877)),
    "RTX-A6000": ((0.692, 0.346), (1.556, 1.692)),
    "P40": ((11.147, 3.718), (25.257, 16.578)),
}
MICRO_BATCHES = {"L4": (18, 17), "RTX-A6000": (28,), "P40": (1,)}
LAYER = Layer(
    attention=GroupedQueryAttention(heads=32, kv_heads=32, head_dim=64),
    feed_forward=DenseFeedForward(size=5632),
)
MODEL = Model(
    name="deepspeedllama_tiny",
    architecture="published",
    hidden_size=2048,
    vocab_size=49152,
    max_sequence=SEQUENCE,
    layers=(LayerRun(count=LAYERS, layer=LAYER),),
    positions=Positions(kind="rope"),
)


def table(gpu: str) -> MeasuredLayers:
    """The fit of a card at one and at four sequences; the ends of the model are left out."""
    none = [MeasuredPoint(SEQUENCE, size, 0.0, 0.0) for size in (1, 4)]
    layers = [
        MeasuredPoint(SEQUENCE, size, *((slope * size + start) / 1e3 for slope, start in FITS[gpu]))
        for size in (1, 4)
    ]
    kinds: tuple[tuple[LayerKind, list[MeasuredPoint]], ...] = (
        ("layer", layers),
        ("embedding", none),
        ("head", none),
    )
    return MeasuredLayers({(kind, 1, "fp16"): points for kind, points in kinds})


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    """The sample cluster, whose cards have the published layer times."""
    found = resolve(read_cluster("sample:zorse-one-node"))
    kinds: dict[DeviceType, DeviceType] = {}
    for node in found.nodes:
        kind = node.device_type
        kinds.setdefault(kind, replace(kind, measured=table(kind.gpu.name)))
    nodes = tuple(replace(node, device_type=kinds[node.device_type]) for node in found.nodes)
    return replace(found, nodes=nodes)


@pytest.fixture(scope="module")
def times(hardware: Hardware) -> Mapping[str, LayerTime]:
    """One layer and micro-batch on each card, recomputed in the backward pass."""
    shape = Shape(SEQUENCE, MICRO_BATCH_SIZE, "fp16", "flash", recompute="full")
    return {
        node.device_type.gpu.name: layer_time(LAYER, MODEL, shape, node.device_type)
        for node in hardware.nodes
    }


def test_the_published_latency_comes_out(times: Mapping[str, LayerTime]) -> None:
    # The forward passes of all but one micro-batch and all backward passes, each of the card that
    # takes longest; before them one forward pass of the slowest card, after them one backward.
    dealt = [(times[gpu], count) for gpu, counts in MICRO_BATCHES.items() for count in counts]
    first = max(time.forward_s for time, _ in dealt)
    forward = max((count - 1) * time.forward_s for time, count in dealt)
    backward = max(count * time.backward_s for time, count in dealt)
    last = max(time.backward_s for time, _ in dealt)
    assert (first + forward + backward + last) * LAYERS == pytest.approx(PUBLISHED_S, rel=0.03)


def test_cards_that_work_at_the_same_time_need_less(
    hardware: Hardware, times: Mapping[str, LayerTime]
) -> None:
    replicas = [
        Replica((device,), count, MICRO_BATCH_SIZE)
        for node in hardware.nodes
        for device, count in zip(
            node.device_ids, MICRO_BATCHES[node.device_type.gpu.name], strict=True
        )
    ]
    stage = Stage((LayerRange(0, LAYERS),), 1, tuple(replicas), Recompute("full"))
    configuration = Configuration(
        pipelines=(Pipeline((stage,)),),
        micro_batch_size=MICRO_BATCH_SIZE,
        global_batch=128,
        sequence=SEQUENCE,
        precision="fp16",
        framework="fsdp",
        zero_stage=2,
    )
    workload = Pretrain(global_batch=128, sequence=SEQUENCE)
    step_s = predict(configuration, model=MODEL, workload=workload, hardware=hardware).step_time_s
    slowest = max(
        count * (times[gpu].forward_s + times[gpu].backward_s) * LAYERS
        for gpu, counts in MICRO_BATCHES.items()
        for count in counts
    )
    assert slowest < step_s < PUBLISHED_S
