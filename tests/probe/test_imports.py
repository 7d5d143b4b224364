"""What other tools measured, read with the values that stand in their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetcli.catalog.inputs import read_model
from hetcli.errors import SpecError, UsageError
from hetcli.perf.fitting.links import fit_links
from hetcli.probe.health import examine
from hetcli.probe.imports.detect import read_foreign
from hetcli.probe.imports.foreign import Known
from hetcli.probe.imports.gather import gather
from hetcli.probe.join import join_profiles
from hetcli.spec.profile import NicInventory, Profile

FOREIGN = Path(__file__).parent / "foreign"
KNOWN = Known(label="file")


def read(text: str, **known: Any) -> tuple[Profile, ...]:
    return read_foreign(text, Known(**{"label": "file", **known}))


# --- nccl-tests ---


def test_a_printed_table_of_nccl_tests_is_two_nodes() -> None:
    one, other = read((FOREIGN / "nccl_two_nodes.log").read_text())
    assert (one.node, other.node) == ("ztan-mig-235z", "ztan-mig-gq73")
    assert [device.index for device in other.devices] == list(range(8))
    assert {device.name for device in one.devices} == {"NVIDIA H100 80GB HBM3"}
    assert one.devices[2].pci_bus_id == "0000:0b:00"
    assert [row.message_bytes for row in one.links] == [
        1024, 1048576, 67108864, 1073741824, 8589934592,
    ]  # fmt: skip
    assert other.links == ()
    last = one.links[-1]
    assert (last.operation, last.ranks, last.scope) == ("all_reduce", 16, "inter_node")
    assert last.seconds.median == pytest.approx(0.047535)  # the faster of out-of-place and in-place
    assert last.busbw_bytes_per_s == pytest.approx(338.82e9, rel=1e-3)
    assert one.links[3].busbw_bytes_per_s == pytest.approx(298.82e9, rel=1e-3)
    assert all(row.verified for row in one.links)
    (link,) = fit_links([one, other])
    assert link.bytes_per_s == pytest.approx(340e9, rel=0.1)


def test_wrong_elements_are_not_verified() -> None:
    text = (FOREIGN / "nccl_two_nodes.log").read_text()
    spoiled = text.replace("337.35      0", "337.35     12")
    one, _ = read(spoiled)
    assert [row.verified for row in one.links] == [True, True, True, True, False]


def test_unchecked_values_are_noted() -> None:
    text = (FOREIGN / "nccl_two_nodes.log").read_text().replace("      0\n", "    N/A\n")
    text = text.replace("      0   ", "    N/A   ")
    one, _ = read(text)
    assert one.notes == ("the values were not checked when this was measured (-c 0)",)


ALONE = (FOREIGN / "nccl_one_rank.log").read_text()


@pytest.mark.parametrize("said", ["four headers", "mpirun -np 4", "--ranks 4"])
def test_one_rank_alone_is_refused_and_says_how_many_were_expected(said: str) -> None:
    # Case nccl-tests-zero-busbw (https://github.com/NVIDIA/nccl-tests/issues/71): built without
    # MPI, so that every process runs by itself.
    known, text = {}, ALONE.replace("HOST", "n0")
    if said == "four headers":
        text = "".join(ALONE.replace("HOST", f"n{number}") for number in range(4))
    elif said == "mpirun -np 4":
        text = f"$ mpirun -np 4 all_reduce_perf\n{text}"
    else:
        known = {"ranks": 4}
    with pytest.raises(SpecError, match="1 rank seen where 4 were expected") as caught:
        read(text, **known)
    assert "MPI=1" in caught.value.fix


def test_an_operation_without_a_name_is_told_by_its_ratio() -> None:
    text = (FOREIGN / "nccl_two_nodes.log").read_text()
    nameless = text[text.index("# nThread") :]
    one, _ = read(nameless)
    assert {row.operation for row in one.links} == {"all_reduce"}
    halved = nameless.replace("338.82", "169.41").replace("337.35", "168.67")
    with pytest.raises(SpecError, match="which operation"):
        read(halved)


def report(**changes: Any) -> str:
    """The keys that src/util.cu of nccl-tests writes."""
    half = {"time": 2000.0, "alg_bw": 50.0, "bus_bw": 87.5, "nwrong": 0.0}
    data = {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-b", "8"],
        "env": ["NCCL_IB_HCA=mlx5_0", "SECRET_TOKEN=abc", "HOME=/home/u"],
        "nccl_version": 22703,
        "config": {"ngpus": 1},
        "devices": [
            {"rank": rank, "hostname": "n0", "device": rank, "device_info": "NVIDIA A100-SXM4-80GB"}
            for rank in range(8)
        ],
        "results": [
            {
                "size": 100_000_000,
                "count": 25_000_000,
                "type": "float",
                "redop": "sum",
                "out_of_place": half,
                "in_place": {**half, "time": 1990.0},
            }
        ],
    }
    return json.dumps({**data, **changes})


def test_the_json_report_of_nccl_tests() -> None:
    (profile,) = read(report())
    (row,) = profile.links
    assert (row.scope, row.ranks, row.devices) == ("intra_node", 8, tuple(range(8)))
    assert row.seconds.median == pytest.approx(1.99e-3)
    assert row.busbw_bytes_per_s == pytest.approx(1e8 / 1.99e-3 * 14 / 8)
    # Of the environment only what steers the library is kept.
    assert profile.host.environment == {"NCCL_IB_HCA": "mlx5_0"}


def test_a_json_report_without_devices_or_results_is_refused() -> None:
    with pytest.raises(SpecError, match="no rank"):
        read(report(devices=[]))
    with pytest.raises(SpecError, match="no row with a size and a time"):
        read(report(results=[]))
    with pytest.raises(SpecError, match="bus_bw"):
        read(report(results=[{"size": 1, "out_of_place": {"time": 1.0}}]))


def test_a_log_and_an_inventory_of_the_same_nodes_explain_each_other() -> None:
    # NVIDIA/nccl issue 700: 9.84 GB/s between two nodes of four 200 Gb/s interfaces.
    devices = [
        {"rank": rank, "hostname": f"n{rank // 8}", "device": rank % 8,
         "device_info": "NVIDIA A100-SXM4-80GB"}
        for rank in range(16)
    ]  # fmt: skip
    seconds = 2 * 15 / 16 * 2**30 / 9.84e9
    half = {"time": seconds * 1e6, "alg_bw": 5.248, "bus_bw": 9.84, "nwrong": 0}
    log = read(report(devices=devices, results=[{"size": 2**30, "out_of_place": half}]))
    nics = tuple(
        NicInventory(
            interface=f"ib{place}",
            kind="infiniband",
            rate_bytes_per_s=25e9,
            device=f"mlx5_{place}",
        )
        for place in range(4)
    )
    inventories = [
        profile.model_copy(
            update={
                "source": "hetcli profile",
                "links": (),
                "nics": nics,
                "host": profile.host.model_copy(update={"cores": 64, "environment": {}}),
            }
        )
        for profile in log
    ]
    joined = join_profiles([*inventories, *log])
    assert [profile.node for profile in joined] == ["n0", "n1"]
    findings = examine(joined, fit_links(joined))
    below = [finding for finding in findings if finding.kind == "below nominal"]
    assert "39% of one interface (25 GB/s), 9.8% of all 4 (100 GB/s)" in below[0].what
    assert below[0].cause == "NCCL_IB_HCA=mlx5_0 names 1 of 4 interfaces"


# --- nvbandwidth ---

# Layout of the README of NVIDIA/nvbandwidth.
COPIES = """nvbandwidth Version: v0.8
Device 0: NVIDIA A100-SXM4-80GB (00000000:07:00)
Device 1: NVIDIA A100-SXM4-80GB (00000000:0f:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     24.50     12.36

SUM host_to_device_memcpy_ce 36.86

Running device_to_host_bidirectional_memcpy_ce.
memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)
           0         1
 0      5.64     11.16

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    240.00
 1    250.00       N/A

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    245.00
 1    260.00       N/A
