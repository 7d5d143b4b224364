"""Fitted curves give back the times they were made of, also through the performance model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from hetcli.catalog.hardware import find_gpu
from hetcli.perf.compute.operations import Matmul
from hetcli.perf.compute.rates import Rates
from hetcli.perf.configuration import Shape
from hetcli.perf.fitting.compute import fit_layers, fit_matmul, fit_memory
from hetcli.perf.fitting.hardware import fit_profiles, with_fitted
from hetcli.perf.resolve import resolve
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster
from hetcli.spec.hardware import HardwareFile, LinkRates
from hetcli.spec.profile import (
    ComputeDtype,
    DeviceInventory,
    Host,
    LayerMeasurement,
    MatmulMeasurement,
    MemoryBandwidthMeasurement,
    Profile,
    Spread,
)

NAME = "NVIDIA A100-SXM4-80GB"
A100 = find_gpu("A100-SXM4-80GB")
BF16 = Shape(sequence=1, micro_batch_size=1, precision="bf16", kernel="flash")


def spread(seconds: float) -> Spread:
    return Spread(median=seconds, p95=seconds, minimum=seconds, repeats=5)


def product_s(m: int, n: int, k: int) -> float:
    """A card of 250 TFLOP/s that hides all traffic but the result's, and launches in 5 us."""
    return 2 * m * n * k / 250e12 + 1e-12 * m * n + 5e-6


def products(dtype: ComputeDtype = "bf16", slower: float = 1.0) -> list[MatmulMeasurement]:
    shapes = itertools.product((512, 2048, 8192), (1024, 4096, 16384), (1024, 8192))
    return [
        MatmulMeasurement(
            device=0,
            dtype=dtype,
            m=m,
            n=n,
            k=k,
            seconds=spread(slower * product_s(m, n, k)),
            flop_per_s=2 * m * n * k / (slower * product_s(m, n, k)),
        )
        for m, n, k in shapes
    ]


def profile(
    node: str, matmul: Sequence[MatmulMeasurement] = (), device: str = NAME, copy: float = 1.6e12
) -> Profile:
    moved = 2**31
    return Profile(
        hetcli_version="0",
        created="now",
        complete=True,
        node=node,
        host=Host.model_construct(hostname=node, environment={}),
        devices=(
            DeviceInventory(
                index=0,
                name=device,
                uuid=None,
                pci_bus_id=None,
                memory_total_bytes=A100.memory_bytes,
                memory_free_bytes=A100.memory_bytes,
            ),
        ),
        matmul=tuple(matmul),
        memory_bandwidth=(
            MemoryBandwidthMeasurement(
                device=0, transferred_bytes=moved, seconds=spread(moved / copy), bytes_per_s=copy
            ),
        ),
    )


def test_the_law_behind_the_products_is_found() -> None:
    (rates,) = fit_matmul([profile("n0", products())])
    assert (rates.device, rates.dtype, rates.rows) == ("A100-SXM4-80GB", "bf16", 18)
    assert rates.flop_per_s == pytest.approx(250e12, rel=1e-3)
    assert rates.output_s == pytest.approx(1e-12, rel=1e-2)
    assert rates.launch_s == pytest.approx(5e-6, rel=1e-2)
    assert rates.residual == pytest.approx(0, abs=1e-4)


def test_the_distance_from_the_shipped_curve_is_that_of_the_times() -> None:
    (rates,) = fit_matmul([profile("n0", products())])
    device_type = resolve(cluster("n0")).nodes[0].device_type
    shipped = sorted(
        row.seconds.median / Rates(device_type, BF16).product_s(Matmul(row.m, row.n, row.k))
        for row in products()
    )
    assert rates.versus_shipped == pytest.approx((shipped[8] + shipped[9]) / 2)
    (twice,) = fit_matmul([profile("n0", products(slower=2.0))])
    assert twice.versus_shipped == pytest.approx(2 * rates.versus_shipped)


def test_a_device_outside_the_catalogue_has_no_shipped_curve() -> None:
    (rates,) = fit_matmul([profile("n0", products(), device="Own Card 9000")])
    assert (rates.device, rates.versus_shipped) == ("Own Card 9000", None)
    (memory,) = fit_memory([profile("n0", device="Own Card 9000")])
    assert memory.versus_datasheet is None


def test_few_shapes_share_one_term_for_their_operands() -> None:
    (rates,) = fit_matmul([profile("n0", products()[:4])])
    assert rates.left_s == rates.right_s == rates.output_s
    assert rates.residual is not None


def test_a_slow_device_does_not_speak_for_its_type() -> None:
    profiles = [
        profile("n0", products()),
        profile("n1", products(slower=3.0), copy=0.5e12),
    ]
    (rates,) = fit_matmul(profiles, slow=frozenset({("n1", 0)}))
    assert rates.flop_per_s == pytest.approx(250e12, rel=1e-3)
    (memory,) = fit_memory(profiles, slow=frozenset({("n1", 0)}))
    assert (memory.bytes_per_s, memory.rows) == (1.6e12, 1)


