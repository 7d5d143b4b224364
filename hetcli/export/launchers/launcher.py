"""What a launcher adds to a launch directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hetcli.export.launch import LaunchFile
from hetcli.export.placement import Placement
from hetcli.export.planned import Planned

__all__ = ["Launcher"]


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher by name.

    `template` defines the shell function `launch`, `command` is the program that it calls,
    `settings` makes the template's values. `check(target, planned, placement)` refuses what it
    cannot start as planned. `sets_devices` says that it restricts processes to devices by itself.
    `repeats_machines` says that it can be started several times on one machine.
    `files` makes what starts all nodes, with the commands `start`; without it that is
    `start_all.sh`, over ssh.
    """

    name: str
    template: str
    command: str
    check: Callable[[str, Planned, Placement], None]
    settings: Callable[[Planned, Placement], Mapping[str, object]]
    sets_devices: bool = False
    repeats_machines: bool = False
    files: Callable[[Planned, Placement], tuple[LaunchFile, ...]] | None = None
    start: tuple[str, ...] = ("./start_all.sh --check", "./start_all.sh")
