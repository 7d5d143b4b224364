"""A launch directory before it is written: file names, contents and modes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["LaunchDirectory", "LaunchFile"]

# Names come from hetcli alone, never from an input file, and stay inside the directory.
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """One file of the directory."""

    name: str
    content: str
    executable: bool = False

    def __post_init__(self) -> None:
        if not _SAFE_NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a plain file name")


@dataclass(frozen=True)
class LaunchDirectory:
    """Everything that starts one plan on one framework, and the command that does it."""

    target: str
    target_version: str
    launcher: str
    files: Mapping[str, LaunchFile]
    command: str
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[LaunchFile]:
        return iter(self.files.values())

    def __getitem__(self, name: str) -> str:
        """The content of a file."""
        return self.files[name].content
