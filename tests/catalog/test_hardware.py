"""The GPU and link catalogue against published tables, and its look-up."""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hetcli.catalog import hardware
from hetcli.catalog.gpu import Gpu
from hetcli.catalog.hardware import find_gpu, find_link, load_gpus, load_links, spelling
from hetcli.errors import SpecError, UnknownNameError
from hetcli.spec.base import Origin
from hetcli.spec.cluster import NicKind

PUBLISHED = Path(__file__).parents[1] / "published"
GIB = 1024**3


def published(file: str) -> list[dict[str, str]]:
    with (PUBLISHED / file).open(newline="") as lines:
        return list(csv.DictReader(lines))


SHEETS = published("gpus.csv")
ROWS = {row["id"]: row for row in published("links.csv")}
ACHIEVED = published("achieved_flops.csv")

# Cards whose GDDR memory ships with ECC on, which takes a sixteenth of it.
ECC = {"T4", "P40", "L4", "A10", "A10G", "A40", "L40", "L40S"}
# The table counts a card of two dies; the catalogue counts a die.
DIES = {"MI250": 2, "MI250X": 2}
# Where the catalogue disagrees with the table on purpose (the notes of the entry say why).
DISAGREEMENTS = {
    ("B300-SXM", "mem_gb"),
    ("P40", "fp16_dense_tflops"),
    ("RTX-PRO-6000-Blackwell", "mem_bw_GBps"),
}
PEAKS = {
    "fp32_tflops": "fp32",
    "tf32_dense_tflops": "tf32",
    "fp16_dense_tflops": "fp16",
    "bf16_dense_tflops": "bf16",
    "fp8_dense_tflops": "fp8",
}


def stated(column: str) -> list[tuple[str, float]]:
    """What the published table says in a column: (GPU, value)."""
    return [
        (row["gpu"], float(row[column]))
        for row in SHEETS
        if row[column] and (row["gpu"], column) not in DISAGREEMENTS
    ]


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("A100-SXM4-80GB", 312), ("RTX-4090", 165.2), ("RTX-3090", 71), ("H100-SXM5-80GB", 989)],
)
def test_dense_bf16_peaks_of_case_mfu_over_100(name: str, tflops: float) -> None:
    assert find_gpu(name).peak_flops["bf16"] == pytest.approx(tflops * 1e12, rel=0.005)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [("H20", "bf16", 148), ("V100", "fp16", 125), ("P100-SXM2-16GB", "fp16", 21.2)],
)
def test_peaks_accumulate_in_fp32_and_are_exact(name: str, dtype: str, tflops: float) -> None:
    assert find_gpu(name).peak_flops[dtype] == tflops * 1e12


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [(name, column, value) for column in PEAKS for name, value in stated(column)],
)
def test_peaks_agree_with_the_published_table(name: str, column: str, value: float) -> None:
    expected = value * 1e12 / DIES.get(name, 1)
    assert find_gpu(name).peak_flops[PEAKS[column]] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("name", "gigabytes"), stated("mem_gb"))
def test_memory_is_the_marketed_size_less_ecc(name: str, gigabytes: float) -> None:
    gpu = find_gpu(name)
    kept = 15 / 16 if gpu.name in ECC else 1
    assert gpu.memory_bytes == gigabytes * GIB * kept / DIES.get(name, 1)


def test_memory_never_exceeds_the_marketed_size() -> None:
    for row in SHEETS:
        if row["mem_gb"]:
            assert find_gpu(row["gpu"]).memory_bytes <= float(row["mem_gb"]) * GIB


@pytest.mark.parametrize(("name", "rate"), stated("mem_bw_GBps"))
def test_memory_rate_agrees_with_the_published_table(name: str, rate: float) -> None:
    expected = rate * 1e9 / DIES.get(name, 1)
    assert find_gpu(name).memory_bytes_per_s == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(("name", "watts"), stated("tdp_w"))
def test_power_agrees_with_the_published_table(name: str, watts: float) -> None:
    assert find_gpu(name).tdp_w == watts


