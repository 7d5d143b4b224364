"""How a running profile is shown and kept: a bar on stderr, a file after every step."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hetcli.cli.output import Output
from hetcli.errors import OutputError, UsageError

if TYPE_CHECKING:
    from hetcli.probe.profiler import Listener
    from hetcli.spec.profile import Profile

__all__ = ["Kept", "keeping", "profile_files", "read_profiles", "save_profiles"]


@dataclass(frozen=True)
class Kept:
    """The listener of a profile that is being made, and what an earlier run left."""

    listener: Listener
    previous: Mapping[str, Profile]


@contextlib.contextmanager
def keeping(output: Output, out: str | None, *, several: bool, resume: bool) -> Iterator[Kept]:
    """Show progress and write what comes to `out`: one file, or a folder for several nodes."""
    from hetcli.probe.profiler import Listener

    if resume and out in {None, "-"}:
        raise UsageError(
            "--resume without a file", why="there is nothing to go on from", fix="give -o PATH"
        )
    folder = Path(out) if several and out else None
    if several and out == "-":
        raise _one_stream()
    previous = _previous(out, folder) if resume and out else {}
    finished: dict[str, Profile] = {}

    def save(profile: Profile) -> None:
        finished[profile.node] = profile
        if out is not None and out != "-":
            # A folder is made with its first file: a node that only serves another writes none.
            path = out if folder is None else str(_folder(out) / _file_name(profile.node))
            output.save(path, profile, quiet=True)

    with _bar(output) as (start, progress):
        yield Kept(Listener(save=save, start=start, progress=progress), previous)
    if out == "-":
        for profile in finished.values():
            output.save(out, profile)
    elif out is not None and finished:
        output.note(f"wrote {out}")


def _file_name(node: str) -> str:
    """A name for a node's file that stays inside its folder, whatever the node is called."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', node).lstrip('.') or '_'}.json"


def _previous(out: str, folder: Path | None) -> Mapping[str, Profile]:
    path = folder or Path(out)
    found = (
        read_profiles([str(path)])
        if path.exists() and (not folder or any(folder.iterdir()))
        else []
    )
    return {profile.node: profile for profile in found}


def read_profiles(arguments: Sequence[str]) -> list[Profile]:
    """The profiles in files and folders (`-`: standard input). Raises SpecError, UsageError."""
    from hetcli.spec.profile import Profile
    from hetcli.spec.source import read_document

    return [read_document(path, Profile) for path in _paths(arguments)]


def profile_files(arguments: Sequence[str], profiles: Sequence[Profile]) -> dict[str, str]:
    """Where each of the `profiles` of these arguments was read; standard input is no place."""
    pairs = zip(profiles, _paths(arguments), strict=True)
    return {profile.node: path for profile, path in pairs if path != "-"}


def save_profiles(output: Output, out: str, profiles: Sequence[Profile]) -> None:
    """Write one profile to a file (`-`: standard output), several into a folder."""
    if len(profiles) == 1:
        output.save(out, profiles[0])
        return
    folder = _folder(out)
    for profile in profiles:
        output.save(str(folder / _file_name(profile.node)), profile)


def _one_stream() -> UsageError:
    return UsageError(
        "-o - with several nodes", why="every node is a file", fix="name a folder: -o profiles"
    )


def _folder(out: str) -> Path:
    """The folder `out`, made if need be."""
    if out == "-":
        raise _one_stream()
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{out}: no folder can be made",
            why=error.strerror or "",
            fix="name a folder that may be written to",
        ) from None
    return Path(out)


def _paths(arguments: Sequence[str]) -> list[str]:
    paths: list[str] = []
    for argument in arguments:
        folder = Path(argument)
        inside = argument != "-" and "\0" not in argument and folder.is_dir()
        listed = sorted(str(path) for path in folder.glob("*.json")) if inside else [argument]
        if not listed:
            raise UsageError(
                f"no profile in {argument}",
                why="a folder of profiles holds one .json file a node",
                fix=f"hetcli profile -o {argument}/node.json",
            )
        paths += listed
    return paths


@contextlib.contextmanager
def _bar(
    output: Output,
) -> Iterator[tuple[Callable[[float], None], Callable[[str, float], None]]]:
    from hetcli.units import format_duration

    def announce(seconds: float) -> None:
        if seconds > 1:
            output.note(f"measuring takes about {format_duration(seconds)}")

    if output.quiet or not sys.stderr.isatty():
        yield announce, lambda _label, _share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield announce, lambda label, share: bar.update(task, description=label, completed=share)
