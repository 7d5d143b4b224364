"""The command-line reference and the man page, both from the help texts of the commands.

`python docs/manual.py` rewrites docs/reference.md and docs/hetcli.1; `--check` only says whether
they are up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hetcli import __version__
from hetcli.cli import app
from hetcli.errors import ExitCode

DOCS = Path(__file__).resolve().parent
MARK = "<!-- commands: written by docs/manual.py -->\n"

EXIT_CODES = {
    ExitCode.YES: "the answer is yes",
    ExitCode.NO: "it ran, and the answer is no: nothing fits, the target cannot run the plan",
    ExitCode.USAGE: "the command line or a file is wrong",
    ExitCode.ENVIRONMENT: "the machine failed: no driver, a node unreachable, time is up",
    ExitCode.INTERRUPTED: "interrupted",
}


def commands() -> Iterator[tuple[str, Any, Any]]:
    """(name, command, context) of every command and of the commands of groups."""
    root = typer.main.get_command(app)
    yield from _below(root, root.make_context("hetcli", [], resilient_parsing=True))


def _below(group: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        own = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield own.command_path, command, own
        if hasattr(command, "list_commands"):
            yield from _below(command, own)


def options(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """(spelling, help) of every option and argument that has something to say."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield record
        elif parameter.param_type_name == "argument":
            yield parameter.make_metavar(context), getattr(parameter, "help", "") or ""


def paragraphs(command: Any) -> list[str]:
    """The help text, a line a paragraph."""
    text = (command.help or "").split("\f")[0].strip()
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def reference() -> str:
    """The commands as Markdown."""
    lines = []
    for path, command, context in commands():
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f"### {path}", "", *(f"{part}\n" for part in paragraphs(command))]
        lines += [f"`{path} {usage}`", "", "| option | meaning |", "|---|---|"]
        for spelling, text in options(command, context):
            cells = (spelling.replace("|", r"\|"), text.replace("|", r"\|").replace("<", "&lt;"))
            lines.append(f"| `{cells[0]}` | {cells[1]} |")
        lines.append("")
    return "\n".join(lines)


def man_page() -> str:
    """The same as a man page (roff, macros of man(7))."""
    root = typer.main.get_command(app)
    lines = [
        f'.TH HETCLI 1 "" "hetcli {__version__}" "User Commands"',
        ".SH NAME",
        r"hetcli \- plan the training of large models on clusters of unlike GPUs",
        ".SH SYNOPSIS",
        r".B hetcli",
        r"\fICOMMAND\fR [\fIOPTIONS\fR]",
        ".SH DESCRIPTION",
        *(_roff(part) for part in paragraphs(root)),
        ".SH COMMANDS",
    ]
    for path, command, context in commands():
        usage = " ".join(command.collect_usage_pieces(context))
        lines.append(f".SS {_roff(f'{path} {usage}')}")
        for part in paragraphs(command):
            lines += [_roff(part), ".PP"]
        for spelling, text in options(command, context):
            lines += [".TP", rf"\fB{_roff(spelling)}\fR", _roff(text) or "."]
    lines.append(".SH EXIT STATUS")
    for code, text in EXIT_CODES.items():
        lines += [".TP", rf"\fB{int(code)}\fR", _roff(text)]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Text that roff reads as it stands."""
    escaped = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped[:1] in (".", "'") else escaped


def main() -> int:
    """Write, or check; 1 when a check finds a stale file."""
    check = "--check" in sys.argv[1:]
    page = DOCS / "reference.md"
    head = page.read_text(encoding="utf-8").partition(MARK)[0]
    made = {page: f"{head}{MARK}\n{reference()}", DOCS / "hetcli.1": man_page()}
    stale = [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if not check:
            path.write_text(made[path], encoding="utf-8")
        print(f"{path.name}: {'stale' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
