"""How long a plan takes to find, how good it is, and what peers publish for the same problems.

    python benchmarks/planning.py                      the clusters that are made here
    python benchmarks/planning.py --data DIR           Sailor's problems too, from its profiles
    python benchmarks/planning.py --only 1024          problems whose name contains that
    python benchmarks/planning.py --exhaustive 200     small clusters against brute force
    python benchmarks/planning.py --samples            the gap on the sample clusters
    python benchmarks/planning.py --readme             the table of all that into README.md

DIR holds layer_profile.csv, model_layers.csv, intra_node_bandwidths.json and
multizone_bandwidths_het.json of Sailor's artifact (eth-easl/sailor). Every problem runs in a
process of its own; times are of the search, imports apart. Beside seconds stands the machine's
unit, the processor seconds of a fixed calculation, so that runs on other machines compare. Sailor's
formulas score its rows; `with copies` is their stricter reading, in which every replica of a node
sends its own gradients. Nothing fails on time. What is found is kept in planning.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peers.quality import exhaustive, sample_gaps
from peers.record import keep, read, table, written
from peers.rows import rows

HERE = Path(__file__).resolve()
RECORD = HERE.with_name("planning.json")


def machine_unit() -> float:
    """Processor seconds of a fixed calculation, half of it in Python and half in NumPy."""
    start = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number * number % 7
    values = np.arange(1_000_000, dtype=np.float64)
    for _ in range(20):
        values = np.sort(np.sin(values))
    return time.process_time() - start


def solve(name: str, data: Path | None) -> None:
    """Solve one problem and print it as JSON: the child's part."""
    (row,) = [each for each in rows(data) if each.name == name]
    solved = row.solve()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**asdict(solved), "peak_bytes": peak, "unit_s": machine_unit()}))


def show(only: str, data: Path | None) -> None:
    """Solve every problem in a process of its own, print the table and keep it."""
    print(
        f"{'problem':34s} {'cpu s':>7s} {'wall s':>7s} {'units':>6s} {'of target':>9s} "
        f"{'gap':>6s} {'MB':>5s}  found / peers"
    )
    for row in rows(data):
        if only not in row.name:
            continue
        command = [sys.executable, str(HERE), "--solve", row.name]
        command += ["--data", str(data)] if data else []
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        if done.returncode:
            print(f"{row.name:34s} failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        found = json.loads(done.stdout)
        kept = {**found, "target_s": row.target_s, "peers": row.peers}
        keep(RECORD, "problems", {row.name: kept})
        gap = "-" if found["gap"] is None else f"{found['gap']:.2%}"
        reached = "" if found["reached"] is None else f" = {found['reached']:.2f} of the aim"
        print(
            f"{row.name:34s} {found['processor_s']:7.2f} {found['seconds']:7.2f} "
            f"{found['processor_s'] / found['unit_s']:6.1f} "
            f"{found['processor_s'] / row.target_s:8.1f}x {gap:>6s} "
            f"{found['peak_bytes'] / 1e6:5.0f}  {found['found']}{reached} / {row.peers}",
            flush=True,
        )


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with Sailor's profiles and links")
    parser.add_argument("--only", default="", help="part of a problem's name")
    parser.add_argument("--exhaustive", type=int, default=0, metavar="N", help="small clusters")
    parser.add_argument("--samples", action="store_true", help="gaps on the sample clusters")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    parser.add_argument("--solve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.solve:
        solve(given.solve, given.data)
    elif given.exhaustive:
        keep(RECORD, "exhaustive", exhaustive(given.exhaustive))
    elif given.samples:
        keep(RECORD, "samples", sample_gaps())
    elif given.readme:
        readme = HERE.parent.parent / "README.md"
        readme.write_text(written(readme.read_text("utf-8"), table(read(RECORD))), "utf-8")
    else:
        show(given.only, given.data)


if __name__ == "__main__":
    main()
