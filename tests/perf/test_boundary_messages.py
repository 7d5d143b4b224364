"""What stages send each other: every replica what it works on, and back."""

from __future__ import annotations

import json

import pytest

from hetcli.perf.chains import chains, edge_bytes
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Replica,
    Stage,
)
from hetcli.perf.filling import pipeline_time
from hetcli.perf.hardware import Hardware
from hetcli.perf.resolve import resolve
from hetcli.perf.stage import Costs
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    Positions,
)

BATCH = 32
SEQUENCE = 128
MODEL = Model(
    name="small",
    architecture="test",
    hidden_size=256,
    vocab_size=1024,
    max_sequence=SEQUENCE,
    layers=(
        LayerRun(
            count=6,
            layer=Layer(
                attention=GroupedQueryAttention(heads=4, kv_heads=4, head_dim=64),
                feed_forward=DenseFeedForward(size=1024),
            ),
        ),
    ),
    positions=Positions(kind="rope"),
)


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    """Twelve nodes of one card behind a slow network, so that messages have the node's own NIC."""
    nodes = [
        {
            "name": "n",
            "count": 12,
            "gpu": "V100-SXM2-16GB",
            "gpus": 1,
            "nics": [{"kind": "ethernet", "rate": "1Gb/s"}],
        }
    ]
    document = {"schema_version": 1, "name": "c", "nodes": nodes}
    return resolve(Cluster.model_validate_json(json.dumps(document)))


def sending_s(
    hardware: Hardware, *stages: tuple[int, int], sends_mask: bool = False
) -> tuple[tuple[float, ...], float]:
    """Seconds that a replica of each (replicas, micro-batch size) sends, and a sequence's share."""
    free = iter(hardware.nodes)
    found = [
        Stage(
            (LayerRange(2 * index, 2),),
            1,
            tuple(
                Replica((DeviceId(next(free).name, 0),), BATCH // (count * size), size)
                for _ in range(count)
            ),
        )
        for index, (count, size) in enumerate(stages)
    ]
    pipeline = Pipeline(tuple(found))
    configuration = Configuration(
        pipelines=(pipeline,),
        micro_batch_size=1,
        global_batch=BATCH,
        sequence=SEQUENCE,
        precision="fp16",
        sends_mask=sends_mask,
    )
    timed = pipeline_time(chains(configuration, pipeline, hardware, Costs(MODEL)), "1f1b")
    one = edge_bytes(configuration, MODEL, found[0], Replica((), 1, 1))
    return timed.sending_s, one / hardware.nodes[0].nic.bytes_per_s


@pytest.mark.parametrize(
    ("stages", "sequences"),
    [
        # Sequences that one replica sends on, and back.
        ([(4, 1), (4, 1)], (8, 8)),
        ([(4, 1), (2, 1)], (8, 16)),
        ([(2, 1), (4, 1)], (16, 8)),
        ([(4, 1), (2, 2)], (8, 16)),
        ([(4, 1), (4, 1), (2, 1)], (8, 8 + 8, 16)),
        ([(4, 1), (2, 1), (4, 1)], (8, 16 + 16, 8)),
    ],
)
def test_a_replica_sends_each_of_its_micro_batches_once(
    hardware: Hardware, stages: list[tuple[int, int]], sequences: tuple[int, ...]
) -> None:
    found, each = sending_s(hardware, *stages)
    latencies = 32 * hardware.nodes[0].nic.latency_s
    for seconds, count in zip(found, sequences, strict=True):
        assert count * each < seconds <= count * each + latencies


def test_a_mask_travels_with_activations_and_not_with_gradients(hardware: Hardware) -> None:
    # As many 16-bit numbers as SEQUENCE squared: SEQUENCE / hidden size of the activation.
    (ahead, back), _ = sending_s(hardware, (4, 1), (4, 1))
    (masked, unmasked), each = sending_s(hardware, (4, 1), (4, 1), sends_mask=True)
    assert masked - ahead == pytest.approx(8 * each * SEQUENCE / MODEL.hidden_size)
    assert unmasked == back
