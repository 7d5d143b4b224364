"""Which devices a node is profiled by, and when that is an error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from hetcli.errors import EnvironmentFailure
from hetcli.probe import node as module
from hetcli.probe.node import LocalNode, describe_node
from hetcli.probe.nvml import NvmlUnavailable
from hetcli.probe.wire import StoreJob
from hetcli.spec.profile import LinkScope

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


class CountingWorker:
    """A measuring process that only counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    async def run(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(("choice", "closed"), [("auto", [0, 0, 1, 1, 2]), ("cpu", [0] * 5)])
def test_nccl_chooses_its_interface_anew_when_links_leave_the_node(
    recorded: Recorded, choice: module.DeviceChoice, closed: list[int]
) -> None:
    scopes: list[LinkScope] = [
        "intra_node",
        "intra_node",
        "inter_node",
        "inter_node",
        "intra_node",
    ]
    worker = CountingWorker()

    async def counts() -> list[int]:
        node = LocalNode("n", choice, nvml_module=recorded("dgx_a100"))
        node._workers[0] = worker  # type: ignore[assignment]
        found = []
        for scope in scopes:
            await node.run(0, StoreJob(key="g", scope=scope), limit_s=1)
            found.append(worker.closed)
        return found

    assert asyncio.run(counts()) == closed
