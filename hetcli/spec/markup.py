"""Text to plain data with a line for every value: YAML and JSON, nothing executed, all bounded.

YAML is read by the core schema of YAML 1.2: `yes`, `1:30` and `2026-01-01` are text, only `true`
and `false` are truth values. PyYAML gives the events, and this module builds the data, so that
there is neither a constructor to attack nor a recursion to exhaust.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml

from hetcli.errors import SpecError

__all__ = ["MAX_DEPTH", "Mark", "is_plain_text", "json_marks", "parse_json", "parse_yaml"]

MAX_DEPTH: Final = 100
# What the document may grow to once its aliases are written out, in characters; a value counts as
# at least `_VALUE_COST` of them, which bounds the number of values too.
MAX_EXPANDED: Final = 64 * 2**20
_VALUE_COST: Final = 32
_LARGEST: Final = 2**63

# The C loader is ten times faster; both emit the same events.
_LOADER: Final[Any] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTH: Final = {
    word: value
    for value, name in ((True, "true"), (False, "false"))
    for word in (name, name.capitalize(), name.upper())
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_PAIR: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_JSON_NOT_FINITE: Final = re.compile(r"-?Infinity|NaN")


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a value stands: its line, counted from 1, and the marks of what it holds by key."""

    line: int
    children: dict[str | int, Mark] = field(default_factory=dict)


class _BadValueError(ValueError):
    """A value that is no data of ours, found where its line is not known."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.parts = (what, why, fix)


def _number(text: str) -> int | float | None:
    """The number that a plain scalar of YAML's core schema stands for, or None.

    Raises a ValueError with three parts for one that is not finite or needs more than 64 bits.
    """
    if _INTEGER.fullmatch(text):
        # Python refuses to convert thousands of digits; 25 are more than 64 bits can hold.
        whole = None if len(text) > 25 else int(text, 0 if text.startswith(("0o", "0x")) else 10)
        if whole is None or not -_LARGEST <= whole < _LARGEST:
            raise _BadValueError(
                f"a whole number of {len(text)} digits",
                "numbers have at most 64 bits",
                f"write a number below {_LARGEST}, or text in quotes",
            )
        return whole
    if _NOT_FINITE.fullmatch(text):
        raise _not_finite(text)
    if not _FLOAT.fullmatch(text):
        return None
    value = float(text)
    if not math.isfinite(value):
        raise _not_finite(text[:40])
    return value


def _not_finite(text: str) -> _BadValueError:
    return _BadValueError(
        text, "a quantity has a finite value", "write a number, or leave the key out"
    )


def _twice(key: str) -> _BadValueError:
    return _BadValueError(
        f"the key {key[:60]!r} stands twice",
        "only one of the two values could count",
        "remove one of them",
    )


def parse_json(text: str, label: str) -> Any:
    """The data of a JSON text. Raises SpecError for what is no JSON, and json.JSONDecodeError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            times = Counter(key for key, _ in pairs)
            raise _twice(next(key for key, count in times.items() if count > 1))
        return data

    def constant(name: str) -> NoReturn:
        raise _not_finite(name)

    try:
        return json.loads(
            text,
            object_pairs_hook=unique,
            parse_int=_number,
            parse_float=_number,
            parse_constant=constant,
        )
    except _BadValueError as bad:
        # json gives no position. The YAML reader finds the same fault with its line.
        json_marks(text, label)
        what, why, fix = bad.parts
        raise SpecError(f"{label}: {what}", why=why, fix=fix) from None
    except RecursionError:
        raise _too_deep(label) from None


def json_marks(text: str, label: str) -> Mark:
    """The lines of a JSON text. Raises SpecError as `parse_yaml` does."""

    def character(pair: re.Match[str]) -> str:
        return json.loads(f'"{pair[0]}"')  # type: ignore[no-any-return]

    # Where JSON is no YAML: tabs between tokens (there are none in its strings), and characters
    # beyond 16 bits that are written as two escapes.
    return _Builder(label, json=True).build(_PAIR.sub(character, text.replace("\t", " ")))[1]


def parse_yaml(text: str, label: str) -> tuple[Any, Mark]:
    """The data of a YAML text of one document, and the line of every value in it.

    Raises SpecError with the line: on bad syntax, a tag, a key that is no text or stands twice, an
    alias inside its own anchor, more than one document, a number that is not finite or beyond 64
    bits, and on nesting or aliases that expand beyond all measure.
    """
    return _Builder(label).build(text)


def _too_deep(where: str) -> SpecError:
    return SpecError(
        f"{where}: nested more than {MAX_DEPTH} levels deep",
        why="no format of hetcli is nested like that",
        fix="check the brackets, or the indentation",
    )


@dataclass(slots=True)
class _Open:
    """A mapping or list that has not ended; `start` is the size of the document before it."""

    value: dict[str, Any] | list[Any]
    mark: Mark
    anchor: str | None
    start: int
    key: str | None = None
    key_line: int = 0


@dataclass(slots=True)
class _Anchored:
    value: Any
    mark: Mark
    size: int


