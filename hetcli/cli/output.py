"""Where a command's words go: the result to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hetcli.errors import ExitCode, HetcliError, OutputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Output"]

WIDTH = 100


@dataclass(frozen=True)
class Output:
    """What the common options ask for. The content is the same on and off a terminal."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    color: Literal["auto", "always", "never"] = "auto"

    def _console(self, *, stderr: bool) -> Console:
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        return Console(
            file=stream,
            width=WIDTH,
            force_terminal=self._force_color(),
            no_color=True if self.color == "never" or os.environ.get("NO_COLOR") else None,
            highlight=False,
            soft_wrap=False,
            emoji=False,
        )

    def _force_color(self) -> bool | None:
        if self.color == "always":
            return True
        if self.color == "never":
            return False
        return True if os.environ.get("FORCE_COLOR") else None

    def result(self, document: Any, *renderables: RenderableType) -> None:
        """Print the result: `document` as JSON with `--json`, otherwise the renderables.

        `document` is a pydantic model or plain data.
        """
        if self.json:
            self.write(_as_json(document))
            return
        console = self._console(stderr=False)
        with console.capture() as captured:
            for renderable in renderables:
                console.print(renderable)
        # Tables fill their width with blanks, which only get in the way of a pipe or a paste.
        self.write("\n".join(line.rstrip() for line in captured.get().rstrip().split("\n")))

    def write(self, text: str) -> None:
        """Print `text` to stdout as it is, with one newline at the end."""
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")

    def note(self, text: str) -> None:
        """Say something beside the result, unless `--quiet`."""
        if not self.quiet:
            self._console(stderr=True).print(text, markup=False, style="dim", soft_wrap=True)

    def warn(self, text: str) -> None:
        """Say something that the user should act on; also with `--quiet`."""
        self._console(stderr=True).print(
            f"warning: {text}", markup=False, style="yellow", soft_wrap=True
        )

    def error(self, error: HetcliError) -> ExitCode:
        """Print the three parts of an expected failure; returns the exit code."""
        console = self._console(stderr=True)
        console.print(f"error: {error.what}", markup=False, style="bold red", soft_wrap=True)
        if error.why:
            console.print(f"  why: {error.why}", markup=False, soft_wrap=True)
        if error.fix:
            console.print(f"  try: {error.fix}", markup=False, soft_wrap=True)
        return error.exit_code

    def save(self, path: str, document: Any, *, quiet: bool = False) -> None:
        """Write a document as JSON to `path`, or to stdout when it is `-`."""
        self.save_text(path, _as_json(document), quiet=quiet)

    def save_text(self, path: str, text: str, *, quiet: bool = False) -> None:
        """Write text to `path`, or to stdout when it is `-`."""
        if path == "-":
            self.write(text)
            return
        from hetcli.spec.source import write_text_atomically

        write_text_atomically(path, text)
        if not quiet:
            self.note(f"wrote {path}")


def _as_json(document: Any) -> str:
    if hasattr(document, "model_dump_json"):
        text: str = document.model_dump_json(indent=2)
        return text + "\n"
    try:
        return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    except ValueError as error:
        raise OutputError("the result holds a number that JSON cannot", why=str(error)) from error
