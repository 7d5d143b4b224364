"""`hetcli fit`: from profiles to rate and link curves, from runs to efficiencies."""

from __future__ import annotations

from pathlib import Path
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
            typer.Argument(
                metavar="PROFILE...",
                help="profile.json files, or folders of them; or one CSV of training runs.",
            ),
        ],
        out: Annotated[
            str | None,
            typer.Option(
                "-o",
                "--output",
                metavar="FILE",
                help="Write hardware.json (or efficiencies) here.",
            ),
        ] = None,
        name: Annotated[
            str, typer.Option("--name", help="What to call the hardware.")
        ] = "measured",
    ) -> ExitCode:
        """Fit rate and link curves, with residuals and their distance from the shipped ones.

        A CSV of training runs, as `hetcli validate` reads it, corrects the shipped efficiencies
        instead; the error to believe is that of runs whose source was left out of the fit.
        """
        if len(profiles) == 1 and profiles[0].endswith(".csv"):
            from hetcli.perf.validation.calibration import calibrate
            from hetcli.report.calibration import calibration_view

            calibration = calibrate(Path(profiles[0]))
            if out is not None:
                output.save(out, calibration.efficiency)
            if out != "-":
                output.result(calibration.document(), *calibration_view(calibration))
            return ExitCode.YES
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
