"""What `hetcli export` says of a launch directory."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from hetcli.export import LaunchDirectory
from hetcli.export.readback import Checked
from hetcli.report.tables import heading, indented, pairs
from hetcli.spec.base import SCHEMA_VERSION

__all__ = ["checked_document", "checked_view", "launch_document", "launch_files", "launch_view"]


def launch_document(launch: LaunchDirectory, *, directory: str | None) -> dict[str, Any]:
    """The directory as plain data; `directory` is null when nothing was written."""
    return {
        "schema_version": SCHEMA_VERSION,
        "target": launch.target,
        "target_version": launch.target_version,
        "launcher": launch.launcher,
        "directory": directory,
        "command": launch.command,
        "files": [
            {"name": file.name, "executable": file.executable, "content": file.content}
            for file in launch
        ],
        "notes": list(launch.notes),
    }


def launch_view(launch: LaunchDirectory, directory: str) -> Iterator[RenderableType]:
    """What was written, and how to start it."""
    yield heading(f"{launch.target} {launch.target_version} with {launch.launcher}, in {directory}")
    yield indented(
        pairs(
            [
                ("files", ", ".join(file.name for file in launch)),
                ("start", f"cd {shlex.quote(directory)} && {launch.command}"),
                ("read first", f"{directory}/README.md"),
            ]
        )
    )
    if launch.notes:
        yield heading("Notes")
        yield indented(Text("\n".join(f"- {note}" for note in launch.notes)))


def launch_files(launch: LaunchDirectory) -> Text:
    """Every file in full, for `--dry-run`."""
    return Text("\n".join(f"==> {file.name} <==\n{file.content}" for file in launch))


def checked_document(checked: Checked, directory: str) -> dict[str, Any]:
    """What a directory was checked for, as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "directory": directory,
        "target": checked.target,
        "facts": checked.facts,
        "differences": list(checked.differences),
    }


def checked_view(checked: Checked, directory: str) -> Iterator[RenderableType]:
    """That a directory describes its plan."""
    yield Text(f"{directory} describes its plan.json: {checked.facts} facts agree")
