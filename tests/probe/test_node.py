"""Which devices a node is profiled by, and when that is an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hetcli.errors import EnvironmentFailure
from hetcli.probe import node as module
from hetcli.probe.node import describe_node
from hetcli.probe.nvml import NvmlUnavailable

Recorded = Callable[..., Any]
ABSENT = {"error": "LIBRARY_NOT_FOUND"}


@pytest.fixture
def on_bus(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def put(there: bool) -> None:
        monkeypatch.setattr(module, "nvidia_on_bus", lambda: there)

    return put


def test_without_card_and_library_the_processor_is_profiled(
    recorded: Recorded, on_bus: Callable[[bool], None]
) -> None:
    on_bus(False)
    facts = describe_node(nvml_module=recorded("gb10", init=ABSENT))
    (device,) = facts.devices
    assert (device.kind, device.vendor, device.usable) == ("cpu", "cpu", True)
    assert device.memory_total_bytes == facts.host.memory_bytes
    assert (facts.backend, facts.ranks) == ("gloo", 2)
    (note,) = facts.notes
    assert note.startswith("no NVIDIA driver library")
    assert note.endswith("the processor is profiled")


@pytest.mark.parametrize(
    ("choice", "code", "card"),
    [
        ("auto", "LIBRARY_NOT_FOUND", True),
        ("auto", "DRIVER_NOT_LOADED", False),
        ("auto", "LIB_RM_VERSION_MISMATCH", False),
        ("gpu", "LIBRARY_NOT_FOUND", False),
        ("gpu", "DRIVER_NOT_LOADED", True),
    ],
)
def test_a_card_or_its_library_without_a_driver_is_an_environment_failure(
    recorded: Recorded,
    on_bus: Callable[[bool], None],
    choice: module.DeviceChoice,
    code: str,
    card: bool,
) -> None:
    on_bus(card)
    with pytest.raises(NvmlUnavailable) as caught:
        describe_node(choice, nvml_module=recorded("gb10", init={"error": code}))
    assert caught.value.what
    assert caught.value.why
    assert caught.value.fix


def test_a_driver_without_cards_is_an_error_only_when_a_gpu_is_asked_for(
    recorded: Recorded,
) -> None:
    empty = recorded("gb10", devices=[])
    facts = describe_node("auto", nvml_module=empty)
    assert facts.devices[0].kind == "cpu"
    assert facts.notes == ("the NVIDIA driver sees no GPU: the processor is profiled",)
    with pytest.raises(NvmlUnavailable, match="sees no GPU"):
        describe_node("gpu", nvml_module=empty)


def test_the_processor_can_be_asked_for_beside_gpus(recorded: Recorded) -> None:
    player = recorded("dgx_a100")
    facts = describe_node("cpu", nvml_module=player)
    assert [device.kind for device in facts.devices] == ["cpu"]
    assert player.calls == []


def test_gpus_come_with_driver_paths_and_ranks(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    facts = describe_node(nvml_module=recorded("display_card"))
    assert (facts.host.driver, facts.host.cuda) == ("525.85.12", "12.0")
    assert (facts.backend, facts.ranks) == ("nccl", 4)
    facts = describe_node(nvml_module=recorded("dgx_a100"))
    assert len(facts.device_links) == 28
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    facts = describe_node(nvml_module=recorded("dgx_a100"))
    assert facts.ranks == 2


def test_mig_instances_join_no_group(recorded: Recorded) -> None:
    facts = describe_node(nvml_module=recorded("mig_seven"))
    assert facts.ranks == 0
    assert sum(device.usable for device in facts.devices) == 7


def test_a_driver_that_hangs_is_left_after_the_limit(recorded: Recorded) -> None:
    player = recorded("dgx_a100")
    original = player._answer

    def hang(name: str, *arguments: Any) -> Any:
        if name == "DeviceGetName":
            time.sleep(60)
        return original(name, *arguments)

    player._answer = hang
    started = time.monotonic()
    with pytest.raises(EnvironmentFailure, match=r"did not answer within 0\.2 s"):
        describe_node(nvml_module=player, limit_s=0.2)
    assert time.monotonic() - started < 5
