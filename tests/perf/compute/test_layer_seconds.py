"""Seconds of layers: never faster than the data sheet, monotone, and recomputation's price."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.catalog.hardware import find_gpu
from hetcli.errors import ConfigurationError
from hetcli.perf.compute import head_time, kernel_of, layer_time
from hetcli.perf.compute.measured import MeasuredLayers, MeasuredPoint
from hetcli.perf.configuration import Shape
from hetcli.perf.flops import layer_forward_flops
from hetcli.perf.hardware import DeviceType
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
)

CARDS = ("V100-SXM2-32GB", "T4", "A100-SXM4-80GB", "RTX-4090", "H100-SXM5-80GB", "B200", "MI300X")


def device(name: str, **more: object) -> DeviceType:
    gpu = find_gpu(name)
    return DeviceType(gpu.name, gpu, gpu.memory_bytes, gpu.origin, **more)  # type: ignore[arg-type]


def model(hidden: int = 4096, heads: int = 32) -> Model:
    layer = Layer(
        attention=GroupedQueryAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        feed_forward=DenseFeedForward(size=4 * hidden, gated=False),
    )
    return Model(
        name="m",
        architecture="m",
        hidden_size=hidden,
        vocab_size=50304,
        max_sequence=8192,
        layers=(LayerRun(count=1, layer=layer),),
    )


def shape(kind: DeviceType, **more: object) -> Shape:
    settled = Shape(
        sequence=2048, micro_batch_size=2, precision="fp16", kernel=kernel_of(kind, "auto")
    )
    return replace(settled, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CARDS)
def test_no_layer_beats_the_data_sheet(name: str) -> None:
    kind, made = device(name), model()
    asked = shape(kind)
    layer = made.layers[0].layer
    time = layer_time(layer, made, asked, kind)
    # A fused kernel leaves out the masked half of the scores.
    flops = asked.micro_batch_size * layer_forward_flops(layer, made, asked.sequence)
    scores = asked.micro_batch_size * 4 * asked.sequence**2 * made.hidden_size
    least = (flops - scores / 2) / kind.gpu.peak_flops["fp16"]
    assert time.forward_s > least
    assert time.backward_s > 2 * least
    assert time.forward_s < 10 * least


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(CARDS), sequence=st.sampled_from([512, 1024, 4096]))
def test_more_tokens_take_longer_and_more_ranks_less(name: str, sequence: int) -> None:
    kind, made = device(name), model()
    layer = made.layers[0].layer

    def forward(**more: object) -> float:
        return layer_time(layer, made, shape(kind, sequence=sequence, **more), kind).forward_s

    assert forward(micro_batch_size=8) > forward(micro_batch_size=4)
    assert forward(micro_batch_size=8, tensor_parallel=2) < forward(micro_batch_size=8)
    # Splitting never gives more than its share: launches and small products remain.
    assert forward(micro_batch_size=8, tensor_parallel=2) > forward(micro_batch_size=8) / 2 * 0.999


@pytest.mark.parametrize("name", CARDS)
def test_full_recomputation_is_one_more_forward_pass(name: str) -> None:
    kind, made = device(name), model()
    layer = made.layers[0].layer
    none, selective, full = (
        layer_time(layer, made, shape(kind, recompute=kept), kind)
        for kept in ("none", "selective", "full")
    )
    assert none.forward_s == selective.forward_s == full.forward_s
    assert full.backward_s - none.backward_s == pytest.approx(none.forward_s)
    assert selective.backward_s - none.backward_s == pytest.approx(none.core_forward_s)


def test_a_slow_device_is_slower_by_what_was_found() -> None:
    well, sick = device("A100-SXM4-80GB"), device("A100-SXM4-80GB", slowdown=1.5)
    made = model()
    layer = made.layers[0].layer
    ratio = (
        layer_time(layer, made, shape(sick), sick).forward_s
        / layer_time(layer, made, shape(well), well).forward_s
    )
    assert ratio == pytest.approx(1.5)


def test_a_measured_table_is_believed_inside_and_scaled_outside() -> None:
    points = [MeasuredPoint(2048, size, 1e-3 * size, 2e-3 * size) for size in (1, 4)]
    table = MeasuredLayers({("layer", 1, "fp16"): points})
    kind, made = device("A100-SXM4-80GB", measured=table), model()
    layer = made.layers[0].layer
    inside = layer_time(layer, made, shape(kind), kind)
    assert (inside.forward_s, inside.backward_s) == pytest.approx((2e-3, 4e-3))
    assert inside.origin is Origin.MEASURED
    outside = layer_time(layer, made, shape(kind, micro_batch_size=8), kind)
    assert outside.origin is Origin.ASSUMED
    assert outside.forward_s == pytest.approx(8e-3, rel=0.2)


def test_the_head_grows_with_the_vocabulary() -> None:
    kind, made = device("H100-SXM5-80GB"), model()
    wide = made.model_copy(update={"vocab_size": 4 * made.vocab_size})
    few, many = (head_time(each, shape(kind), kind).forward_s for each in (made, wide))
    assert 3 < many / few < 4.5


def test_a_kernel_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="flash attention on T4"):
        kernel_of(device("T4"), "flash")
