"""Log files from disk or stdin."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from hetcli.adapt.logs import Log, read_log
from hetcli.errors import SpecError

__all__ = ["read_logs"]

# Nothing that a training framework prints is longer; what is, is cut.
_LONGEST_LINE = 20_000


def read_logs(names: Sequence[str]) -> list[tuple[str, Log]]:
    """Each log with its name. Raises SpecError for one that cannot be read or has no iteration."""
    return [(name, _read(name)) for name in names]


def _read(name: str) -> Log:
    try:
        if name == "-":
            found = _lines(sys.stdin)
        else:
            with Path(name).open(encoding="utf-8", errors="replace") as stream:
                found = _lines(stream)
    except OSError as error:
        raise SpecError(f"{name}: cannot be read", why=str(error)) from error
    if found is None:
        raise SpecError(
            f"{name}: no iteration with a time in it",
            why="no line is one that Megatron-LM, DeepSpeed, torchtitan or NeMo print",
            fix="give the log of the rank that prints (Megatron-LM: the last one), and let the "
            "framework log throughput",
        )
    return found


def _lines(stream: TextIO) -> Log | None:
    return read_log(line[:_LONGEST_LINE] for line in stream)
