"""AMD GPUs as amdsmi, the Python module that ROCm brings, describes them. Unknown is null.

What amdsmi cannot tell it raises for, or answers with the string "N/A".
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

from hetcli.errors import EnvironmentFailure
from hetcli.probe.pcie import numa_node, pcie_bytes_per_s
from hetcli.spec.profile import DeviceInventory

__all__ = ["amd_inventory"]


def amd_inventory(module: Any = None) -> tuple[DeviceInventory, ...]:
    """Every AMD GPU in the order of amdsmi, which is that of the PCI bus.

    None where amdsmi is not installed. Raises EnvironmentFailure when it is, and does not start.
    """
    if module is None:
        try:
            module = importlib.import_module("amdsmi")
        except (ImportError, OSError):
            # amdsmi raises OSError where its shared library is missing.
            return ()
    try:
        module.amdsmi_init()
    except module.AmdSmiException as error:
        raise EnvironmentFailure(
            "amdsmi did not start",
            why=str(error),
            fix="is the driver loaded (sudo modprobe amdgpu)? or use --device cpu",
        ) from error
    try:
        handles = module.amdsmi_get_processor_handles()
        return tuple(_gpu(module, index, handle) for index, handle in enumerate(handles))
    finally:
        with contextlib.suppress(module.AmdSmiException):
            module.amdsmi_shut_down()


class _Questions:
    """Asks amdsmi about one GPU and keeps the reasons of what has no answer."""

    def __init__(self, module: Any, handle: Any) -> None:
        self.module = module
        self.handle = handle
        self.notes: list[str] = []

    def __call__(self, name: str, *arguments: Any) -> Any:
        """The answer of amdsmi_get_`name`, or None."""
        try:
            return getattr(self.module, f"amdsmi_get_{name}")(self.handle, *arguments)
        except self.module.AmdSmiException as error:
            self.notes.append(f"{name}: {' '.join(str(error).split())}")
            return None


def _number(answer: Mapping[str, Any] | None, *keys: str) -> float | None:
    """The first of the `keys` that amdsmi has a number for."""
    values = [(answer or {}).get(key) for key in keys]
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def _whole(answer: Mapping[str, Any] | None, key: str) -> int | None:
    number = _number(answer, key)
    return None if number is None or number < 0 else int(number)


def _gpu(module: Any, index: int, handle: Any) -> DeviceInventory:
    ask = _Questions(module, handle)
    vram = module.AmdSmiMemoryType.VRAM
    chip = ask("gpu_asic_info") or {}
    total, used = ask("gpu_memory_total", vram), ask("gpu_memory_usage", vram)
    # Parts that report only one of the two state it as the socket's.
    draw = _number(ask("power_info"), "current_socket_power", "average_socket_power")
    limit = _number(ask("power_cap_info"), "power_cap")
    busy = _number(ask("gpu_activity"), "gfx_activity")
    clock = _number(ask("clock_info", module.AmdSmiClkType.GFX), "max_clk")
    slot = ask("pcie_info") or {}
    metric, static = slot.get("pcie_metric"), slot.get("pcie_static")
    width, widest = _whole(metric, "pcie_width"), _whole(static, "max_pcie_width")
    generation = _whole(static, "pcie_interface_version")
    bus_id = ask("gpu_device_bdf")
    if architecture := chip.get("target_graphics_version"):
        ask.notes.append(f"architecture {architecture}")
    return DeviceInventory(
        index=index,
        name=str(chip.get("market_name") or "AMD GPU"),
        uuid=ask("gpu_device_uuid"),
        pci_bus_id=bus_id,
        vendor="amd",
        memory_total_bytes=total or None,
        memory_free_bytes=None if not total or used is None else max(0, total - used),
        # The limit is in microwatts, the draw in watts (amdsmi.h).
        power_limit_w=None if limit is None else limit / 1e6,
        power_draw_w=draw,
        utilization=None if busy is None else busy / 100,
        clock_sm_max_hz=None if clock is None else clock * 1e6,
        pcie_width=width,
        pcie_generation_max=generation,
        pcie_width_max=widest,
        pcie_bytes_per_s=pcie_bytes_per_s(generation, width or widest),
        numa_node=numa_node(bus_id),
        usable=bool(total),
        notes=tuple(ask.notes),
    )
