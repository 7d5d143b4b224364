"""`hetcli report`: a plan as a page, as Markdown, as a trace, or in the terminal."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import UsageError

if TYPE_CHECKING:
    from hetcli.report.forms import Report


class Form(StrEnum):
    """What to write."""

    text = "text"
    html = "html"
    md = "md"
    trace = "trace"


_SUFFIXES = {".html": Form.html, ".htm": Form.html, ".md": Form.md, ".json": Form.trace}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "report")
    def report(
        output: Output,
        plan: Annotated[str, typer.Argument(metavar="PLAN", help="plan.json, or - for stdin.")],
        out: Annotated[
            list[str] | None,
            typer.Option(
                "-o",
                "--output",
                metavar="FILE",
                help="report.html, report.md or trace.json; may be repeated.",
            ),
        ] = None,
        form: Annotated[
            Form | None, typer.Option("--format", help="Default: what the file's suffix says.")
        ] = None,
        profile: Annotated[
            list[str] | None,
            typer.Option(
                "--profile", metavar="FILE", help="Show a profile.json too; may be repeated."
            ),
        ] = None,
        explanation: Annotated[
            str | None,
            typer.Option("--explanation", metavar="FILE", help="Show what hetcli explain wrote."),
        ] = None,
        what_if: Annotated[
            bool,
            typer.Option(
                "--what-if/--no-what-if",
                help="Search what other hardware would bring; no with --explanation.",
            ),
        ] = False,
        trial: Annotated[
            str | None,
            typer.Option("--trial", metavar="FILE", help="Show what hetcli trial measured."),
        ] = None,
        observation: Annotated[
            str | None,
            typer.Option(
                "--observation", metavar="FILE", help="Show what hetcli observe read in logs."
            ),
        ] = None,
    ) -> None:
        """Explain a plan: as one offline HTML file, Markdown, a Perfetto trace, or right here."""
        from hetcli.perf.resolve import resolve
        from hetcli.report.forms import Report
        from hetcli.search.explain import explain
        from hetcli.search.replay import replay
        from hetcli.spec.explanation import Explanation
        from hetcli.spec.observation import Observation
        from hetcli.spec.plan import Plan
        from hetcli.spec.profile import Profile
        from hetcli.spec.source import read_document
        from hetcli.spec.trial import Trial

        read = read_document(plan, Plan)
        hardware = resolve(read.inputs.cluster)
        explained = read_document(explanation, Explanation) if explanation else None
        # The terminal's form leaves this to `hetcli explain`.
        if explained is None and (what_if or output.json or _is_told(out, form)):
            explained = explain(read, what_if=what_if)
        made = Report(
            read,
            replay(read, hardware),
            hardware,
            profiles=tuple(read_document(each, Profile) for each in profile or ()),
            explanation=explained,
            trial=read_document(trial, Trial) if trial else None,
            observation=read_document(observation, Observation) if observation else None,
        )
        if made.disagreement:
            output.warn(made.disagreement)
        for path in out or ():
            output.save_text(path, _written(made, form or _form_of(path)))
        if not out and form in (None, Form.text):
            output.result(made.document, *made.view(verbose=output.verbose))
        elif not out and form is not None:
            output.write(_written(made, form))
        elif output.json:
            output.result(made.document)


def _is_told(paths: list[str] | None, form: Form | None) -> bool:
    """Whether a form is written that has room for what binds the plan."""
    forms = {form, *(_form_of(path) for path in paths or () if form is None)}
    return Form.html in forms or Form.md in forms


def _form_of(path: str) -> Form:
    form = Form.text if path == "-" else _SUFFIXES.get(Path(path).suffix.lower())
    if form is None:
        raise UsageError(
            f"-o {path}",
            why="the suffix does not say which form the report is to have",
            fix="name it .html, .md or .json (a trace), or give --format",
        )
    return form


def _written(made: Report, form: Form) -> str:
    if form is Form.html:
        return made.html()
    if form is Form.md:
        return made.markdown()
    return made.trace() if form is Form.trace else made.text()
