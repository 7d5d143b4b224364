"""Jinja2 templates of the launch directory, with the filters that keep hostile names harmless."""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2

__all__ = ["render_template", "template_text"]


def render_template(name: str, /, **values: object) -> str:
    """The template `name` filled in. An undefined variable is an error."""
    return _environment().get_template(name).render(**values)


def template_text(name: str) -> str:
    """A shipped file that is copied as it is."""
    return (_root() / name).read_text(encoding="utf-8")


@cache
def _root() -> Path:
    """The templates inside the package when installed, beside it in a checkout."""
    package = Path(str(resources.files("hetcli")))
    installed = package / "templates"
    return installed if installed.is_dir() else package.parent / "templates"


@cache
def _environment() -> jinja2.Environment:
    # The output is shell and Markdown: HTML escaping would break it, the filters below quote.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_root()),
        undefined=jinja2.StrictUndefined,
        # `{#` is the length of a shell array.
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["shell"] = shell
    environment.filters["quoted"] = quoted
    environment.filters["comment"] = comment
    environment.filters["code"] = code
    return environment


def shell(value: object) -> str:
    """One word of a shell command."""
    return shlex.quote(str(value))


def quoted(value: object) -> str:
    """One word of a shell command, in quotes even where it needs none."""
    word = shell(value)
    return word if word.startswith("'") else f"'{word}'"


def comment(value: object) -> str:
    """Text for the rest of a `#` line: what could end the line is written as an escape."""
    return str(value).encode("unicode_escape").decode("ascii")


def code(value: object) -> str:
    """A Markdown code span that its content cannot leave, also inside a table."""
    text = comment(value).replace("|", r"\|")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {text} {ticks}" if longest else f"`{text}`"
