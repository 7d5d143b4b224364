"""What the assignments of an exported shell script say. Nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Script", "options", "read_script"]

_SCALAR: Final = re.compile(r"(?:export )?([A-Z][A-Z0-9_]*)=(?!\()(.*)")
_ARRAY: Final = re.compile(r"([A-Z][A-Z0-9_]*)=\((.*)")


@dataclass(frozen=True, slots=True)
class Script:
    """The unconditional assignments of a script: plain variables and arrays, the last one wins."""

    values: Mapping[str, str]
    arrays: Mapping[str, tuple[str, ...]]


def read_script(text: str) -> Script:
    """The assignments that begin a line. Raises ValueError on a quote or array without an end."""
    values: dict[str, str] = {}
    arrays: dict[str, tuple[str, ...]] = {}
    lines = iter(text.splitlines())
    for line in lines:
        if match := _ARRAY.fullmatch(line):
            arrays[match[1]] = tuple(_words(match[2], lines, match[1]))
        elif match := _SCALAR.fullmatch(line):
            values[match[1]] = " ".join(shlex.split(match[2], comments=True))
    return Script(values, arrays)


def _words(first: str, lines: Iterator[str], name: str) -> list[str]:
    words: list[str] = []
    line = first
    while True:
        closed = line == ")" or (line.endswith(")") and line is first)
        words += shlex.split(line.removesuffix(")") if closed else line, comments=True)
        if closed:
            return words
        following = next(lines, None)
        if following is None:
            raise ValueError(f"the array {name} has no end")
        line = following


def options(words: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The values of every `--option`; as in argparse the last one of a name wins."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            current = [value] if equals else []
            found[name] = current
        else:
            current.append(word)
    return {name: tuple(values) for name, values in found.items()}
