"""Launch directories: a plan as scripts and configuration files that a real framework runs."""

from __future__ import annotations

from hetcli.export.directory import write_directory
from hetcli.export.launch import LaunchDirectory, LaunchFile
from hetcli.export.render import LAUNCHERS, render
from hetcli.export.targets import TARGETS

__all__ = [
    "LAUNCHERS",
    "TARGETS",
    "LaunchDirectory",
    "LaunchFile",
    "render",
    "write_directory",
]
