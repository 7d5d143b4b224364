"""Ask the driver about a GPU while it works: the clock it holds, its PCIe link, what slows it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from hetcli.errors import EnvironmentFailure
from hetcli.probe.nvml import Nvml, open_nvml
from hetcli.probe.supervise import OnRow
from hetcli.spec.profile import DeviceInventory, LoadObservation

__all__ = ["observe", "watch_load"]

_PERIOD_S: Final = 0.25
# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean "slower than it could be" (nvml.h).
_REASONS: Final = {
    0x0004: "power cap",
    0x0008: "hardware slowdown",
    0x0020: "thermal (software)",
    0x0040: "thermal (hardware)",
    0x0080: "power brake",
}


def observe(nvml: Nvml, handle: Any, device: int, during: str) -> LoadObservation:
    """One look at a device."""

    def ask(name: str, *arguments: Any) -> Any:
        return nvml.ask(name, handle, *arguments)[0]

    clock = ask("DeviceGetClockInfo", nvml.constant("NVML_CLOCK_SM"))
    draw = ask("DeviceGetPowerUsage")
    temperature = ask("DeviceGetTemperature", nvml.constant("NVML_TEMPERATURE_GPU"))
    reasons = ask("DeviceGetCurrentClocksThrottleReasons") or 0
    return LoadObservation(
        device=device,
        during=during,
        clock_sm_hz=None if clock is None else clock * 1e6,
        pcie_generation=ask("DeviceGetCurrPcieLinkGeneration"),
        pcie_width=ask("DeviceGetCurrPcieLinkWidth"),
        power_draw_w=None if draw is None else draw / 1000,
        temperature_c=None if temperature is None else float(temperature),
        throttling=tuple(name for bit, name in _REASONS.items() if reasons & bit),
    )


def _busiest(one: LoadObservation, other: LoadObservation) -> LoadObservation:
    """Of two looks the one under more load, with the reasons of both."""
    first, second = one.power_draw_w or 0.0, other.power_draw_w or 0.0
    busier = other if second >= first else one
    both = dict.fromkeys((*one.throttling, *other.throttling))
    generations = [look.pcie_generation for look in (one, other) if look.pcie_generation]
    return busier.model_copy(
        update={
            "throttling": tuple(both),
            "pcie_generation": max(generations, default=None),
        }
    )


@contextlib.contextmanager
def watch_load(
    device: DeviceInventory | None, during: str, on_row: OnRow, module: Any = None
) -> Iterator[None]:
    """Look at a device again and again while the block runs, and report its busiest moment.

    None watches nothing. The looks are a thread's work that nobody waits for, since a driver may
    hang; one that cannot be asked gives no row, and the block decides what fails.
    """
    if device is None:
        yield
        return
    looks: list[LoadObservation] = []
    ended = threading.Event()
    arguments = (device, during, looks, ended, module)
    thread = threading.Thread(target=_look, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
    thread.join(_PERIOD_S)
    if looks:
        on_row("under_load", looks[0])


def _look(
    device: DeviceInventory,
    during: str,
    looks: list[LoadObservation],
    ended: threading.Event,
    module: Any,
) -> None:
    with contextlib.suppress(EnvironmentFailure), open_nvml(module) as nvml:
        handle = nvml.handles().get(device.uuid or "")
        while handle is not None and not ended.wait(_PERIOD_S):
            now = observe(nvml, handle, device.index, during)
            looks[:] = [_busiest(looks[0], now) if looks else now]