class _Builder:
    """Builds data and marks from events with a stack of its own instead of recursion."""

    def __init__(self, label: str, *, json: bool = False) -> None:
        self._label = label
        self._json = json
        self._stack: list[_Open] = []
        self._anchors: dict[str, _Anchored | None] = {}
        self._size = 0
        self._documents: list[tuple[Any, Mark]] = []

    def build(self, text: str) -> tuple[Any, Mark]:
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                self._read(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            if mark is not None and "nesting" in (error.problem or ""):
                raise _too_deep(f"{self._label}:{mark.line + 1}") from None
            self._refuse(
                mark.line + 1 if mark else 1,
                str(error.problem or error.context or "unreadable"),
                "this is not the syntax of YAML",
                "check indentation, quotes and colons at this line and the one before",
            )
        except yaml.YAMLError as error:
            # The reader's own errors, such as control characters, know an offset but no line.
            self._refuse(
                None, " ".join(str(error).split())[:200], "this is no text", "save as text"
            )
        if not self._documents:
            self._refuse(
                1, "the file is empty", "there is nothing to read", "write key: value lines"
            )
        return self._documents[0]

    def _refuse(self, line: int | None, what: str, why: str, fix: str) -> NoReturn:
        where = self._label if line is None else f"{self._label}:{line}"
        raise SpecError(f"{where}: {what}", why=why, fix=fix)

    def _read(self, event: Any) -> None:
        line = event.start_mark.line + 1
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._refuse(
                line,
                f"the tag {tag[:60]!r}",
                "a tag asks for a type, and only plain data is read",
                "remove the tag; put text in quotes",
            )
        if isinstance(event, yaml.ScalarEvent):
            start = self._size
            self._count(len(event.value), line)
            self._add(self._scalar(event, line), Mark(line), line, event.anchor, start)
        elif isinstance(event, yaml.MappingStartEvent):
            self._open({}, event, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open([], event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            done = self._stack.pop()
            self._add(done.value, done.mark, done.mark.line, done.anchor, done.start)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor, line)
        elif isinstance(event, yaml.DocumentStartEvent) and self._documents:
            self._refuse(
                line,
                "a second document begins",
                "a file holds one document",
                "split it at the --- line",
            )

    def _count(self, characters: int, line: int) -> None:
        self._size += max(characters, _VALUE_COST)
        if self._size > MAX_EXPANDED:
            self._refuse(
                line,
                f"the document grows beyond {MAX_EXPANDED // 2**20} MiB here",
                "aliases that multiply each other, or far too many values",
                "write fewer values; name equal nodes by one range",
            )

    def _open(self, value: dict[str, Any] | list[Any], event: Any, line: int) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise _too_deep(f"{self._label}:{line}")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._stack.append(_Open(value, Mark(line), event.anchor, self._size))
        self._count(0, line)

    def _alias(self, name: Any, line: int) -> None:
        if name not in self._anchors:
            self._refuse(line, f"*{name[:60]}", "no anchor of this name stands above", "name one")
        anchored = self._anchors[name]
        if anchored is None:
            self._refuse(
                line,
                f"*{name[:60]} stands inside its own anchor",
                "such a value would contain itself without end",
                "write the value out",
            )
        self._count(anchored.size, line)
        self._add(anchored.value, anchored.mark, line, None, 0)

    def _scalar(self, event: Any, line: int) -> Any:
        text: str = event.value
        if not event.implicit[0]:
            return text
        if text in _NULL:
            return None
        if text in _TRUTH:
            return _TRUTH[text]
        try:
            if self._json and _JSON_NOT_FINITE.fullmatch(text):
                raise _not_finite(text)
            value = _number(text)
        except _BadValueError as bad:
            self._refuse(line, *bad.parts)
        return text if value is None else value

    def _add(self, value: Any, mark: Mark, line: int, anchor: str | None, start: int) -> None:
        """Put a finished value into the container that is open, or make it the document."""
        if anchor is not None:
            self._anchors[anchor] = _Anchored(value, mark, self._size - start)
        if not self._stack:
            self._documents.append((value, mark))
            return
        parent = self._stack[-1]
        if isinstance(parent.value, list):
            parent.mark.children[len(parent.value)] = Mark(line, mark.children)
            parent.value.append(value)
        elif parent.key is None:
            if not isinstance(value, str):
                self._refuse(
                    line,
                    f"the key {_shown_key(value)}",
                    "keys are text",
                    "put the key in quotes, or check the indentation",
                )
            if value in parent.value:
                self._refuse(line, *_twice(value).parts)
            parent.key, parent.key_line = value, line
        else:
            parent.mark.children[parent.key] = Mark(parent.key_line, mark.children)
            parent.value[parent.key] = value
            parent.key = None


def _shown_key(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, dict | list) else "is a list or a mapping"


def is_plain_text(text: str) -> bool:
    """Whether a plain scalar of this text is read as text."""
    try:
        return text not in _NULL and text not in _TRUTH and _number(text) is None
    except _BadValueError:
        return False
