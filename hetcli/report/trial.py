"""A trial in the terminal: predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report.tables import heading, indented, table
from hetcli.spec.trial import Compared, Trial
from hetcli.units import format_bytes, format_duration

__all__ = ["trial_view"]

_DUST_S = 1e-12


def trial_view(trial: Trial) -> Iterator[RenderableType]:
    """The answer, then stage by stage, then device by device."""
    step = trial.step_time_s
    yield heading(f"{trial.model} on {trial.cluster}: {trial.steps} steps on {trial.processor}")
    yield indented(
        Text(
            f"predicted {_seconds(step.predicted)}, measured {_seconds(step.measured)} a step "
            f"(95 % within {format_duration(trial.step_p95_s)}): {_error(step)}\n"
            f"loss {trial.losses[0]:.4f} to {trial.losses[-1]:.4f}"
        )
    )
    yield heading("Stages, predicted / measured")
    yield indented(_stages(trial))
    yield heading("Devices, measured")
    yield indented(_devices(trial))
    if trial.notes:
        yield heading("Notes")
        yield indented(Text("\n".join(f"- {note}" for note in trial.notes)))


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    # Sums of floats leave dust where nothing is.
    return format_duration(value) if value > _DUST_S else "0 s"


def _error(pair: Compared) -> str:
    return "-" if pair.error is None else f"{pair.error:+.1%}"


def _both(pair: Compared) -> str:
    return f"{_seconds(pair.predicted)} / {_seconds(pair.measured)}"


def _stages(trial: Trial) -> Table:
    titles = ("forward", "backward", "sends", "waits", "gradient sync", "optimizer")
    made = table("stage", "layers", *titles, numbers=("stage", "layers"))
    for stage in trial.stages:
        pairs = (
            stage.forward_s,
            stage.backward_s,
            stage.sending_s,
            stage.waiting_s,
            stage.synchronisation_s,
            stage.optimizer_s,
        )
        made.add_row(str(stage.stage), str(stage.layers), *(_both(pair) for pair in pairs))
    return made


def _devices(trial: Trial) -> Table:
    columns = ("forward", "backward", "computes", "waits", "memory", "booked")
    made = table("device", "stage", *columns, numbers=("stage", *columns))
    for each in trial.devices:
        memory = each.peak_memory_bytes
        made.add_row(
            f"{each.device.node}:{each.device.index}",
            str(each.stage),
            format_duration(each.forward_s),
            format_duration(each.backward_s),
            format_duration(each.busy_s),
            format_duration(each.waiting_s),
            "-" if memory.measured is None else format_bytes(memory.measured),
            "-" if memory.predicted is None else format_bytes(memory.predicted),
        )
    return made