@pytest.mark.parametrize(
    ("name", "both_ways"), [pair for pair in stated("nvlink_total_bidir_GBps") if pair[1]]
)
def test_device_link_is_half_of_the_two_way_figure(name: str, both_ways: float) -> None:
    # Gaudi keeps 21 of its 24 ports inside the node.
    inside = 21 / 24 if name.startswith("Gaudi") else 1
    expected = both_ways / 2 * 1e9 * inside / DIES.get(name, 1)
    assert find_link(find_gpu(name).intra_link).bytes_per_s == expected


@pytest.mark.parametrize(
    ("link", "lanes", "lane_gbytes"),
    [
        ("nvlink1", 4, 20),
        ("nvlink2", 6, 25),
        ("nvlink3", 12, 25),
        ("nvlink-a800", 8, 25),
        ("nvlink4", 18, 25),
        ("nvlink-h800", 8, 25),
        ("nvlink5", 18, 50),
        ("nvlink-bridge", 4, 14.0625),
    ],
)
def test_nvlink_is_its_links_times_their_rate(link: str, lanes: int, lane_gbytes: float) -> None:
    assert find_link(link).bytes_per_s == lanes * lane_gbytes * 1e9


@pytest.mark.parametrize(("link", "giga_transfers"), [("pcie3", 8), ("pcie4", 16), ("pcie5", 32)])
def test_pcie_is_sixteen_lanes_after_coding(link: str, giga_transfers: float) -> None:
    kind = find_link(link)
    assert kind.bytes_per_s == pytest.approx(giga_transfers * 1e9 * 16 * 128 / 130 / 8, rel=0.001)
    assert kind.shared


@pytest.mark.parametrize(
    ("link", "row", "rate"),
    [
        ("pcie3", "SAILOR-0012", None),
        ("pcie4", "GTC-0001", None),
        ("pcie5", "GTC-0002", None),
        ("nvlink2", "GTC-0003", None),
        ("nvlink3", "NCCL-0228", None),
        ("nvlink4", "STAS-0010", None),
        ("nvlink5", "STAS-0020", None),
        ("nvlink-bridge", "SAILOR-0015", None),
        ("nvlink-bridge-pcie", "VIDUR-0151", None),
        ("infiniband", "GTC-0009", 400e9 / 8),
        ("ethernet", "GTC-0007", 100e9 / 8),
        ("slingshot", "SAILOR-0027", 200e9 / 8),
        ("efa", "STAS-0064", 8 * 400e9 / 8),
    ],
)
def test_efficiency_is_measured_over_nominal(link: str, row: str, rate: float | None) -> None:
    kind = find_link(link)
    measured = float(ROWS[row]["busbw_GBps"] or ROWS[row]["algbw_GBps"]) * 1e9
    nominal = rate or kind.bytes_per_s
    assert nominal is not None
    assert kind.efficiency == pytest.approx(measured / nominal, abs=0.006)
    assert row in kind.notes


@pytest.mark.parametrize(
    ("link", "row"),
    [
        ("pcie4", "NCCL-1502"),
        ("pcie5", "NCCL-1730"),
        ("nvlink3", "NCCL-0058"),
        ("nvlink4", "NCCL-1046"),
        ("nvlink5", "NCCL-0286"),
        ("nvlink-bridge-pcie", "VIDUR-0136"),
        ("infiniband", "VIDUR-0243"),
    ],
)
def test_latency_is_that_of_one_small_message(link: str, row: str) -> None:
    measured = ROWS[row]
    assert measured["num_gpus"] == "2"
    steps = {"all_reduce": 2, "send_recv": 1}[measured["op"]]
    kind = find_link(link)
    assert kind.latency_s == pytest.approx(float(measured["time_ms"]) * 1e-3 / steps, abs=0.06e-6)
    assert row in kind.notes


def test_borrowed_numbers_are_marked_assumed() -> None:
    for kind in load_links().values():
        if "borrowed" in kind.notes or kind.scope == "nic":
            assert kind.origin is Origin.ASSUMED, kind.name


def typical_share(kind: str) -> float:
    """Median of best measured rate over data-sheet peak, of cards without a usable peak."""
    shares = []
    for row in ACHIEVED:
        gpu = find_gpu(row["gpu"])
        if row["kind"] == kind and gpu.vendor == "nvidia" and row["dtype"] not in gpu.usable_flops:
            shares.append(float(row["tflops"]) * 1e12 / gpu.peak_flops[row["dtype"]])
    return statistics.median(shares)


