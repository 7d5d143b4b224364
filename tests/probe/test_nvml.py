"""A driver that cannot be used says what is wrong and what helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from hetcli.errors import ExitCode
from hetcli.probe.nvml import NvmlUnavailable, open_nvml

Recorded = Callable[..., Any]


@pytest.mark.parametrize(
    ("code", "what", "fix", "absent"),
    [
        ("LIBRARY_NOT_FOUND", "no NVIDIA driver library", "install the NVIDIA driver", True),
        ("DRIVER_NOT_LOADED", "installed but not loaded", "modprobe nvidia", False),
        ("LIB_RM_VERSION_MISMATCH", "different versions", "reboot", False),
        ("NO_PERMISSION", "may not open", "/dev/nvidia", False),
        ("UNKNOWN", "did not start", "nvidia-smi", False),
    ],
)
def test_every_way_of_not_starting_has_cause_and_cure(
    recorded: Recorded, code: str, what: str, fix: str, absent: bool
) -> None:
    with (
        pytest.raises(NvmlUnavailable) as caught,
        open_nvml(recorded("gb10", init={"error": code})),
    ):
        pass
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.absent is absent
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert caught.value.why == str(pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{code}")))


def test_the_library_is_closed_also_after_an_error(recorded: Recorded) -> None:
    player = recorded("gb10")
    with pytest.raises(RuntimeError, match="ours"), open_nvml(player):
        raise RuntimeError("ours")
    assert player.calls == ["nvmlInit", "nvmlShutdown"]


def test_what_a_device_does_not_support_is_an_answer_with_a_reason(recorded: Recorded) -> None:
    with open_nvml(recorded("gb10")) as nvml:
        handle, _ = nvml.handle(0)
        assert nvml.ask("DeviceGetMemoryInfo", handle) == (
            None,
            "DeviceGetMemoryInfo: Not Supported",
        )
        assert nvml.ask("DeviceGetName", handle) == ("NVIDIA GB10", None)
        assert nvml.ask("DeviceGetSomethingNew", handle) == (
            None,
            "DeviceGetSomethingNew: this nvidia-ml-py does not know it",
        )


def test_versions_are_read_as_people_write_them(recorded: Recorded) -> None:
    with open_nvml(recorded("mixed_3090_4090")) as nvml:
        assert nvml.driver_version() == "550.54.15"
        assert nvml.cuda_version() == "12.4"


def test_the_stand_in_refuses_calls_that_the_real_module_refuses(recorded: Recorded) -> None:
    player = recorded("gb10")
    with pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        player.nvmlDeviceGetCount()
    player.nvmlInit()
    with pytest.raises(TypeError):
        player.nvmlDeviceGetName()
    with pytest.raises(AttributeError):
        player.nvmlDeviceGetNothing  # noqa: B018
