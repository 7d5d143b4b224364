"""A narrow view of NVML: open it with a clear verdict, and ask questions that may have no answer.

`pynvml` (the module of nvidia-ml-py) is imported here only, and only when a probe runs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hetcli.errors import EnvironmentFailure

__all__ = ["Nvml", "NvmlUnavailable", "open_nvml"]


class NvmlUnavailable(EnvironmentFailure):
    """NVML cannot be used here; `fix` says what helps.

    `absent` is true when no NVIDIA library is installed at all, which is normal on a machine
    without such cards.
    """

    def __init__(self, what: str, *, why: str, fix: str, absent: bool) -> None:
        super().__init__(what, why=why, fix=fix)
        self.absent = absent


class Nvml:
    """An initialised NVML. `module` is pynvml, or something that answers like it."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def ask(self, name: str, *arguments: Any) -> tuple[Any, str | None]:
        """Call `nvml<name>`; returns (answer, None), or (None, the reason why there is none)."""
        function: Callable[..., Any] | None = getattr(self.module, f"nvml{name}", None)
        if function is None:
            return None, f"{name}: this nvidia-ml-py does not know it"
        try:
            return function(*arguments), None
        except self.module.NVMLError as error:
            return None, f"{name}: {error}"

    def driver_version(self) -> str | None:
        """The driver's version, such as 550.54.15."""
        answer, _ = self.ask("SystemGetDriverVersion")
        return None if answer is None else str(answer)

    def cuda_version(self) -> str | None:
        """The newest CUDA version that the driver supports, such as 12.4."""
        answer, _ = self.ask("SystemGetCudaDriverVersion")
        return None if answer is None else f"{answer // 1000}.{answer % 1000 // 10}"

    def device_count(self) -> int:
        """Number of GPUs that the driver sees. MIG slices are not counted."""
        count, reason = self.ask("DeviceGetCount")
        if reason is not None:
            raise EnvironmentFailure(
                "the NVIDIA driver stopped answering",
                why=reason,
                fix="look at dmesg for an Xid error; reset the cards or reboot the node",
            )
        return int(count)

    def handle(self, index: int) -> tuple[Any, str | None]:
        """The driver's handle of the GPU at `index`, in PCI bus order, or why it has none."""
        return self.ask("DeviceGetHandleByIndex", index)

    def handles(self) -> Mapping[str, Any]:
        """The driver's handles by UUID: with MIG on, places of devices and GPUs differ."""
        found = {}
        for place in range(self.device_count()):
            handle, _ = self.handle(place)
            uuid = None if handle is None else self.ask("DeviceGetUUID", handle)[0]
            if uuid is not None:
                found[str(uuid)] = handle
        return found

    def constant(self, name: str) -> int:
        """The value of an NVML constant."""
        return int(getattr(self.module, name))


def _verdict(module: Any, error: Exception) -> NvmlUnavailable:
    names = {
        "NVMLError_LibraryNotFound": (
            "no NVIDIA driver library (libnvidia-ml.so.1) on this machine",
            "install the NVIDIA driver, or use --device cpu",
            True,
        ),
        "NVMLError_DriverNotLoaded": (
            "the NVIDIA driver is installed but not loaded",
            "load it (sudo modprobe nvidia), or reboot after the driver's installation",
            False,
        ),
        "NVMLError_LibRmVersionMismatch": (
            "the NVIDIA library and the loaded kernel driver are of different versions",
            "reboot, or reload the driver, so that both are of one version",
            False,
        ),
        "NVMLError_NoPermission": (
            "this user may not open the NVIDIA devices",
            "run as a user with access to /dev/nvidia*, or pass the devices into the container",
            False,
        ),
    }
    for name, (what, fix, absent) in names.items():
        kind = getattr(module, name, None)
        if kind is not None and isinstance(error, kind):
            return NvmlUnavailable(what, why=str(error), fix=fix, absent=absent)
    return NvmlUnavailable(
        "NVML did not start",
        why=str(error),
        fix="run nvidia-smi: it shows the driver's own message",
        absent=False,
    )


@contextlib.contextmanager
def open_nvml(module: Any = None) -> Iterator[Nvml]:
    """NVML for the time of a `with` block. Raises NvmlUnavailable."""
    if module is None:
        module = importlib.import_module("pynvml")
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        raise _verdict(module, error) from error
    try:
        yield Nvml(module)
    finally:
        with contextlib.suppress(module.NVMLError):
            module.nvmlShutdown()
