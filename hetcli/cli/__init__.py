"""The command line: one file a command, no arithmetic.

`main` is the console script. Commands import what they need when they run, so that `--help` and
`--version` answer at once and planning never imports torch or pynvml.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hetcli.cli import (
    compare,
    doctor,
    estimate,
    explain,
    export,
    fit,
    gpus,
    models,
    observe,
    plan,
    profile,
    replan,
    report,
    schema,
    trial,
    validate,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="hetcli",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for module in (
    profile,
    fit,
    plan,
    estimate,
    explain,
    export,
    trial,
    observe,
    replan,
    validate,
    report,
    compare,
    gpus,
    models,
    schema,
    doctor,
):
    module.register(app)


def _version(asked: bool) -> None:
    if asked:
        from hetcli import __version__

        typer.echo(f"hetcli {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Plan the training of large models on clusters whose GPUs and links are not all the same."""


def main() -> None:
    """Run the command line of this process; never returns."""
    sys.exit(app())
