"""How a command is registered: common options, and the one place where errors become exit codes."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from hetcli.cli.output import Output
from hetcli.errors import ExitCode, HetcliError

__all__ = ["command"]


class Color(StrEnum):
    """When to colour."""

    auto = "auto"
    always = "always"
    never = "never"


_COMMON = "Common options"
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "json": (
        Annotated[bool, typer.Option("--json", help="Print one JSON document.")],
        False,
    ),
    "quiet": (Annotated[bool, typer.Option("-q", "--quiet", help="Print no notes.")], False),
    "verbose": (Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")], False),
    "debug": (
        Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")],
        False,
    ),
    "color": (Annotated[Color, typer.Option("--color", help="Colour the output.")], Color.auto),
}


def command(
    app: typer.Typer, name: str, **settings: Any
) -> Callable[[Callable[..., ExitCode | None]], Callable[..., None]]:
    """Register `function(output, **options) -> ExitCode | None` as the command `name`.

    The common options are added behind the function's own; what they say arrives as `output`. A
    HetcliError is printed in three parts and ends the process with its exit code.
    """

    def register(function: Callable[..., ExitCode | None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**options: Any) -> None:
            common = {key: options.pop(key) for key in _OPTIONS}
            output = Output(**{**common, "color": str(common["color"])})
            raise typer.Exit(_guarded(output, functools.partial(function, output, **options)))

        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != "output"]
        added = [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for key, (annotation, default) in _OPTIONS.items()
        ]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        del run.__wrapped__
        app.command(name, **settings)(run)
        return run

    return register


def _guarded(output: Output, call: Callable[[], ExitCode | None]) -> int:
    try:
        code = call()
    except HetcliError as error:
        if output.debug:
            raise
        return int(output.error(error))
    except KeyboardInterrupt:
        if output.debug:
            raise
        sys.stderr.write("interrupted\n")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of stdout went away (`hetcli plan | head`): not an error of ours. Point stdout
        # elsewhere so that the interpreter's last flush does not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.YES)
    return int(code or ExitCode.YES)
