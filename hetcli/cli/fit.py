"""`hetcli fit`: from profiles to rate and link curves."""

from __future__ import annotations

from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.errors import ExitCode


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "fit")
    def fit(
        output: Output,
        profiles: Annotated[
            list[str],
            typer.Argument(metavar="PROFILE...", help="profile.json files, or folders of them."),
        ],
        out: Annotated[
            str | None,
            typer.Option("-o", "--output", metavar="FILE", help="Write hardware.json here."),
        ] = None,
        name: Annotated[
            str, typer.Option("--name", help="What to call the hardware.")
        ] = "measured",
    ) -> ExitCode:
        """Fit rate and link curves, with residuals and their distance from the shipped ones."""
        from hetcli.cli.progress import read_profiles
        from hetcli.perf.fitting.hardware import fit_profiles
        from hetcli.perf.fitting.links import fit_links
        from hetcli.probe.health import examine, slow_places
        from hetcli.probe.join import join_profiles
        from hetcli.report.findings import hardware_view

        read = join_profiles(read_profiles(profiles))
        findings = examine(read, fit_links(read))
        for finding in findings:
            output.warn(str(finding))
        hardware = fit_profiles(read, name=name, slow=slow_places(findings))
        if out is not None:
            output.save(out, hardware)
        if out != "-":
            output.result(hardware, *hardware_view(hardware))
        return ExitCode.YES
