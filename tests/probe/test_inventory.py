"""What the driver says is what the profile says; what it does not say is null with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetcli.errors import EnvironmentFailure
from hetcli.probe.inventory import gpu_inventory
from hetcli.probe.nvml import open_nvml
from hetcli.spec.profile import DeviceInventory

Recorded = Callable[..., Any]
MIB = 2**20


def inventory(module: Any, **options: Any) -> tuple[DeviceInventory, ...]:
    with open_nvml(module) as nvml:
        return gpu_inventory(nvml, **options)


def test_dgx_a100_is_read_in_every_field(recorded: Recorded) -> None:
    devices = inventory(recorded("dgx_a100"))
    assert [device.index for device in devices] == list(range(8))
    assert devices[0] == DeviceInventory(
        index=0,
        name="NVIDIA A100-SXM4-80GB",
        uuid="GPU-a1000000-0000-0000-0000-000000000000",
        pci_bus_id="00000000:07:00.0",
        kind="gpu",
        vendor="nvidia",
        compute_capability="8.0",
        memory_total_bytes=81920 * MIB,
        memory_free_bytes=81079 * MIB,
        power_limit_w=400.0,
        power_draw_w=62.311,
        utilization=0.0,
        clock_sm_max_hz=1.41e9,
        pcie_generation=4,
        pcie_width=16,
        pcie_generation_max=4,
        pcie_width_max=16,
        pcie_bytes_per_s=16e9 * 16 * 128 / (8 * 130),
        ecc=True,
        numa_node=3,
        display_active=False,
    )
    assert [device.numa_node for device in devices] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert [device.pci_bus_id for device in devices][-1] == "00000000:BD:00.0"


def test_devices_come_in_bus_order_whatever_cuda_would_say(recorded: Recorded) -> None:
    # CUDA's own order is fastest first and would name the 4090 device 0.
    devices = inventory(recorded("mixed_3090_4090"))
    assert [(d.index, d.name, d.pci_bus_id, d.uuid) for d in devices] == [
        (
            0,
            "NVIDIA GeForce RTX 3090",
            "00000000:01:00.0",
            "GPU-3090aaaa-1111-2222-3333-444444444444",
        ),
        (
            1,
            "NVIDIA GeForce RTX 4090",
            "00000000:02:00.0",
            "GPU-4090bbbb-1111-2222-3333-444444444444",
        ),
    ]
    assert [d.ecc for d in devices] == [None, None]


def test_mig_gives_seven_slices_with_their_own_memory(recorded: Recorded) -> None:
    devices = inventory(recorded("mig_seven"))
    assert [device.kind for device in devices] == ["mig"] * 7
    assert {device.memory_total_bytes for device in devices} == {4864 * MIB}
    assert len({device.uuid for device in devices}) == 7
    assert {device.utilization for device in devices} == {None}
    assert {device.compute_capability for device in devices} == {"8.0"}
    assert all("never in a tp or pp group" in device.notes[0] for device in devices)


def test_slices_and_whole_cards_are_numbered_through(recorded: Recorded) -> None:
    player = recorded("mig_seven")
    whole = {"Name": "NVIDIA A100-SXM4-40GB", "MigMode": [0, 0], "UUID": "GPU-whole"}
    whole["MemoryInfo"] = {"total": 42505273344, "free": 1, "used": 2}
    both = recorded("mig_seven", devices=[*player._recorded["devices"], whole])
    devices = inventory(both)
    assert [device.index for device in devices] == list(range(8))
    assert [device.kind for device in devices] == ["mig"] * 7 + ["gpu"]


@pytest.mark.parametrize("answers", ["NOT_SUPPORTED", "SUCCESS"])
def test_gb10_shares_the_memory_of_its_host(
    recorded: Recorded, tmp_path: Path, answers: str
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       127600748 kB\nMemAvailable:   118566368 kB\n")
    player = recorded("gb10")
    if answers == "SUCCESS":
        own = dict(player._recorded["devices"][0])
        own["MemoryInfo"] = {"total": 130663165952, "free": 121411960832, "used": 9251205120}
        player = recorded("gb10", devices=[own])
    (device,) = inventory(player, meminfo=meminfo)
    assert device.unified_memory
    assert device.usable
    assert device.memory_total_bytes is not None
    assert round(device.memory_total_bytes / 2**30, 2) == 121.69
    assert device.memory_free_bytes == 118566368 * 1024
    assert any("shared with the host" in note for note in device.notes) == (answers != "SUCCESS")
    # Its internal link is no slot: a width of 1 says nothing about the rate.
    assert device.pcie_bytes_per_s is None
    assert device.power_limit_w is None
    assert any("DeviceGetEnforcedPowerLimit: Not Supported" in note for note in device.notes)


def test_a_discrete_card_without_memory_is_no_device_to_use(recorded: Recorded) -> None:
    player = recorded("dgx_a100")
    broken = {**player._recorded["devices"][1], "MemoryInfo": {"error": "NOT_SUPPORTED"}}
    devices = inventory(recorded("dgx_a100", devices=[player._recorded["devices"][0], broken]))
    assert [device.usable for device in devices] == [True, False]
    assert devices[1].memory_total_bytes is None
    assert not devices[1].unified_memory
    assert "the driver reports no memory of a discrete card: not usable" in devices[1].notes


def test_the_display_card_is_left_out_and_says_why(recorded: Recorded) -> None:
    devices = inventory(recorded("display_card"))
    assert [device.index for device in devices if device.usable] == [0, 1, 2, 4]
    assert devices[3].notes[-1] == "drives a display and has 3.82 GiB: left out"


def test_an_idle_card_keeps_the_rate_of_its_slot(recorded: Recorded) -> None:
    busy, idle = inventory(recorded("pcie_idle_gen1"))
    assert (idle.pcie_generation, idle.pcie_generation_max) == (1, 3)
    for device in (busy, idle):
        assert device.pcie_bytes_per_s is not None
        assert round(device.pcie_bytes_per_s / 1e9, 2) == 15.75
        assert device.notes == ()


def test_a_card_that_trained_to_fewer_lanes_says_so(recorded: Recorded) -> None:
    slow, whole = inventory(recorded("downtrained"))
    assert "PCIe trained to x4 of x16: reseat the card or its riser" in slow.notes
    assert slow.pcie_bytes_per_s is not None
    assert whole.pcie_bytes_per_s == 4 * slow.pcie_bytes_per_s


def test_a_power_limit_that_cannot_be_read_is_null_with_the_reason(recorded: Recorded) -> None:
    for device in inventory(recorded("downtrained")):
        assert device.power_limit_w is None
        assert device.power_draw_w is None
        assert "DeviceGetEnforcedPowerLimit: Not Supported" in device.notes


def test_a_busy_card_is_told(recorded: Recorded) -> None:
    idle, busy = inventory(recorded("downtrained"))
    assert busy.utilization == 0.97
    assert "busy when it was probed (97%): measured rates will be too low" in busy.notes
    assert not any("busy" in note for note in idle.notes)
    assert busy.memory_free_bytes == 2060 * MIB


def test_eight_v100_are_volta(recorded: Recorded) -> None:
    devices = inventory(recorded("v100_eight"))
    assert {device.compute_capability for device in devices} == {"7.0"}
    assert {device.name for device in devices} == {"Tesla V100-SXM2-32GB"}
    assert {device.memory_total_bytes for device in devices} == {32510 * MIB}


def test_a_lost_card_costs_only_itself(recorded: Recorded) -> None:
    player = recorded("dgx_a100")
    handles = player._handles
    handles[2] = None
    original = player._answer

    def answer(name: str, *arguments: Any) -> Any:
        if name == "DeviceGetHandleByIndex" and arguments[0] == 2:
            raise player._error("GPU_IS_LOST")
        return original(name, *arguments)

    player._answer = answer
    devices = inventory(player)
    assert [device.usable for device in devices] == [True, True, False] + [True] * 5
    assert "GPU is lost" in devices[2].notes[0]
    assert devices[3].uuid == "GPU-a1000000-0000-0000-0000-000000000003"


def test_a_driver_that_dies_between_two_questions_is_an_environment_failure(
    recorded: Recorded,
) -> None:
    with (
        pytest.raises(EnvironmentFailure, match="stopped answering"),
        open_nvml(recorded("dgx_a100", dies_after=1)) as nvml,
    ):
        gpu_inventory(nvml)
