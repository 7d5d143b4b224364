"""CUDA's numbers and the driver's are joined by UUID, never by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetcli.probe.inventory import gpu_inventory
from hetcli.probe.nvml import open_nvml
from hetcli.probe.visible import cuda_environment, restrict
from hetcli.spec.profile import DeviceInventory

Recorded = Callable[..., Any]
RTX_3090 = "GPU-3090aaaa-1111-2222-3333-444444444444"
RTX_4090 = "GPU-4090bbbb-1111-2222-3333-444444444444"


def inventory(module: Any) -> tuple[DeviceInventory, ...]:
    with open_nvml(module) as nvml:
        return gpu_inventory(nvml)


def test_a_measuring_process_sees_the_devices_in_the_order_of_the_inventory(
    recorded: Recorded,
) -> None:
    devices = inventory(recorded("mixed_3090_4090"))
    for index in (0, 1):
        variables, ordinal = cuda_environment(devices, index)
        shown = variables["CUDA_VISIBLE_DEVICES"].split(",")
        assert ordinal is not None
        assert shown[ordinal] == devices[index].uuid
        assert shown == [RTX_3090, RTX_4090]
        assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_card_that_is_left_out_is_not_counted(recorded: Recorded) -> None:
    devices = inventory(recorded("display_card"))
    variables, ordinal = cuda_environment(devices, 4)
    assert ordinal == 3
    assert devices[3].uuid not in variables["CUDA_VISIBLE_DEVICES"].split(",")


def test_a_mig_instance_stands_alone(recorded: Recorded) -> None:
    devices = inventory(recorded("mig_seven"))
    variables, ordinal = cuda_environment(devices, 5)
    assert (variables["CUDA_VISIBLE_DEVICES"], ordinal) == (devices[5].uuid, 0)


@pytest.mark.parametrize(
    ("value", "usable"),
    [
        ("0,2", [0, 2]),
        ("7", [7]),
        ("", []),
        ("-1", []),
        ("0,9,1", [0]),  # CUDA ends the list at the first entry that names no device
        ("GPU-a1000000-0000-0000-0000-000000000003", [3]),
        ("GPU-a1000000", []),  # the beginning of all eight names none
        ("NoDevFiles", []),
    ],
)
def test_what_the_user_hides_is_left_out(recorded: Recorded, value: str, usable: list[int]) -> None:
    devices, _ = restrict(inventory(recorded("dgx_a100")), {"CUDA_VISIBLE_DEVICES": value})
    assert [device.index for device in devices if device.usable] == usable
    for device in devices:
        if not device.usable:
            assert device.notes[-1] == f"left out: not in CUDA_VISIBLE_DEVICES={value}"


def test_without_the_variable_nothing_is_hidden(recorded: Recorded) -> None:
    devices = inventory(recorded("dgx_a100"))
    assert restrict(devices, {}) == (devices, ())


@pytest.mark.parametrize(
    ("recording", "order", "warned"),
    [
        ("mixed_3090_4090", None, True),
        ("mixed_3090_4090", "PCI_BUS_ID", False),
        ("dgx_a100", None, False),
    ],
)
def test_indices_on_a_mixed_node_are_ambiguous(
    recorded: Recorded, recording: str, order: str | None, warned: bool
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0"}
    if order:
        environment["CUDA_DEVICE_ORDER"] = order
    devices, notes = restrict(inventory(recorded(recording)), environment)
    assert [device.index for device in devices if device.usable] == [0]
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in notes) is warned


def test_the_processor_needs_no_ordinal_and_its_threads_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor = DeviceInventory(
        index=0,
        name="CPU",
        uuid=None,
        pci_bus_id=None,
        kind="cpu",
        memory_total_bytes=1,
        memory_free_bytes=1,
    )
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert cuda_environment((processor,), 0) == ({"OMP_WAIT_POLICY": "PASSIVE"}, None)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert cuda_environment((processor,), 0) == ({"OMP_WAIT_POLICY": "ACTIVE"}, None)
