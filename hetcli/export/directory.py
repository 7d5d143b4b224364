"""Writing a launch directory to disk: whole or not at all, and nothing outside it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from hetcli.errors import OutputError, UsageError
from hetcli.export.launch import LaunchDirectory, LaunchFile

__all__ = ["write_directory"]

# Scripts of nodes that a smaller plan no longer has.
_PER_NODE: Final = "run_node_*.sh"


def write_directory(launch: LaunchDirectory, path: str | Path, force: bool = False) -> Path:
    """Write all files of `launch` into the directory `path` and return it.

    A new directory appears in one step, with every file in it. Files of an existing one are
    replaced one by one, only with `force`; other files there are left alone, except scripts of
    nodes that are no longer planned.

    Raises:
        UsageError: something would be overwritten, or `path` is no directory.
        OutputError: the disk refused.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise UsageError(
            f"{target} is not a directory",
            why="a launch directory holds several files",
            fix="name a directory that exists or is to be made",
        )
    present = _conflicts(launch, target) if target.is_dir() else []
    if present and not force:
        shown = ", ".join(present[:4]) + (", ..." if len(present) > 4 else "")
        raise UsageError(
            f"{target} already holds {shown}",
            why="hetcli overwrites nothing on its own",
            fix="--force, or another --output",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            for file in launch:
                _write(staging / file.name, file)
            _publish(launch, staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            f"{target} cannot be written",
            why=str(error),
            fix="a directory with room and write permission",
        ) from error
    return target


def _conflicts(launch: LaunchDirectory, target: Path) -> list[str]:
    stale = {path.name for path in target.glob(_PER_NODE)}
    planned = {file.name for file in launch if os.path.lexists(target / file.name)}
    return sorted(stale | planned)


def _write(path: Path, file: LaunchFile) -> None:
    path.write_text(file.content, encoding="utf-8", newline="\n")
    path.chmod(0o755 if file.executable else 0o644)


def _publish(launch: LaunchDirectory, staging: Path, target: Path) -> None:
    if not target.exists():
        staging.chmod(0o755)
        staging.rename(target)
        return
    for file in launch:
        (staging / file.name).replace(target / file.name)
    for old in target.glob(_PER_NODE):
        if old.name not in launch.files:
            old.unlink()
