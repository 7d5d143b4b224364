"""Read the files that users write, and write files whole or not at all.

Whatever a file holds, the answer is a validated record or a SpecError with file and line.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hetcli.errors import OutputError, SpecError
from hetcli.spec import markup
from hetcli.spec.base import Document
from hetcli.spec.complaint import Locator, complain

__all__ = [
    "MAX_BYTES",
    "dump_yaml",
    "parse_mapping",
    "read_document",
    "read_mapping",
    "read_text",
    "shown_path",
    "validate",
    "write_text_atomically",
]

# A plan for ten thousand GPUs is about a megabyte; what is larger than this is no file of ours.
MAX_BYTES: Final = 64 * 2**20

Format = TypeVar("Format", bound=BaseModel)


def read_document(argument: str | os.PathLike[str], kind: type[Format]) -> Format:
    """The record in a YAML or JSON file, or on standard input for `-`. Raises SpecError."""
    data, locator = read_mapping(argument)
    return validate(data, locator, kind)


def read_mapping(argument: str | os.PathLike[str]) -> tuple[dict[str, Any], Locator]:
    """The plain data of a YAML or JSON file (`-`: standard input) and where its values stand.

    All keys are text, all numbers finite and of 64 bits. Raises SpecError.
    """
    text, label = read_text(argument)
    return parse_mapping(text, label)


def parse_mapping(text: str, label: str) -> tuple[dict[str, Any], Locator]:
    """As `read_mapping`, for text that has been read already; errors call it `label`."""
    data, marks = _parse(text, label)
    locator = Locator(label, text, marks)
    if not isinstance(data, dict):
        raise SpecError(
            f"{locator.at()}: {_kind(data)} instead of a mapping",
            why="every format of hetcli is a mapping of keys to values",
            fix="write key: value lines; `hetcli schema` prints the formats",
        )
    return data, locator


def validate(data: dict[str, Any], locator: Locator, kind: type[Format]) -> Format:
    """The record of class `kind` that the data describes. Raises SpecError with the line."""
    try:
        # Strict validation turns JSON's arrays into tuples and its strings into enums, but not
        # those of Python data.
        payload = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        return kind.model_validate_json(payload)
    except ValidationError as error:
        raise complain(error, data, locator, kind) from None
    except UnicodeEncodeError:
        raise SpecError(
            f"{locator.label}: half of a surrogate pair (\\ud800 to \\udfff)",
            why="it stands for no character",
            fix="write the character itself, or both halves of the pair",
        ) from None


def read_text(argument: str | os.PathLike[str]) -> tuple[str, str]:
    """The text of a file (`-`: standard input) and the name to call it in errors.

    Raises SpecError when it cannot be read, is too large, or is no UTF-8 text.
    """
    path = os.fspath(argument)
    label = "<stdin>" if path == "-" else shown_path(path)
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(
            f"{label}: no such file",
            why="nothing can be read from it",
            fix=f"check the path; the current folder is {shown_path(os.getcwd())}",
        ) from None
    except IsADirectoryError:
        raise SpecError(
            f"{label}: a folder", why="a file is needed", fix="name a file in it"
        ) from None
    except (OSError, ValueError, AttributeError) as error:
        # ValueError: a zero byte in the path. AttributeError: standard input is closed.
        reason = error.strerror if isinstance(error, OSError) else None
        raise SpecError(
            f"{label}: unreadable",
            why=reason or "there is no such stream or path",
            fix="check the path and its permissions, or pass the text on standard input",
        ) from None
    if len(raw) > MAX_BYTES:
        raise SpecError(
            f"{label}: larger than {MAX_BYTES // 2**20} MiB",
            why="no file of hetcli is that large",
            fix="name the file that was meant",
        )
    return _decode(raw, label), label


def _decode(raw: bytes, label: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{label}:{line}: byte 0x{raw[error.start]:02x} at offset {error.start}",
            why="this is no UTF-8 text",
            fix="name a YAML or JSON file, or save it as UTF-8",
        ) from None
    if "\0" in text:
        offset = text.index("\0")
        raise SpecError(
            f"{label}:{text.count(chr(10), 0, offset) + 1}: a zero byte",
            why="this is a binary file, no text",
            fix="name a YAML or JSON file",
        )
    return text


def _parse(text: str, label: str) -> tuple[Any, markup.Mark | None]:
    """JSON where the name or the first character says so, else YAML."""
    named_json = label.endswith(".json")
    if named_json or text.lstrip().startswith("{"):
        try:
            return markup.parse_json(text, label), None
        except json.JSONDecodeError as error:
            if named_json:
                raise SpecError(
                    f"{label}:{error.lineno}: {error.msg} at column {error.colno}",
                    why="this is not the syntax of JSON",
                    fix="check commas, quotes and brackets at this line and the one before",
                ) from None
    return markup.parse_yaml(text, label)


def _kind(data: Any) -> str:
    if data is None:
        return "nothing"
    return "a list" if isinstance(data, list) else "a single value"


def shown_path(path: str) -> str:
    """A path as messages print it: escaped where it holds control characters."""
    return path if path.isprintable() else ascii(path)


def dump_yaml(document: BaseModel) -> str:
    """The YAML that `read_document` reads back to an equal record; what is default is left out."""
    data = document.model_dump(mode="json", exclude_defaults=True)
    if isinstance(document, Document):
        data = {"schema_version": document.schema_version, **data}
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


class _Dumper(yaml.SafeDumper):
    """Quotes every text that the core schema would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (PyYAML's signature)
        """Write equal values out, since an alias helps no reader."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    if markup.is_plain_text(value):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"')


_Dumper.add_representer(str, _text)


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write a file so that a reader sees the old content or all of the new.

    A device or pipe is written to directly. Raises OutputError.
    """
    target = Path(path)
    try:
        with suppress(FileNotFoundError):
            # A link is followed, so that it stays one.
            target = target.resolve(strict=True)
            if not stat.S_ISREG(target.stat().st_mode):
                target.write_text(text, encoding="utf-8")
                return
        _replace(target, text.encode())
    except (OSError, ValueError, RuntimeError) as error:
        # ValueError: a zero byte in the path, or half of a surrogate pair in the text.
        reason = error.strerror if isinstance(error, OSError) else None
        raise OutputError(
            f"{shown_path(str(path))}: cannot be written",
            why=reason or "the path or the text holds what no file can",
            fix="name a file in a folder that exists and may be written to",
        ) from None


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
