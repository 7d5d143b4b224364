"""AMD and Ascend devices: listed as their own tools describe them, and not measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hetcli.errors import EnvironmentFailure
from hetcli.probe import node as module
from hetcli.probe.amd import amd_inventory
from hetcli.probe.ascend import npu_inventory
from hetcli.probe.node import describe_node

Recorded = Callable[..., Any]
TABLE = Path(__file__).parent / "foreign" / "npu_smi_two_chips.txt"


class AmdSmiError(Exception):
    """Stands in for amdsmi.AmdSmiException."""


# Composed, not recorded from one machine: a workstation card in a x4 link of a x16 slot. Names and
# units are those of amdsmi.h (ROCm 6.4), with "N/A" where a firmware may have no value.
ANSWERS: dict[str, Any] = {
    "gpu_asic_info": {
        "market_name": "AMD Radeon PRO W7900",
        "target_graphics_version": "gfx1100",
    },
    "gpu_memory_total": 48301604864,
    "gpu_memory_usage": 17104896,
    "power_info": {"current_socket_power": "N/A", "average_socket_power": 39},
    "power_cap_info": {"power_cap": 241000000},
    "gpu_activity": {"gfx_activity": 4},
    "clock_info": {"clk": 96, "max_clk": 2495},
    "pcie_info": {
        "pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 4},
        "pcie_metric": {"pcie_width": 4, "pcie_speed": 5000},
    },
    "gpu_device_bdf": "0000:43:00.0",
    "gpu_device_uuid": "feff7448-0000-1000-80db-c023cf3d8c5b",
}


def amdsmi(*cards: dict[str, Any], fails: str = "") -> Any:
    """A module that answers like amdsmi; what a card does not answer is not supported."""
    calls: list[str] = []

    def init() -> None:
        calls.append("init")
        if fails:
            raise AmdSmiError(fails)

    def getter(name: str) -> Callable[..., Any]:
        def answer(card: dict[str, Any], *_: Any) -> Any:
            if name not in card:
                raise AmdSmiError("Error code:\n\t2 | AMDSMI_STATUS_NOT_SUPPORTED")
            return card[name]

        return answer

    return SimpleNamespace(
        AmdSmiException=AmdSmiError,
        AmdSmiMemoryType=SimpleNamespace(VRAM=0),
        AmdSmiClkType=SimpleNamespace(GFX=0),
        amdsmi_init=init,
        amdsmi_shut_down=lambda: calls.append("shut_down"),
        amdsmi_get_processor_handles=lambda: list(cards),
        calls=calls,
        **{f"amdsmi_get_{name}": getter(name) for name in ANSWERS},
    )


def test_an_amd_card_is_described_in_si_units() -> None:
    smi = amdsmi(ANSWERS)
    (device,) = amd_inventory(smi)
    assert (device.vendor, device.kind, device.name) == ("amd", "gpu", "AMD Radeon PRO W7900")
    assert (device.memory_total_bytes, device.memory_free_bytes) == (48301604864, 48284499968)
    assert (device.power_draw_w, device.power_limit_w) == (39, 241)
    assert (device.utilization, device.clock_sm_max_hz) == (0.04, 2.495e9)
    assert (device.pcie_width, device.pcie_width_max, device.pcie_generation_max) == (4, 16, 4)
    assert device.pcie_bytes_per_s == pytest.approx(7.877e9, rel=1e-3)
    assert device.notes == ("architecture gfx1100",)
    assert smi.calls == ["init", "shut_down"]


def test_what_amdsmi_cannot_tell_is_null_with_the_reason() -> None:
    card = {key: value for key, value in ANSWERS.items() if key != "power_cap_info"}
    smi = amdsmi({**card, "gpu_activity": {"gfx_activity": "N/A"}}, {})
    first, second = amd_inventory(smi)
    assert (first.power_limit_w, first.utilization, first.usable) == (None, None, True)
    assert first.notes[0].startswith("power_cap_info: Error code: 2")
    assert (second.index, second.memory_total_bytes, second.usable) == (1, None, False)


def test_an_amd_driver_that_is_not_loaded_is_an_environment_failure() -> None:
    with pytest.raises(EnvironmentFailure, match="amdsmi did not start") as caught:
        amd_inventory(amdsmi(fails="34 | AMDSMI_STATUS_DRIVER_NOT_LOADED"))
    assert "DRIVER_NOT_LOADED" in caught.value.why


def npu_smi(folder: Path, script: str) -> str:
    program = folder / "npu-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_ascend_chips_come_from_npu_smi(tmp_path: Path) -> None:
    first, second = npu_inventory(npu_smi(tmp_path, f"cat {TABLE}"))
    assert (first.vendor, first.kind, first.power_draw_w) == ("huawei", "npu", 178.8)
    assert second.memory_free_bytes == (65536 - 3190) * 2**20


@pytest.mark.parametrize(
    ("script", "why"),
    [("echo dcmi model initialized failed >&2; exit 1", "dcmi model"), ("true", "no chip")],
)
def test_npu_smi_that_lists_nothing_is_an_environment_failure(
    tmp_path: Path, script: str, why: str
) -> None:
    with pytest.raises(EnvironmentFailure, match="npu-smi") as caught:
        npu_inventory(npu_smi(tmp_path, script))
    assert why in caught.value.why


def test_without_the_tools_there_is_nothing(tmp_path: Path) -> None:
    assert npu_inventory(str(tmp_path / "npu-smi")) == ()


@pytest.mark.parametrize("choice", ["auto", "gpu"])
def test_a_node_of_another_vendor_is_listed_and_not_measured(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, choice: module.DeviceChoice
) -> None:
    monkeypatch.setattr(module, "nvidia_on_bus", lambda: False)
    monkeypatch.setattr(module, "amd_inventory", lambda: amd_inventory(amdsmi(ANSWERS, ANSWERS)))
    absent = recorded("gb10", init={"error": "LIBRARY_NOT_FOUND"})
    facts = describe_node(choice, nvml_module=absent)
    assert [device.vendor for device in facts.devices] == ["amd", "amd"]
    assert not facts.measurable
    assert facts.notes == ()
