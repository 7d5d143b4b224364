"""What of this machine hetcli can use. Looks, changes nothing, takes under a few seconds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from typing import Literal

from hetcli import __version__
from hetcli.spec.base import Document, Record

__all__ = ["Check", "DoctorReport", "examine"]


class Check(Record):
    """One line of the report. `missing` is something optional; `failed` something needed."""

    name: str
    state: Literal["ok", "missing", "failed"]
    found: str
    helps: str = ""


class DoctorReport(Document):
    """The checks in a fixed order."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing that is needed fails."""
        return all(check.state != "failed" for check in self.checks)


def examine() -> DoctorReport:
    """Run every check."""
    return DoctorReport(
        checks=(
            Check(name="hetcli", state="ok", found=f"{__version__}, Python {_python()}"),
            _templates(),
            _torch(),
            _nvml(),
            _legacy_pynvml(),
            *(_program(name, use) for name, use in _PROGRAMS),
            _cores(),
        )
    )


_PROGRAMS = (
    ("ssh", "profile --hosts and multi-node launch scripts"),
    ("srun", "profiling and launching under Slurm"),
    ("torchrun", "launching exported directories"),
    ("nvidia-smi", "the preflight checks of exported scripts"),
)


def _python() -> str:
    return platform.python_version()


def _templates() -> Check:
    from hetcli.catalog.samples import sample_names
    from hetcli.errors import HetcliError

    try:
        count = len(sample_names())
    except (HetcliError, OSError) as error:
        return Check(
            name="package data",
            state="failed",
            found=str(error),
            helps="reinstall hetcli: its sample clusters are missing",
        )
    return Check(name="package data", state="ok", found=f"{count} sample clusters")


def _torch() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check(
            name="torch",
            state="missing",
            found="not installed; planning does not need it",
            helps="pip install 'hetcli[profile]' to measure this node",
        )
    return Check(name="torch", state="ok", found=importlib.metadata.version("torch"))


def _nvml() -> Check:
    from hetcli.probe.nvml import NvmlUnavailable, open_nvml

    try:
        with open_nvml() as nvml:
            return Check(
                name="NVIDIA driver",
                state="ok",
                found=f"{nvml.driver_version()}, {nvml.device_count()} GPUs",
            )
    except NvmlUnavailable as error:
        return Check(name="NVIDIA driver", state="missing", found=error.what, helps=error.fix)


def _legacy_pynvml() -> Check:
    try:
        version = importlib.metadata.version("pynvml")
    except importlib.metadata.PackageNotFoundError:
        return Check(
            name="NVML binding",
            state="ok",
            found=f"nvidia-ml-py {importlib.metadata.version('nvidia-ml-py')}",
        )
    return Check(
        name="NVML binding",
        state="failed",
        found=f"the deprecated distribution pynvml {version} shadows nvidia-ml-py",
        helps="pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py",
    )


def _program(name: str, use: str) -> Check:
    path = shutil.which(name)
    if path is None:
        return Check(name=name, state="missing", found="not on PATH", helps=f"needed for {use}")
    return Check(name=name, state="ok", found=path)


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Check(name="processor", state="ok", found=f"{usable} usable cores")
