"""Equal hardware with unequal results is found, named, and explained where the driver told why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from hetcli.perf.fitting.compute import fit_matmul
from hetcli.perf.fitting.links import fit_links
from hetcli.probe.health import examine, slow_places
from hetcli.probe.inventory import gpu_inventory
from hetcli.probe.nvml import open_nvml
from hetcli.probe.peers import typical
from hetcli.spec.finding import Finding
from hetcli.spec.profile import (
    DeviceInventory,
    Host,
    HostCopyMeasurement,
    LinkMeasurement,
    LoadObservation,
    MatmulMeasurement,
    NicInventory,
    Profile,
    Spread,
)

Recorded = Callable[..., Any]


def spread(seconds: float) -> Spread:
    return Spread(median=seconds, p95=seconds, minimum=seconds, repeats=5)


def device(index: int = 0, name: str = "NVIDIA A100-SXM4-80GB", **changes: Any) -> DeviceInventory:
    fields: dict[str, Any] = {
        "index": index,
        "name": name,
        "uuid": f"GPU-{index}",
        "pci_bus_id": None,
        "memory_total_bytes": 80 * 2**30,
        "memory_free_bytes": 79 * 2**30,
        "compute_capability": "8.0",
        "power_limit_w": 400.0,
    }
    return DeviceInventory(**{**fields, **changes})


def product(index: int, seconds: float, k: int = 1024) -> MatmulMeasurement:
    return MatmulMeasurement(
        device=index,
        dtype="bf16",
        m=1024,
        n=1024,
        k=k,
        seconds=spread(seconds),
        flop_per_s=2 * 1024**2 * k / seconds,
    )


def profile(
    node: str,
    devices: Sequence[DeviceInventory] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    vendor: str = "AMD",
    nics: Sequence[float] = (),
    **rows: Any,
) -> Profile:
    host = Host(
        hostname=node,
        cores=64,
        memory_bytes=2**40,
        cpu="EPYC",
        cpu_vendor=vendor,
        os="Linux",
        python="3.11",
        torch="2.5",
        driver="550",
        cuda="12.4",
        nccl="2.21",
        environment=environment or {},
    )
    return Profile(
        hetcli_version="0",
        created="now",
        complete=True,
        node=node,
        host=host,
        devices=tuple(devices) if devices is not None else (device(),),
        nics=tuple(
            NicInventory(
                interface=f"ib{place}",
                kind="infiniband",
                rate_bytes_per_s=rate,
                device=f"mlx5_{place}",
            )
            for place, rate in enumerate(nics)
        ),
        **rows,
    )


def link(one: str, other: str, rate: float, **changes: Any) -> LinkMeasurement:
    size = 2**26
    fields: dict[str, Any] = {
        "operation": "send_recv",
        "backend": "nccl",
        "scope": "inter_node",
        "nodes": (one, other),
        "ranks": 2,
        "message_bytes": size,
        "seconds": spread(size / rate),
        "algbw_bytes_per_s": rate,
        "busbw_bytes_per_s": rate,
        "verified": True,
    }
    return LinkMeasurement(**{**fields, **changes})


def found(profiles: Sequence[Profile], kind: str | None = None) -> list[Finding]:
    findings = examine(profiles, fit_links(profiles))
    return [finding for finding in findings if kind in {None, finding.kind}]


def test_the_typical_member_is_a_healthy_one() -> None:
    assert typical([1.0, 1.1, 1.2, 9.0, 9.0]) == 1.1
    assert typical([1.0, 3.0]) == 1.0
    assert typical([2.0]) == 2.0


def test_equal_results_give_no_finding() -> None:
    profiles = [
        profile("n0", matmul=(product(0, 1.0),)),
        profile("n1", matmul=(product(0, 1.14),)),  # published repeats differ by as much
    ]
    assert found(profiles) == []


def test_a_slow_card_is_named_with_its_factor() -> None:
    profiles = [
        profile(f"n{i}", matmul=(product(0, s), product(0, 2 * s, k=2048)))
        for i, s in enumerate((1.0, 1.02, 1.6, 0.99))
    ]
    (finding,) = found(profiles)
    assert (finding.kind, finding.nodes, finding.devices) == ("slow device", ("n2",), (0,))
    assert finding.factor == pytest.approx(1.6, rel=0.02)
    assert "no reason is known" in finding.cause
    assert slow_places([finding]) == {("n2", 0)}


def test_unlike_cards_are_not_compared() -> None:
    slow = device(0, "Tesla V100-SXM2-32GB")
    profiles = [
        profile("n0", matmul=(product(0, 1.0),)),
        profile("n1", [slow], matmul=(product(0, 4.0),)),
    ]
    assert found(profiles, "slow device") == []


@pytest.mark.parametrize(
    ("changes", "load", "cause"),
    [
        ({}, {"throttling": ("thermal (hardware)",), "temperature_c": 92.0}, "at 92 °C"),
        ({"power_limit_w": 250.0}, {}, "its power limit is 250 W, its peers' 400 W"),
        ({}, {"clock_sm_hz": 1.095e9}, "it ran at 1095 MHz, its peers at up to 1410 MHz"),
        ({"pcie_width": 4, "pcie_width_max": 16}, {}, "PCIe trained to x4 of x16"),
        ({"utilization": 0.97}, {}, "something else used it (97% busy)"),
    ],
)
def test_the_cause_is_what_the_driver_said(
    changes: dict[str, Any], load: dict[str, Any], cause: str
) -> None:
    def loaded(**look: Any) -> tuple[LoadObservation, ...]:
        return (LoadObservation(device=0, during="matmul", **{"clock_sm_hz": 1.41e9, **look}),)

    profiles = [
        profile("n0", matmul=(product(0, 1.0),), under_load=loaded()),
        profile("n1", [device(0, **changes)], matmul=(product(0, 2.0),), under_load=loaded(**load)),
    ]
    (finding,) = found(profiles, "slow device")
    assert finding.nodes == ("n1",)
    assert cause in finding.cause


def test_a_card_in_a_narrow_slot_is_found_without_measuring(recorded: Recorded) -> None:
    with open_nvml(recorded("downtrained")) as nvml:
        devices = gpu_inventory(nvml)
    (finding,) = found([profile("n0", devices)])
    assert (finding.kind, finding.devices, finding.factor) == ("downtrained", (0,), 4.0)


def test_a_slow_host_link_is_apart_from_slow_arithmetic() -> None:
    def copied(node: str, seconds: float) -> Profile:
        row = HostCopyMeasurement(
            device=0,
            direction="to_device",
            transferred_bytes=2**28,
            seconds=spread(seconds),
            bytes_per_s=2**28 / seconds,
        )
        return profile(node, host_copy=(row,), matmul=(product(0, 1.0),))

    (finding,) = found([copied("n0", 0.01), copied("n1", 0.04)])
    assert (finding.kind, finding.nodes, finding.factor) == ("slow host link", ("n1",), 4.0)
    assert slow_places([finding]) == frozenset()


def four(rates: Mapping[tuple[str, str], float]) -> list[Profile]:
    return [
        profile(node, links=tuple(link(*p, rate) for p, rate in rates.items() if p[0] == node))
        for node in ("n0", "n1", "n2", "n3")
    ]


def test_a_node_whose_links_are_all_slow_is_named() -> None:
    names = ["n0", "n1", "n2", "n3"]
    rates = {
        (one, other): 6e9 if "n2" in (one, other) else 12e9
        for one in names
        for other in names
        if one < other
    }
    (finding,) = found(four(rates))
    assert (finding.kind, finding.nodes, finding.factor) == ("slow node link", ("n2",), 2.0)
    assert "6 GB/s at most, those of its peers 12 GB/s" in finding.what


def test_one_slow_path_between_good_nodes_is_a_pair() -> None:
    names = ["n0", "n1", "n2", "n3"]
    rates = {(one, other): 12e9 for one in names for other in names if one < other}
    rates["n1", "n3"] = 4e9
    (finding,) = found(four(rates))
    assert (finding.kind, finding.nodes, finding.factor) == ("slow pair", ("n1", "n3"), 3.0)


def test_the_outlier_of_two_pairs_is_the_pair_itself() -> None:
    # Case bandwidth-outlier-pair (https://github.com/NVIDIA/nccl-tests/issues/106): 80 GB/s between
    # two nodes, 40 between two others; never an average of 60.
    (finding,) = found(four({("n0", "n1"): 80e9, ("n2", "n3"): 40e9}))
    assert (finding.kind, finding.nodes, finding.factor) == ("slow pair", ("n2", "n3"), 2.0)


def test_unlike_directions_are_told() -> None:
    profiles = [
        profile("a", links=(link("a", "b", 12e9),)),
        profile("b", links=(link("b", "a", 4e9),)),
    ]
    (finding,) = found(profiles)
    assert (finding.kind, finding.nodes, finding.factor) == ("unlike directions", ("a", "b"), 3.0)
    assert "12 GB/s from a to b, 4 GB/s back" in finding.what


def slow_network(environment: Mapping[str, str], nics: Sequence[float], rate: float) -> Finding:
    measured = (link("n0", "n1", rate, operation="all_reduce", ranks=16),)
    # 16 ranks reduce at a bus bandwidth of `rate`.
    seconds = spread(2 * 15 / 16 * measured[0].message_bytes / rate)
    rows = (measured[0].model_copy(update={"seconds": seconds}),)
    eight = [device(index) for index in range(8)]
    profiles = [
        profile("n0", eight, environment=environment, nics=nics, links=rows),
        profile("n1", eight, environment=environment, nics=nics),
    ]
    findings = found(profiles, "below nominal")
    assert [finding.nodes for finding in findings] == [("n0",), ("n1",)]
    return findings[0]


def test_the_variable_that_names_one_of_four_interfaces_is_the_limit() -> None:
    # Case nccl-one-of-four-nics (https://github.com/NVIDIA/nccl/issues/700): 9.84 GB/s between
    # nodes with four 200 Gb/s interfaces.
    finding = slow_network({"NCCL_IB_HCA": "mlx5_0"}, [25e9] * 4, 9.84e9)
    assert "39% of one interface (25 GB/s), 9.8% of all 4 (100 GB/s)" in finding.what
    assert finding.cause == "NCCL_IB_HCA=mlx5_0 names 1 of 4 interfaces"


@pytest.mark.parametrize(
    ("environment", "nics", "rate", "cause"),
    [
        ({"NCCL_IB_DISABLE": "1"}, [25e9], 3e9, "NCCL_IB_DISABLE=1"),
        ({}, [25e9] * 4, 24e9, "as if one interface of 4 were used"),
        ({}, [25e9], 3e9, "sockets were used instead of RDMA"),
        ({"NCCL_IB_HCA": "^mlx5_3"}, [25e9] * 4, 24e9, "as if one interface of 4 were used"),
    ],
)
def test_other_reasons_for_a_slow_network(
    environment: Mapping[str, str], nics: Sequence[float], rate: float, cause: str
) -> None:
    assert cause in slow_network(environment, nics, rate).cause


def test_a_network_near_its_rate_is_no_finding() -> None:
    rows = (link("n0", "n1", 23e9),)
    profiles = [profile("n0", nics=[25e9], links=rows), profile("n1", nics=[25e9])]
    assert found(profiles) == []


def test_wrong_values_are_the_first_thing_to_know() -> None:
    rows = (link("n0", "n1", 1e9, operation="all_reduce", verified=False),)
    first, *_ = found([profile("n0", links=rows), profile("n1")])
    assert (first.kind, first.nodes) == ("wrong values", ("n0", "n1"))
    assert "NCCL_ALGO=Ring" in first.cause


def test_a_mix_that_hangs_nccl_is_named() -> None:
    # NVIDIA/nccl issues 1136, 1184, 1110.
    hopper = device(0, "NVIDIA H100 80GB HBM3", compute_capability="9.0")
    profiles = [profile("h", [hopper], vendor="Intel"), profile("a", vendor="AMD")]
    (finding,) = found(profiles)
    assert (finding.kind, finding.nodes) == ("mixed", ("h", "a"))
    assert "processors of AMD and Intel and compute capabilities 8.0 and 9.0" in finding.what
    assert "NCCL_PROTO=Simple" in finding.cause


# Case mfu-over-100 (https://github.com/karpathy/autoresearch/issues/5): the peak is that of each
# device, dense; what exceeds it is told, not cut off and no error.
@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 3090", 71.2),
        ("NVIDIA H100 80GB HBM3", 989),
    ],
)
def test_a_rate_above_the_dense_peak_of_the_card_is_told(name: str, tflops: float) -> None:
    work = 2 * 1024**3
    below, above = (product(1, work / (tflops * 1e12 * share)) for share in (0.99, 1.04))
    cards = [device(0, name), device(1, name)]
    assert found([profile("n0", cards, matmul=(below,))]) == []
    (finding,) = found([profile("n0", cards, matmul=(below, above))])
    assert (finding.kind, finding.nodes, finding.devices) == ("above peak", ("n0",), (1,))
    assert "104% of its dense peak" in finding.what
    assert slow_places([finding]) == frozenset()
    (rates,) = fit_matmul([profile("n0", cards, matmul=(above,) * 8)])
    assert rates.flop_per_s >= above.flop_per_s  # Not cut off at the peak.


def test_a_card_without_a_data_sheet_has_no_peak_to_exceed() -> None:
    fast = product(0, 1e-12)
    assert found([profile("n0", [device(0, "Some Prototype")], matmul=(fast,))]) == []


def test_what_is_left_out_says_why(recorded: Recorded) -> None:
    with open_nvml(recorded("display_card")) as nvml:
        devices = gpu_inventory(nvml)
    (finding,) = found([profile("n0", devices)])
    assert (finding.kind, finding.devices) == ("left out", (3,))
    assert "drives a display" in finding.cause
    assert str(finding).startswith("n0 device 3: NVIDIA DGX Display is not used (drives")
