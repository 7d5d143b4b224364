"""Huawei Ascend devices of this node, from the table that `npu-smi info` prints."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

from hetcli.errors import EnvironmentFailure
from hetcli.probe.imports.npu_smi import devices_from_text
from hetcli.spec.profile import DeviceInventory

__all__ = ["npu_inventory"]

_LIMIT_S: Final = 30.0


def npu_inventory(program: str = "npu-smi") -> tuple[DeviceInventory, ...]:
    """Every chip; none where npu-smi is not installed.

    Raises EnvironmentFailure when it is, and fails, hangs, or prints no chip.
    """
    path = shutil.which(program)
    if path is None:
        return ()
    try:
        done = subprocess.run(
            [path, "info"], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _failure(f"no answer within {_LIMIT_S:g} s") from None
    except OSError as error:
        raise _failure(error.strerror or str(error)) from error
    devices = devices_from_text(done.stdout)
    if done.returncode or not devices:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise _failure(said[-1] if said else f"exit code {done.returncode}, and no chip in it")
    return devices


def _failure(why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        "npu-smi info did not list the Ascend devices",
        why=why,
        fix="does `npu-smi info` work for this user? or use --device cpu",
    )
