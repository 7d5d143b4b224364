"""The folders that ship with hetcli: inside the package when installed, beside it in a checkout."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

__all__ = ["shipped_folder"]


@cache
def shipped_folder(name: str) -> Path:
    """`templates` or `sample_clusters`."""
    package = Path(str(resources.files("hetcli")))
    installed = package / name
    return installed if installed.is_dir() else package.parent / name
