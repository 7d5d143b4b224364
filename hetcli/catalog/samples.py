"""The sample clusters that ship with hetcli, and what `--cluster` may say."""

from __future__ import annotations

import difflib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from hetcli.errors import SpecError, UnknownNameError
from hetcli.spec.cluster import Cluster
from hetcli.spec.quick import is_quick_cluster, parse_quick_cluster
from hetcli.spec.source import parse_mapping, read_document, validate

__all__ = ["open_sample", "read_cluster", "sample_names", "sample_text"]

_PREFIX: Final = "sample:"


def _folder() -> Traversable:
    """`sample_clusters/`: inside the package when installed, beside it in a checkout."""
    package = resources.files("hetcli")
    installed = package / "sample_clusters"
    if installed.is_dir():
        return installed
    return Path(str(package)).parent / "sample_clusters"


def sample_names() -> tuple[str, ...]:
    """The names of all sample clusters, sorted."""
    files = _folder().iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def sample_text(name: str) -> str:
    """The commented YAML of a sample cluster, to copy from. Raises UnknownNameError."""
    names = sample_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        raise UnknownNameError(
            f"sample cluster {name[:60]!r}",
            why="no sample of this name is shipped",
            fix=f"use {' or '.join(near)}" if near else f"the samples are {', '.join(names)}",
        )
    return (_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def open_sample(name: str) -> Cluster:
    """A sample cluster by its name. Raises UnknownNameError with the nearest names."""
    data, locator = parse_mapping(sample_text(name), f"{_PREFIX}{name}")
    return validate(data, locator, Cluster)


def read_cluster(argument: str) -> Cluster:
    """The cluster that an argument names.

    `sample:NAME`, a path, `-` for standard input, or a quick cluster such as `A100:8+V100:8`. An
    existing file wins over a quick cluster. Raises UsageError.
    """
    if argument.startswith(_PREFIX):
        return open_sample(argument.removeprefix(_PREFIX))
    if is_quick_cluster(argument) and not _exists(argument):
        return parse_quick_cluster(argument)
    try:
        return read_document(argument, Cluster)
    except SpecError as error:
        # A sample named without its prefix is the likeliest reason for a missing file.
        if argument in sample_names() and not _exists(argument):
            raise UnknownNameError(
                error.what, why=error.why, fix=f"write {_PREFIX}{argument}"
            ) from None
        raise


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
