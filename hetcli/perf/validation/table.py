"""Tables of measured training runs: one row a run, columns as the README describes them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hetcli.errors import SpecError

__all__ = ["Row", "SkippedRow", "parse_table", "read_table"]

# Flags that say why a row cannot be predicted (the data's own words).
_UNUSABLE = ("no_", "plan_mismatch", "suspect", "hybrid_mamba", "task_")
_REQUIRED = ("model", "seq_len", "tp", "pp", "global_batch")
# What may stand between cells; spreadsheets write semicolons where the comma is a decimal point.
_DELIMITERS = (",", ";", "\t", "|")
_INTEGER = re.compile(r"\d+(\.0*)?")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run; empty cells read as None."""

    line: int
    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's own name."""
        return self.cells["id"]

    @property
    def source(self) -> str:
        """Who measured it."""
        return self.cells["source"]

    @property
    def flags(self) -> tuple[str, ...]:
        """What the table says of the row's quality."""
        return tuple(re.split(r"[\s;,]+", self.text("flags") or ""))

    def text(self, column: str) -> str | None:
        """The cell, None when it is empty or the table has no such column."""
        return self.cells.get(column, "").strip() or None

    def number(self, column: str) -> float | None:
        """The cell as a number from zero on. Raises ValueError when it is none."""
        cell = self.text(column)
        if cell is None:
            return None
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise ValueError(f"{column} is {cell!r}, not a number from zero on")
        return value

    def integer(self, column: str) -> int | None:
        """The cell as a whole number. Raises ValueError when it is none."""
        cell = self.text(column)
        if cell is None:
            return None
        if not _INTEGER.fullmatch(cell):
            raise ValueError(f"{column} is {cell!r}, not a whole number")
        return int(float(cell))

    def need(self, column: str) -> int:
        """A whole number that must be there, and not be 0. Raises ValueError otherwise."""
        value = self.integer(column)
        if value is None:
            raise ValueError(f"{column} is not given")
        if value == 0:
            raise ValueError(f"{column} is 0")
        return value

    @property
    def died(self) -> bool:
        """Whether the run ran out of memory."""
        return "oom" in self.flags

    @property
    def unusable(self) -> str | None:
        """The flag, or the word of the note, that forbids to predict the row."""
        if "SUSPECT" in (self.text("notes") or ""):
            return "suspect"
        return next((flag for flag in self.flags if flag.startswith(_UNUSABLE)), None)


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that was not predicted, and why."""

    id: str
    source: str
    reason: str


def parse_table(text: str, name: str) -> list[Row]:
    """Rows of a table whose cells a comma, semicolon, tab or bar separates.

    A row without an `id` is called by its line, one without a `source` by the table's name. Raises
    SpecError when the table has not the columns needed.
    """
    heading = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=heading.count)
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter)
    columns = [column.strip() for column in reader.fieldnames or []]
    reader.fieldnames = columns
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise SpecError(
            f"{name}:1: the table has no column {', '.join(missing)}",
            why="a run is predicted from its model, sizes and parallel degrees",
            fix="name them in the first line: gpu, gpus, model, layers, hidden, seq_len, ...",
        )
    return list(_rows(reader, name))


def _rows(reader: csv.DictReader[str], name: str) -> Iterator[Row]:
    for record in reader:
        cells = {key: value or "" for key, value in record.items() if isinstance(key, str)}
        if not any(cell.strip() for cell in cells.values()):
            continue
        for column, otherwise in (("id", f"line {reader.line_num}"), ("source", name)):
            cells[column] = cells.get(column, "").strip() or otherwise
        yield Row(reader.line_num, cells)


def read_table(path: Path) -> list[Row]:
    """Rows of the table in a file. Raises SpecError when it cannot be read."""
    try:
        # Spreadsheets put a byte order mark in front.
        return parse_table(path.read_text("utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(
            f"{path} cannot be read as a table", why=str(error), fix="give a UTF-8 CSV file"
        ) from error