@pytest.mark.parametrize("row", ACHIEVED, ids=lambda row: row["gpu"])
def test_usable_peak_exists_exactly_where_measurements_stay_low(row: dict[str, str]) -> None:
    gpu, dtype = find_gpu(row["gpu"]), row["dtype"]
    best = float(row["tflops"]) * 1e12
    low = best < 2 / 3 * gpu.peak_flops[dtype]
    assert (dtype in gpu.usable_flops) == low
    if gpu.name.startswith("P100"):
        assert gpu.usable_flops[dtype] == gpu.peak_flops["fp32"]
    elif low:
        expected = best / typical_share(row["kind"])
        assert gpu.usable_flops[dtype] == pytest.approx(expected, rel=0.01)


def test_usable_peaks_stay_below_the_data_sheet() -> None:
    for gpu in load_gpus().values():
        for dtype, rate in gpu.usable_flops.items():
            assert rate < gpu.peak_flops[dtype], gpu.name


@pytest.mark.parametrize("gpu", load_gpus().values(), ids=lambda gpu: gpu.name)
def test_every_gpu_is_complete_and_sourced(gpu: Gpu) -> None:
    assert "http" in gpu.source or gpu.origin is Origin.ASSUMED
    assert gpu.peak_flops
    assert find_link(gpu.intra_link).scope == "device"
    assert (gpu.compute_capability is None) == (gpu.vendor != "nvidia")
    assert gpu.notes or gpu.origin is not Origin.ASSUMED


@pytest.mark.parametrize("gpu", load_gpus().values(), ids=lambda gpu: gpu.name)
def test_capabilities_follow_the_generation(gpu: Gpu) -> None:
    if gpu.compute_capability is None:
        return
    generation = float(gpu.compute_capability)
    assert gpu.supports("bf16") == (generation >= 8.0)
    assert gpu.supports("tf32") == (generation >= 8.0)
    assert gpu.flash_attention == (generation >= 8.0)
    assert gpu.supports("fp8") == (generation >= 8.9)
    assert gpu.supports("fp16") == (generation >= 6.0)


@pytest.mark.parametrize("gpu", load_gpus().values(), ids=lambda gpu: gpu.name)
def test_peaks_are_dense_multiples_of_each_other(gpu: Gpu) -> None:
    # A sparse figure, or one that accumulates in fp16, would stand out as another factor of two;
    # the tolerance is the rounding of data sheets (L40S: 362 and 733).
    peaks = gpu.peak_flops
    if "bf16" in peaks and "fp16" in peaks and gpu.name != "MI100":
        assert peaks["bf16"] == peaks["fp16"]
    if "tf32" in peaks:
        assert peaks["tf32"] <= peaks["bf16"] / 2 * 1.02
    if "fp8" in peaks and gpu.name != "Gaudi3":
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.015)


def test_every_link_has_a_source() -> None:
    for kind in load_links().values():
        assert kind.source
        assert (kind.bytes_per_s is None) == (kind.scope == "nic"), kind.name


def test_every_nic_kind_of_the_cluster_file_is_a_link() -> None:
    nics = {kind.name for kind in load_links().values() if kind.scope == "nic"}
    assert nics == set(get_args(NicKind))


