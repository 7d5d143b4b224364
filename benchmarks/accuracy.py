"""How far predictions are from runs that others measured: the whole error table.

    python benchmarks/accuracy.py            # the rows that ship in tests/published
    python benchmarks/accuracy.py FOLDER     # every published table; --readme rewrites the README's

FOLDER holds the tables that are too large, or not free, to ship: in measured/ homogeneous.csv,
homogeneous_vtrain_single.csv, heterogeneous.csv and megatron_ci.csv; in sailor/ measured.csv,
layer_profile.csv and network_coeffs_all_homo.json.
Rows that their own table calls noisy are not judged in time.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from hetcli.perf.validation.predict import RowResult, fits, runs_of
from hetcli.perf.validation.report import Validation, validate
from hetcli.perf.validation.statistics import Figures, figures
from hetcli.perf.validation.table import read_table

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "tests" / "published" / "training_runs.csv"
MARKS = ("<!-- accuracy: written by benchmarks/accuracy.py -->", "<!-- end of accuracy -->")
# The tables whose kinds of run the efficiencies were not fitted on.
UNFITTED = re.compile("AMP")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: what was measured, what is reached, what was aimed at."""

    data: str
    reached: str
    aim: str


def number(value: float | None, unit: str = " %") -> str:
    return "-" if value is None else f"{value:.1f}{unit}"


def spread(found: Figures) -> str:
    return (
        f"median {number(found.median_abs_pct)}, p90 {number(found.p90_abs_pct)}, "
        f"bias {found.bias_pct or 0:+.1f} % of {found.rows} runs"
    )


def mean(found: Figures, *, ranked: bool = False) -> str:
    text = (
        f"mean {number(found.mean_abs_pct)}, median {number(found.median_abs_pct)} "
        f"of {found.rows} runs"
    )
    return f"{text}, Spearman {found.spearman:.2f}" if ranked and found.spearman else text


def picked(results: Sequence[RowResult]) -> str:
    """How much longer the plan that the predictor likes best takes than the fastest measured."""
    timed = [each for each in results if each.measured_s and each.predicted_s]
    best = min(timed, key=lambda each: each.predicted_s or 0)
    fastest = min(each.measured_s or 0 for each in timed)
    return f"picks a plan {((best.measured_s or 0) / fastest - 1) * 100:.0f} % over the fastest"


def left_out() -> str:
    """The figures that benchmarks/fit_efficiency.py wrote beside the efficiencies it fitted."""
    text = resources.files("hetcli.catalog").joinpath("efficiency.yaml").read_text("utf-8")
    found = re.search(r"^# without its own publisher: (.*)$", text, re.MULTILINE)
    return found[1] if found else "-"


def sailor(folder: Path) -> Validation:
    return validate(
        folder / "measured.csv",
        layer_profile=folder / "layer_profile.csv",
        links=folder / "network_coeffs_all_homo.json",
    )


def lines(folder: Path) -> Iterator[Line]:
    runs = sailor(folder / "sailor")
    mixed = [each for each in runs.results if each.id.startswith("mit")]
    alike = [each for each in runs.results if not each.id.startswith("mit")]
    yield Line(
        "Sailor, mixed RTX cluster, layer profile given: step time",
        mean(figures(mixed), ranked=True),
        "mean 4 %",
    )
    yield Line("Sailor, GH200, layer profile given: step time", mean(figures(alike)), "mean 5 %")
    yield Line("Sailor, GH200: peak memory", mean(figures(alike, memory=True)), "mean 5 %")
    amp = [
        each
        for each in validate(folder / "measured" / "heterogeneous.csv").judged
        if "AMP" in each.source
    ]
    yield Line(
        "AMP, V100 and T4, no profile: step time",
        f"{mean(figures(amp), ranked=True)}; {picked(amp)}",
        "mean 15 %, Spearman 0.9, within 5 %",
    )
    whole = validate(folder / "measured" / "homogeneous.csv")
    fitted = [each for each in whole.judged if not UNFITTED.search(each.source)]
    aim = "median 8 %, p90 20 %, bias 3 %"
    yield Line("one GPU type, no profile: step time, as shipped", spread(figures(fitted)), aim)
    yield Line("the same, fitted without the run's own publisher", left_out(), aim)
    small = validate(folder / "measured" / "homogeneous_vtrain_single.csv")
    yield Line("vTrain, small models on one node: step time", spread(small.figures()), aim)
    tests = validate(folder / "measured" / "megatron_ci.csv")
    yield Line(
        "Megatron-LM's functional tests: peak memory",
        spread(tests.figures(memory=True)),
        "median 5 %",
    )
    yield Line(
        "BigScience and Sailor, one GPU type: peak memory",
        spread(whole.figures(memory=True)),
        "median 5 %",
    )
    died = [*whole.died, *tests.died]
    fits = [each.id for each in died if each.predicted_fits]
    yield Line(
        "runs that ran out of memory",
        f"{len(fits)} of {len(died)} predicted to fit ({', '.join(fits) or 'none'})",
        "none",
    )
    ran, refused = alive(folder / "measured")
    yield Line(
        "runs that ran, recomputation stated, nothing offloaded",
        f"{refused} of {ran} predicted not to fit",
        "informative",
    )


def alive(folder: Path) -> tuple[int, int]:
    """Runs that ended well and say what they recompute, and how many are predicted not to fit."""
    names = ("homogeneous", "homogeneous_vtrain_single", "heterogeneous")
    rows = [row for name in names for row in read_table(folder / f"{name}.csv")]
    stated = [row for row in rows if row.text("recompute") and not row.died]
    runs = [run for run in runs_of(stated)[0] if run.configuration.offload == "none"]
    found = {run.key: fits(run) for run in runs}
    return len(runs), sum(not found[run.key] for run in runs)


def table(rows: Sequence[Line]) -> str:
    body = "".join(f"| {row.data} | {row.reached} | {row.aim} |\n" for row in rows)
    return f"| runs that others measured | error of the prediction | aim |\n|---|---|---|\n{body}"


def rewritten(text: str, body: str) -> str:
    """The README with another table between the marks."""
    start, end = (re.escape(mark) for mark in MARKS)
    return re.sub(
        f"{start}.*?{end}",
        lambda _: f"{MARKS[0]}\n{body}{MARKS[1]}",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--readme", action="store_true", help="write the table into README.md")
    asked = parser.parse_args()
    shipped = validate(SHIPPED)
    found = [Line("rows in tests/published: step time", spread(shipped.figures()), "informative")]
    if asked.folder is not None:
        found += lines(asked.folder)
    made = table(found)
    sys.stdout.write(made)
    for name, each in shipped.by("source").items():
        sys.stdout.write(f"{name}: {spread(each)}\n")
    if asked.readme:
        readme = ROOT / "README.md"
        readme.write_text(rewritten(readme.read_text("utf-8"), made), "utf-8")


if __name__ == "__main__":
    main()
