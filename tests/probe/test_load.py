"""What a card does while it works: the moment of its highest draw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hetcli.probe import load
from hetcli.probe.inventory import gpu_inventory
from hetcli.probe.load import watch_load
from hetcli.probe.nvml import open_nvml

Recorded = Callable[..., Any]


def test_pcie_is_read_under_load_and_throttling_is_kept(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_PERIOD_S", 0.02)
    player = recorded("pcie_idle_gen1")
    with open_nvml(player) as nvml:
        idle = gpu_inventory(nvml)[1]
    own = player._handles[1].answers
    own |= {
        "CurrPcieLinkGeneration": 3,
        "PowerUsage": 240000,
        "ClockInfo": {"by": {"1": 1607}},
        "Temperature": 84,
        "CurrentClocksThrottleReasons": 0x24,
    }
    rows: list[Any] = []
    with watch_load(idle, "matmul", lambda field, row: rows.append((field, row)), player):
        time.sleep(0.15)
        own |= {"PowerUsage": 9000, "ClockInfo": {"by": {"1": 139}}, "CurrPcieLinkGeneration": 1}
        own["CurrentClocksThrottleReasons"] = 0x1
        time.sleep(0.15)
    ((field, row),) = rows
    assert field == "under_load"
    assert (row.device, row.during) == (1, "matmul")
    assert (row.pcie_generation, row.pcie_width) == (3, 16)
    assert (row.clock_sm_hz, row.power_draw_w, row.temperature_c) == (1.607e9, 240.0, 84.0)
    assert row.throttling == ("power cap", "thermal (software)")


def test_a_driver_that_is_gone_gives_no_row_and_no_error(recorded: Recorded) -> None:
    with open_nvml(recorded("dgx_a100")) as nvml:
        device = gpu_inventory(nvml)[0]
    rows: list[Any] = []
    broken = recorded("dgx_a100", init={"error": "DRIVER_NOT_LOADED"})
    with watch_load(device, "matmul", lambda *row: rows.append(row), broken):
        pass
    assert rows == []


def test_the_processor_is_not_watched() -> None:
    rows: list[Any] = []
    with watch_load(None, "matmul", lambda *row: rows.append(row)):
        pass
    assert rows == []