def test_layers_keep_the_median_over_devices() -> None:
    def layered(node: str, seconds: float) -> Profile:
        row = LayerMeasurement(
            device=0,
            model="llama-3-8b",
            dtype="bf16",
            hidden_size=4096,
            heads=32,
            tensor_parallel=2,
            micro_batch_size=1,
            sequence=4096,
            forward_s=spread(seconds),
            backward_s=spread(2 * seconds),
            peak_memory_bytes=10**9,
        )
        return profile(node).model_copy(update={"layers": (row,)})

    (times,) = fit_layers([layered("a", 1e-3), layered("b", 1.2e-3), layered("c", 9e-3)])
    assert (times.device, times.forward_s, times.backward_s, times.rows) == (
        "A100-SXM4-80GB",
        1.2e-3,
        2.4e-3,
        3,
    )


def cluster(*names: str) -> Cluster:
    groups = [{"name": name, "gpu": "A100-SXM4-80GB", "gpus": 1} for name in names]
    return Cluster.model_validate({"name": "c", "nodes": groups}, strict=False)


def test_the_model_computes_with_what_was_fitted() -> None:
    fitted = fit_profiles([profile("n0", products())], name="mine")
    hardware = with_fitted(resolve(cluster("n0")), fitted)
    kind = hardware.nodes[0].device_type
    for row in products():
        predicted = Rates(kind, BF16).product_s(Matmul(row.m, row.n, row.k))
        assert predicted == pytest.approx(row.seconds.median, rel=1e-3)
    assert kind.shares.matmul["bf16"].origin is Origin.FITTED
    assert kind.shares.streaming.value == pytest.approx(1.6e12 / A100.memory_bytes_per_s)
    # What was not measured stays as it is shipped.
    shipped = resolve(cluster("n0")).nodes[0].device_type.shares
    assert kind.shares.attention == shipped.attention
    assert kind.shares.matmul.get("fp8") == shipped.matmul.get("fp8")


def test_links_of_known_nodes_are_taken_over() -> None:
    def link(one: str, other: str, rate: float, residual: float = 0.0) -> LinkRates:
        return LinkRates(
            between=(one, other),
            latency_s=1e-5,
            bytes_per_s=rate,
            flow_bytes_per_s=rate / 2,
            curve=(),
            origin=Origin.FITTED,
            rows=8,
            residual=residual,
            source="test",
        )

    fitted = HardwareFile(
        name="c",
        hetcli_version="0",
        links=(link("n0", "n1", 7e9), link("n0", "n0", 99e9), link("n0", "gone", 1e9)),
    )
    hardware = with_fitted(resolve(cluster("n0", "n1")), fitted)
    n0, n1 = hardware.nodes
    assert hardware.between(n0, n1).bytes_per_s == 7e9
    assert hardware.between(n0, n1).origin is Origin.FITTED
    assert hardware.between(n0, n0).bytes_per_s == 99e9
    assert hardware.between(n1, n1) == resolve(cluster("n1")).nodes[0].intra
    assert set(hardware.pair_links) == {("n0", "n1")}


def test_links_of_a_machine_are_those_of_all_its_nodes() -> None:
    def link(one: str, other: str, rate: float) -> LinkRates:
        return LinkRates(
            between=(one, other),
            latency_s=1e-5,
            bytes_per_s=rate,
            origin=Origin.FITTED,
            rows=3,
            residual=0.0,
            source="test",
        )

    nodes = [
        {"name": "n[0-1]", "gpu": "RTX-3090", "gpus": 2, "use": [0]},
        {"name": "new-n[0-1]", "host": "n[0-1]", "gpu": "RTX-4090", "gpus": 2, "use": [1]},
    ]
    mixed = resolve(Cluster.model_validate({"name": "c", "nodes": nodes}, strict=False))
    links = (link("n0", "n1", 1e9), link("n0", "n0", 9e9))
    hardware = with_fitted(mixed, HardwareFile(name="c", hetcli_version="0", links=links))
    node = hardware.by_name
    for one, other in (("n0", "n1"), ("n0", "new-n1"), ("new-n0", "n1"), ("new-n0", "new-n1")):
        assert hardware.between(node[one], node[other]).bytes_per_s == 1e9
    assert hardware.between(node["n0"], node["new-n0"]).bytes_per_s == 9e9
    assert node["new-n0"].intra.bytes_per_s == 9e9
    # Of the other machine's inside nothing was measured.
    same = mixed.between(mixed.by_name["n1"], mixed.by_name["new-n1"])
    assert hardware.between(node["n1"], node["new-n1"]) == same


def test_a_latency_that_was_not_measured_stays_as_it_is_stated() -> None:
    def link(one: str, other: str) -> LinkRates:
        return LinkRates(
            between=(one, other),
            latency_s=None,
            bytes_per_s=7e9,
            origin=Origin.FITTED,
            rows=1,
            residual=None,
            source="test",
        )

    stated = resolve(cluster("n0", "n1"))
    fitted = HardwareFile(name="c", hetcli_version="0", links=(link("n0", "n1"), link("n0", "n0")))
    hardware = with_fitted(stated, fitted)
    for other in (0, 1):
        was = stated.between(stated.nodes[0], stated.nodes[other])
        now = hardware.between(hardware.nodes[0], hardware.nodes[other])
        assert (now.bytes_per_s, now.latency_s) == (7e9, was.latency_s)
        assert now.latency_s > 0


def test_nothing_measured_changes_nothing() -> None:
    hardware = resolve(cluster("n0"))
    same = with_fitted(hardware, HardwareFile(name="c", hetcli_version="0"))
    assert same.nodes[0].device_type is hardware.nodes[0].device_type
