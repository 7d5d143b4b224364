"""An observed run in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetcli.report.tables import heading, indented, table
from hetcli.spec.observation import Observation
from hetcli.spec.trial import Compared
from hetcli.units import format_bytes, format_count, format_duration

__all__ = ["observation_view"]


def observation_view(observation: Observation) -> Iterator[RenderableType]:
    """The answer, the logs, then who is to blame."""
    yield heading("Observed run" + (": it drifted from its plan" if observation.drift else ""))
    yield indented(_answer(observation))
    yield heading("Logs")
    yield indented(_logs(observation))
    if observation.slow_ranks:
        yield heading("Slow ranks")
        yield indented(_ranks(observation))
    if observation.corrections:
        yield heading("Corrections")
        yield indented(_corrections(observation))
    if observation.notes:
        yield heading("Notes")
        yield indented(Text("\n".join(f"- {note}" for note in observation.notes)))


def _answer(observation: Observation) -> Table:
    made = table("", "predicted", "measured", "error", numbers=("predicted", "measured", "error"))
    rows: list[tuple[str, Compared, object]] = [
        ("step", observation.step_time_s, format_duration),
        ("tokens/s", observation.tokens_per_s, format_count),
        ("peak memory", observation.peak_memory_bytes, format_bytes),
    ]
    for label, pair, show in rows:
        assert callable(show)
        made.add_row(
            label,
            "-" if pair.predicted is None else show(pair.predicted),
            "-" if pair.measured is None else show(pair.measured),
            "-" if pair.error is None else f"{pair.error:+.1%}",
        )
    return made


def _logs(observation: Observation) -> Table:
    numbers = ("iterations", "median", "95 %", "fastest")
    made = table("log", "format", *numbers, numbers=numbers)
    for log in observation.logs:
        times = (log.step_time_s, log.step_p95_s, log.step_minimum_s)
        made.add_row(
            log.source,
            log.format,
            f"{log.iterations} ({log.first_iteration}-{log.last_iteration})",
            *("-" if seconds is None else format_duration(seconds) for seconds in times),
        )
    return made


def _ranks(observation: Observation) -> Table:
    made = table("rank", "stage", "timer", "slower by", numbers=("rank", "stage", "slower by"))
    for each in observation.slow_ranks:
        made.add_row(str(each.rank), str(each.stage), each.timer, f"{each.slowness - 1:.0%}")
    return made


def _corrections(observation: Observation) -> Table:
    made = table("device", "compute time", "rows", numbers=("compute time", "rows"))
    for each in observation.corrections:
        letter = each.origin.letter
        made.add_row(each.device, f"x {each.factor:.3f} {letter}", str(each.rows))
    return made