def test_prices_are_those_of_published_evaluations() -> None:
    prices = {gpu.name: gpu.price_per_hour for gpu in load_gpus().values() if gpu.price_per_hour}
    assert prices == {
        "A100-SXM4-40GB": 3.67,
        "V100-SXM2-16GB": 2.86,
        "GH200-96GB": 11.06,
        "H800-SXM5-80GB": 5.28,
        "H800-PCIE-80GB": 5.28,
        "H20-96GB": 1.85,
    }


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIE-16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("NVIDIA GeForce RTX 3080", "RTX-3080-10GB"),
        ("NVIDIA TITAN RTX", "Titan-RTX"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("Quadro RTX 6000", "Quadro-RTX-6000"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIE-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Server"),
        ("NVIDIA GB10", "GB10"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Ascend910B3", "Ascend-910B"),
        ("A100-40", "A100-SXM4-40GB"),
        ("V100-16", "V100-SXM2-16GB"),
        ("GH-96", "GH200-96GB"),
        ("RTX-2080", "RTX-2080"),
        ("A800-80GB", "A800-SXM4-80GB"),
        ("H100-80GB-SXM", "H100-SXM5-80GB"),
        ("H800-SXM5-80GB", "H800-SXM5-80GB"),
        ("H200-141GB", "H200-SXM-141GB"),
        ("RTX-3080-10GB", "RTX-3080-10GB"),
        ("v100-pciex16", "V100-PCIE-16GB"),
        ("a100x40", "A100-SXM4-40GB"),
        ("h100_sxm", "H100-SXM5-80GB"),
        ("rtx_pro_6000_server", "RTX-PRO-6000-Server"),
        ("Intel Gaudi 2", "Gaudi2"),
        ("a6000", "RTX-A6000"),
        ("p40", "P40"),
        ("l4", "L4"),
        ("H800", "H800-SXM5-80GB"),
    ],
)
def test_names_of_drivers_and_tables_are_understood(said: str, name: str) -> None:
    assert find_gpu(said).name == name


def test_the_plain_2080_is_not_the_ti() -> None:
    assert find_gpu("RTX-2080").memory_bytes == 8 * GIB
    assert find_gpu("RTX-2080-Ti").memory_bytes == 11 * GIB


@given(st.sampled_from(sorted(load_gpus())), st.sampled_from(["", "NVIDIA ", "nvidia_"]), st.data())
def test_case_separators_and_brand_do_not_matter(
    name: str, brand: str, data: st.DataObject
) -> None:
    letters = [data.draw(st.sampled_from([letter.lower(), letter.upper()])) for letter in name]
    separated = "".join(letters).replace("-", data.draw(st.sampled_from(["-", "_", " ", "  "])))
    assert find_gpu(brand + separated) is load_gpus()[name]


@pytest.mark.parametrize(
    ("asked", "nearest"), [("A100-SXM4-90GB", "A100-SXM4-80GB"), ("RTX-4091", "RTX-4090")]
)
def test_an_unknown_gpu_is_refused_with_the_nearest_names(asked: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_gpu(asked)
    assert asked in caught.value.what
    assert caught.value.why
    assert nearest in caught.value.fix


@pytest.mark.parametrize("asked", ["", " ", "nvidia", "\x00", "x" * 100_000, "<b>$(id)</b>"])
def test_hostile_names_are_refused_briefly(asked: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_gpu(asked)
    assert len(str(caught.value)) < 500


def test_an_unknown_link_is_refused_with_the_legal_names() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_link("nvlink9")
    assert "nvlink5" in caught.value.fix
    assert "infiniband" in caught.value.fix


def test_aliases_are_unambiguous() -> None:
    spoken = [
        (spelling(name), gpu.name)
        for gpu in load_gpus().values()
        for name in (gpu.name, *gpu.aliases)
    ]
    assert len(spoken) == len(dict(spoken))


def test_two_entries_with_one_spelling_are_an_error() -> None:
    one = find_gpu("A100")
    other = find_gpu("H100").model_copy(update={"aliases": ("nvidia a100_80gb",)})
    with pytest.raises(SpecError, match="already answers"):
        hardware._index("gpus.yaml", [one, other])


def test_the_catalogue_cannot_be_changed_by_a_caller() -> None:
    with pytest.raises(TypeError):
        load_gpus()["X"] = find_gpu("A100")  # type: ignore[index]


def test_the_catalogue_is_the_same_without_the_c_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = hardware._parse("gpus.yaml")
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert hardware._parse("gpus.yaml") == fast


def test_loading_is_fast_and_happens_once() -> None:
    best = min(_seconds_to_load() for _ in range(5))
    assert best < 0.06
    assert load_gpus() is load_gpus()


def _seconds_to_load() -> float:
    hardware._gpus.cache_clear()
    hardware._links.cache_clear()
    started = time.perf_counter()
    load_gpus()
    load_links()
    return time.perf_counter() - started


def test_the_catalogue_imports_neither_torch_nor_pynvml() -> None:
    code = (
        "import sys; from hetcli.catalog.hardware import load_gpus; load_gpus();"
        "sys.exit(bool({'torch', 'pynvml', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
