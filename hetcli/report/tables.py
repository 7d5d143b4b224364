"""One look for every table of the terminal: no boxes, numbers to the right, 100 columns."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = ["heading", "indented", "pairs", "table"]


def table(*columns: str, numbers: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """An empty table with these columns.

    Those in `numbers` are aligned to the right; these and those in `whole` are never broken.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        right = column in numbers
        made.add_column(
            column,
            justify="right" if right else "left",
            no_wrap=right or column in whole,
            overflow="fold",
        )
    return made


def pairs(rows: list[tuple[str, str]]) -> Table:
    """Two columns: a label and what it says."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for label, value in rows:
        made.add_row(Text(label), Text(value))
    return made


def heading(text: str) -> Text:
    """A line above a section."""
    return Text(text, style="bold")


def indented(renderable: RenderableType) -> Padding:
    """The same, two columns to the right, with an empty line below."""
    return Padding(renderable, (0, 0, 1, 2))
