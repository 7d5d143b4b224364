"""Measure, plan and run on emulated mixed clusters: does the promised time come true?

    python benchmarks/end_to_end.py                          everything, about 25 minutes
    python benchmarks/end_to_end.py --parts replan,detection without running any plan, one minute
    python benchmarks/end_to_end.py --parts clusters --first 3 --clusters 1     one drawn cluster
    python benchmarks/end_to_end.py --parts '' --write        only the table, from what was kept
    python benchmarks/end_to_end.py --short                  two nodes, all splits, half a minute

Every node is a network namespace with a shaped link, every device a process that does the real
arithmetic and then waits until the emulated device would be done (`testbed`). Its layers, links and
gradient sums are measured, every plan of the space is predicted from that, and the best ones and a
sample of the others are run by the trial runtime. Without root: over loopback, links unshaped.

Figures are collected in end_to_end.json, part by part; `--write` puts their table into README.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbed.batches import false_alarms, found
from testbed.driving import run
from testbed.failures import replan_figures
from testbed.outcome import Outcome
from testbed.scenarios import SHORT, draw
from testbed.table import table, written

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "benchmarks" / "end_to_end.json"
PARTS = ("replan", "detection", "clusters")


def show(outcome: Outcome, *, verbose: bool) -> None:
    """One line, and with `verbose` one a plan."""
    print(
        f"{outcome.name:10s} {len(outcome.rows):3d} of {outcome.candidates:5d} plans run  "
        f"mean error {outcome.mean_error:6.2%}  largest {outcome.largest_error:6.2%}  "
        f"rank correlation {outcome.rank_correlation:.3f}  "
        f"planned slower than fastest by {outcome.regret:.2%}  "
        f"loss curves {outcome.loss_curves}  {outcome.seconds:.0f} s  "
        f"{'' if outcome.realtime else 'no real-time priority  '}"
        f"load {outcome.load:.1f}",
        flush=True,
    )
    if verbose:
        for row in sorted(outcome.rows, key=lambda each: each.measured_s):
            print(
                f"    {row.predicted_s * 1e3:8.1f} ms predicted {row.measured_s * 1e3:8.1f} ms "
                f"measured {row.error:+7.2%}  {row.name}"
            )


def detection_figures() -> dict[str, float]:
    """Of simulated devices at 0.3 to 0.9 of their speed, and of healthy ones."""
    dice = random.Random(0)
    return {"found": found(dice, 300), "false_alarms": false_alarms(dice, 50, 1000)}


def read(path: Path) -> dict[str, Any]:
    """The figures so far."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known


def keep(path: Path, part: str, figures: Mapping[str, object]) -> None:
    """Put new figures beside those of other parts, and of other clusters."""
    known = read(path)
    known[part] = {**known.get(part, {}), **figures}
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="two nodes, all splits")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--clusters", type=int, default=10, help="clusters to draw")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--plans", type=int, default=24, help="plans to run on each at most")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--json", type=Path, default=FIGURES, metavar="FILE")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    parts = [part for part in options.parts.split(",") if part]
    if unknown := set(parts) - set(PARTS):
        parser.error(
            f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}"
        )
    if options.short:
        outcome = run(SHORT, most=options.plans, steps=options.steps, verbose=options.verbose)
        show(outcome, verbose=options.verbose)
        keep(options.json, "short", outcome.figures())
        return
    if "replan" in parts:
        keep(options.json, "replan", replan_figures())
    if "detection" in parts:
        keep(options.json, "detection", detection_figures())
    if "clusters" in parts:
        for seed in range(options.first, options.first + options.clusters):
            scenario = draw(seed)
            outcome = run(
                scenario, most=options.plans, steps=options.steps, verbose=options.verbose
            )
            show(outcome, verbose=options.verbose)
            keep(options.json, "clusters", {scenario.name: outcome.figures()})
    print(table(read(options.json)))
    if options.write:
        readme = ROOT / "README.md"
        readme.write_text(written(readme.read_text(), table(read(options.json))))


if __name__ == "__main__":
    main()