"""


def test_nvbandwidth_gives_host_copies_and_pairs() -> None:
    (profile,) = read(COPIES, name="n0")
    assert [(device.name, device.pci_bus_id) for device in profile.devices] == [
        ("NVIDIA A100-SXM4-80GB", "00000000:07:00"),
        ("NVIDIA A100-SXM4-80GB", "00000000:0f:00"),
    ]
    assert [(r.device, r.direction, r.bytes_per_s) for r in profile.host_copy] == [
        (0, "to_device", 24.5e9),
        (1, "to_device", 12.36e9),
    ]
    # A read moves data from the column to the row: 0 <- 1 is a copy from 1 to 0.
    rates = {row.devices: row.algbw_bytes_per_s for row in profile.links}
    assert rates == {(0, 1): 250e9, (1, 0): 260e9}
    assert {row.nodes for row in profile.links} == {("n0",)}


def test_the_json_of_nvbandwidth_says_the_same() -> None:
    cases = [
        {
            "name": "device_to_host_memcpy_ce",
            "status": "Passed",
            "bufferSize": 256,
            "bandwidth_matrix": [["24.5", "12.36"]],
        },
        {"name": "host_to_device_memcpy_ce", "status": "Waived"},
    ]
    (profile,) = read(json.dumps({"nvbandwidth": {"testcases": cases}}), device="A30")
    assert [(r.device, r.direction, r.transferred_bytes) for r in profile.host_copy] == [
        (0, "to_host", 256 * 2**20),
        (1, "to_host", 256 * 2**20),
    ]
    assert {device.name for device in profile.devices} == {"A30"}


@pytest.mark.parametrize(
    "text",
    [
        "nvbandwidth Version: v0.8\nRunning host_to_all_memcpy_ce.\n",
        '{"nvbandwidth": {"testcases": [{"name": "x", "bandwidth_matrix": [["a"]]}]}}',
        '{"nvbandwidth": {}}',
    ],
)
def test_an_nvbandwidth_file_without_copies_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        read(text)


# --- nvidia-smi topo -m ---

# Case topo-dgx-a100 (https://github.com/NVIDIA/DCGM/issues/149), shortened.
TOPOLOGY = (FOREIGN / "topo_dgx_a100.txt").read_text()


def test_the_matrix_of_a_dgx_is_read() -> None:
    (profile,) = read(TOPOLOGY, device="A100-SXM4-80GB")
    assert len(profile.devices) == 3
    assert [(nic.interface, nic.device) for nic in profile.nics] == [
        ("NIC0", "mlx5_0"),
        ("NIC1", "mlx5_1"),
    ]
    assert [link.devices for link in profile.device_links] == [(0, 1), (0, 2), (1, 2)]
    for link in profile.device_links:
        assert (link.path, link.nvlinks, link.bytes_per_s) == ("nvlink", 12, 300e9)
    near = {(d.device, d.interface): d.path for d in profile.nic_distances}
    assert (near[0, "NIC0"], near[0, "NIC1"]) == ("pxb", "sys")
    assert (near[2, "NIC0"], near[2, "NIC1"]) == ("sys", "pxb")
    assert [device.numa_node for device in profile.devices] == [3, 3, 1]


@pytest.mark.parametrize(
    ("name", "rate"), [("A100-SXM4-80GB", 300e9), ("RTX-A6000", 168.75e9), ("B200", 600e9)]
)
def test_links_of_a_named_gpu_have_its_rate(name: str, rate: float) -> None:
    (profile,) = read(TOPOLOGY, device=name)
    assert {link.bytes_per_s for link in profile.device_links} == {rate}
    assert profile.notes == ()


def test_links_of_an_unnamed_gpu_have_the_usual_rate_as_an_assumption() -> None:
    (profile,) = read(TOPOLOGY)
    assert {link.bytes_per_s for link in profile.device_links} == {300e9}
    (note,) = profile.notes
    assert "25 GB/s an NVLink each way" in note
    assert "(assumed)" in note


def test_an_affinity_that_is_not_printed_is_null_with_the_reason() -> None:
    text = TOPOLOGY.replace("16-31,144-159   1 ", "N/A             N/A ")
    (profile,) = read(text)
    assert [device.numa_node for device in profile.devices] == [3, 3, None]
    reasons = [[note for note in device.notes if "NUMA" in note] for device in profile.devices]
    assert reasons == [[], [], ["no NUMA affinity is printed for it"]]


def test_a_matrix_in_colour_and_without_affinity_is_read_too() -> None:
    text = "\x1b[4m\tGPU0\tGPU1\x1b[0m\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"
    (profile,) = read(text)
    assert [link.path for link in profile.device_links] == ["phb"]
    assert [device.numa_node for device in profile.devices] == [None, None]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("GPU2    NV12    NV12     X      SYS     PXB     16-31,144-159   1               N/A\n",
         "", "no complete matrix"),
        ("GPU0     X      NV12", "GPU0     X      NW12", "'NW12' in the row of GPU0"),
    ],
)  # fmt: skip
def test_a_broken_matrix_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        read(TOPOLOGY.replace(old, new))


# --- npu-smi ---

# Case npu-smi-table (https://github.com/vllm-project/vllm-ascend/issues/2658): two chips a card;
# no power for the second.
ASCEND = (FOREIGN / "npu_smi_two_chips.txt").read_text()
# https://github.com/vllm-project/vllm-ascend/issues/6672: the 910B3 form, without Phy-ID.
ASCEND_B3 = (FOREIGN / "npu_smi_910b3.txt").read_text()
MIB = 2**20


def test_two_chips_of_a_card_are_two_devices() -> None:
    (profile,) = read(ASCEND, name="npu0")
    first, second = profile.devices
    assert (first.index, first.name, first.kind, first.vendor) == (0, "Ascend910", "npu", "huawei")
    assert [device.pci_bus_id for device in profile.devices] == ["0000:9D:00.0", "0000:9F:00.0"]
    assert [device.memory_total_bytes for device in profile.devices] == [65536 * MIB] * 2
    used = [d.memory_total_bytes - d.memory_free_bytes for d in profile.devices]  # type: ignore[operator]
    assert used == [3414 * MIB, 3190 * MIB]
    assert (first.power_draw_w, second.power_draw_w) == (178.8, None)
    assert second.notes == ("npu-smi prints no power for this chip",)


def test_the_form_without_physical_ids_is_read_too() -> None:
    (profile,) = read(ASCEND_B3)
    first, second = profile.devices
    assert (first.name, first.power_draw_w, first.usable) == ("910B3", 93.6, True)
    assert first.memory_total_bytes == 65536 * MIB
    assert (second.memory_total_bytes, second.usable) == (None, False)
    assert "health: Warning" in second.notes


# --- Metis and Sailor ---

# SamsungLabs/Metis, profile_data_samples/DeviceType.A100_tp1_bs1.json, shortened.
METIS = {
    "model": {"model_name": "GPT3", "num_layers": 10},
    "execution_time": {
        "total_time_ms": 336.2,
        "layer_compute_total_ms": [0.289, 29.508, 29.508, 29.4, 0.41],
    },
}
# eth-easl/sailor, profiles/GPT-Neo-2.7/GH-96/profile.json, shortened.
SAILOR = {
    "1": {
        "1": {"0": [0.000309, 2e-06, 0.002857], "1": [0.002336, 0.005652, 0.002857],
              "2": [0.002127, 0.005833, 0.002857], "10": [0.002127, 0.005833, 0.002857],
              "33": [0.000295, 0.000396, 0.002857]},
        "4": {"0": [0.00055, 1e-06, 0.0009], "1": [0.001505, 0.002316, 0.0009],
              "2": [0.000984, 0.000406, 0.0009]},
    }
}  # fmt: skip
NEEDED = {"sequence": 2048, "dtype": "fp16"}


def test_a_profile_of_metis_is_a_layer_a_file() -> None:
    model = read_model("llama-3-8b")
    files = [
        ("p/DeviceType.A100_tp1_bs1.json", METIS),
        ("p/DeviceType.A100_tp2_bs4.json", METIS),
    ]
    (profile,) = gather(
        profile
        for label, data in files
        for profile in read(json.dumps(data), label=label, model=model, **NEEDED)
    )
    assert profile.node == "A100"
    assert [(r.tensor_parallel, r.micro_batch_size) for r in profile.layers] == [(1, 1), (2, 4)]
    row = profile.layers[0]
    both = row.forward_s.median + row.backward_s.median
    assert both == pytest.approx(29.508e-3)
    assert row.backward_s.median == pytest.approx(2 * row.forward_s.median)
    assert (row.model, row.hidden_size, row.sequence, row.dtype) == (model.name, 4096, 2048, "fp16")
    assert "split 1 : 2 (assumed)" in profile.notes[0]


def test_a_profile_of_sailor_has_a_layer_for_every_batch_and_degree() -> None:
    (profile,) = read(
        json.dumps(SAILOR), label="GPT/GH-96/profile.json", model=read_model("llama-3-8b"), **NEEDED
    )
    assert profile.devices[0].name == "GH-96"
    one, four = profile.layers
    assert (one.tensor_parallel, one.micro_batch_size) == (1, 1)
    # The median of the layers between embedding and head, in the order of their numbers.
    assert (one.forward_s.median, one.backward_s.median) == (0.002127, 0.005833)
    assert (four.tensor_parallel, four.forward_s.median) == (4, 0.001505)


@pytest.mark.parametrize("missing", ["model", "sequence", "dtype"])
def test_layers_of_unknown_size_are_refused(missing: str) -> None:
    known = {"model": read_model("llama-3-8b"), **NEEDED, missing: None}
    with pytest.raises(UsageError, match="unknown size"):
        read(json.dumps(SAILOR), label="GPT/GH-96/profile.json", **known)


def test_metis_under_another_name_is_refused() -> None:
    with pytest.raises(SpecError, match="under another name"):
        read(json.dumps(METIS), model=read_model("llama-3-8b"), **NEEDED)


# --- anything else ---


@pytest.mark.parametrize(
    "text", ["", "hello", "{}", '{"a": 1}', "{", '{"1": {"1": {"0": 3}}}', '{"1": []}', "\x00\x01"]
)
def test_what_no_tool_wrote_is_refused_with_the_formats_that_are_read(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text)
    assert "nccl-tests" in caught.value.why or "JSON" in caught.value.why
