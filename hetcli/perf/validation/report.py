"""A table of measured runs against the predictor: every figure that `hetcli validate` shows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hetcli.catalog.efficiency import EfficiencyTable
from hetcli.errors import SpecError, UsageError
from hetcli.perf.validation.fit import publisher
from hetcli.perf.validation.predict import RowResult, predict_rows, runs_of
from hetcli.perf.validation.sailor import (
    is_sailor,
    read_layer_profile,
    read_links,
    sailor_runs,
)
from hetcli.perf.validation.statistics import Figures, figures, groups
from hetcli.perf.validation.table import SkippedRow, parse_table

__all__ = ["GROUPINGS", "Validation", "validate"]

# What rows are told apart by, beside their group of the same model and cluster.
GROUPINGS: Mapping[str, Callable[[RowResult], str]] = {
    "source": lambda result: publisher(result.source),
    "gpu": lambda result: result.gpu,
    "framework": lambda result: result.framework,
    "group": lambda result: result.group,
}
WORST = 10


@dataclass(frozen=True)
class Validation:
    """All rows of a table: predicted ones with their errors, skipped ones with the reason.

    Figures of time leave out what the table itself calls noisy: it speaks of times.
    """

    results: tuple[RowResult, ...]
    skipped: tuple[SkippedRow, ...]

    @property
    def judged(self) -> list[RowResult]:
        """The results that count."""
        return [result for result in self.results if not result.noisy]

    @property
    def died(self) -> list[RowResult]:
        """Runs that had not enough memory."""
        return [result for result in self.results if result.out_of_memory]

    def figures(self, *, memory: bool = False) -> Figures:
        """Over all judged rows."""
        return figures(self.results if memory else self.judged, memory=memory)

    def worst(self, count: int = WORST) -> list[RowResult]:
        """The judged rows whose time is furthest off."""
        timed = [result for result in self.judged if result.time_error is not None]
        return sorted(timed, key=lambda result: -abs(result.time_error or 0.0))[:count]

    def by(self, grouping: str, *, memory: bool = False) -> dict[str, Figures]:
        """Figures of each member of one of `GROUPINGS`."""
        found = groups(self.results if memory else self.judged, GROUPINGS[grouping])
        return {name: figures(results, memory=memory) for name, results in found.items()}

    def document(self) -> dict[str, Any]:
        """Plain data: `time` and `memory`, the same per grouping, every row, every skipped row."""

        def section(*, memory: bool) -> dict[str, Any]:
            whole = asdict(self.figures(memory=memory)) | {"skipped": len(self.skipped)}
            parts = {
                f"by_{name}": {
                    key: asdict(each) for key, each in self.by(name, memory=memory).items()
                }
                for name in GROUPINGS
            }
            return whole | parts

        return {
            "schema_version": 1,
            "time": section(memory=False),
            "memory": section(memory=True),
            "out_of_memory": {
                "rows": len(self.died),
                "predicted_to_fit": [result.id for result in self.died if result.predicted_fits],
            },
            "rows": [asdict(result) for result in self.results],
            "skipped": [asdict(row) for row in self.skipped],
        }


def validate(
    path: Path,
    *,
    layer_profile: Path | None = None,
    links: Path | None = None,
    table: EfficiencyTable | None = None,
) -> Validation:
    """Predict every complete row of a table.

    Sailor's own `measured.csv` needs its layer profile and link fits. Raises SpecError for a file
    that cannot be read, UsageError when the profile or the links are missing.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path} cannot be read as a table", why=str(error), fix="give a UTF-8 CSV file"
        ) from error
    columns = next(csv.reader(io.StringIO(text)), [])
    if is_sailor(columns):
        if layer_profile is None or links is None:
            raise UsageError(
                f"{path} says which GPUs ran which layers, not how fast they are",
                why="its runs are predicted from measured layers and links",
                fix="add --layer-profile and --links with the files of the same artifact",
            )
        runs, skipped = sailor_runs(text, read_layer_profile(layer_profile), read_links(links))
    else:
        runs, skipped = runs_of(parse_table(text, str(path)))
    results, unpredicted = predict_rows(runs, table)
    return Validation(tuple(results), (*skipped, *unpredicted))
