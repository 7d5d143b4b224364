"""Profile this node: inventory, then what each device really reaches, saved after every step."""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Callable
from typing import Any, Literal

from hetcli import __version__
from hetcli.errors import EnvironmentFailure
from hetcli.probe.compute import matmul_sweep, memory_bandwidth
from hetcli.probe.host import host_facts, network_interfaces, nvidia_on_bus
from hetcli.probe.inventory import cpu_inventory, gpu_inventory
from hetcli.probe.nvml import NvmlUnavailable, open_nvml
from hetcli.probe.timing import Deadline
from hetcli.spec.profile import DeviceInventory, Profile

__all__ = ["DeviceChoice", "profile_node"]

DeviceChoice = Literal["auto", "gpu", "cpu"]


def profile_node(
    *,
    device: DeviceChoice = "auto",
    measure: bool = True,
    seconds: float = 60.0,
    save: Callable[[Profile], None] | None = None,
    say: Callable[[str], None] | None = None,
    nvml_module: Any = None,
) -> Profile:
    """The profile of this node, measured for at most about `seconds`.

    `save` gets the profile after every step, so that nothing measured is lost. Without torch only
    the inventory is taken, and the profile says so. Raises EnvironmentFailure when GPUs are there
    (or asked for) but their driver cannot be used.
    """
    save = save or _ignore
    say = say or _ignore
    devices, driver, notes = _inventory(device, nvml_module)
    host = host_facts(driver=driver)
    profile = Profile(
        hetcli_version=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        complete=False,
        host=host,
        devices=devices or cpu_inventory(host),
        nics=network_interfaces(),
        notes=tuple(notes),
    )
    save(profile)
    if not measure:
        reason = "only the inventory was asked for"
    elif importlib.util.find_spec("torch") is None:
        reason = "torch is not installed (pip install 'hetcli[profile]'): inventory only"
    else:
        profile = _measured(profile, Deadline(seconds), save, say)
        reason = None
    if reason is not None:
        profile = profile.model_copy(update={"notes": (*profile.notes, reason)})
    save(profile)
    return profile


def _ignore(_: object) -> None:
    """The listener of a caller that does not listen."""


def _inventory(
    choice: DeviceChoice, module: Any
) -> tuple[tuple[DeviceInventory, ...], str | None, list[str]]:
    if choice == "cpu":
        return (), None, []
    try:
        with open_nvml(module) as nvml:
            devices = gpu_inventory(nvml)
            if devices or choice == "gpu":
                return devices, nvml.driver_version(), []
            return (), None, ["the NVIDIA driver sees no GPU: the processor is profiled"]
    except NvmlUnavailable as error:
        if choice == "gpu" or not error.absent or nvidia_on_bus():
            raise
        return (), None, [f"{error.what}: the processor is profiled"]


def _measured(
    profile: Profile,
    deadline: Deadline,
    save: Callable[[Profile], None],
    say: Callable[[str], None],
) -> Profile:
    import torch

    usable = [device for device in profile.devices if device.usable]
    if not usable:
        raise EnvironmentFailure(
            "no device of this node can be used",
            why="; ".join(note for device in profile.devices for note in device.notes),
            fix="see `hetcli profile --no-measure --json` for each device's reasons",
        )
    for position, device in enumerate(usable):
        say(f"measuring {device.name} ({position + 1} of {len(usable)})")
        target = torch.device("cpu" if device.kind == "cpu" else f"cuda:{device.index}")
        own = Deadline(deadline.left / (len(usable) - position))
        bandwidth = memory_bandwidth(device.index, target, Deadline(own.left * 0.2))
        if bandwidth is not None:
            profile = profile.model_copy(
                update={"memory_bandwidth": (*profile.memory_bandwidth, bandwidth)}
            )
            save(profile)
        for matmul in matmul_sweep(device.index, target, own):
            profile = profile.model_copy(update={"matmul": (*profile.matmul, matmul)})
            save(profile)
    return profile.model_copy(update={"complete": not deadline.passed})
