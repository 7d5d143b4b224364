"""What the planning benchmark found, kept in a file, and its table in the README."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["keep", "read", "table", "written"]

BEGIN = "<!-- planning: written by benchmarks/planning.py -->"
END = "<!-- end of planning -->"


def read(path: Path) -> dict[str, Any]:
    """The record; empty where there is none yet."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def keep(path: Path, part: str, found: Mapping[str, Any]) -> None:
    """Write one part of the record; problems that were not solved again keep what they had."""
    record = read(path)
    record[part] = {**record.get(part, {}), **found}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def table(record: Mapping[str, Any]) -> str:
    """Markdown between its two marks."""
    return "\n".join([BEGIN, *_lines(record), END])


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    yield "| problem | search, CPU s (units of this machine) | aim | gap | memory | found | peers |"
    yield "|---|---|---|---|---|---|---|"
    for name, row in record.get("problems", {}).items():
        gap = "-" if row["gap"] is None else f"{100 * row['gap']:.1f} %"
        reached = "" if row["reached"] is None else f"; {row['reached']:.2f} of the aim"
        yield (
            f"| {name} | {row['processor_s']:.2f} ({row['processor_s'] / row['unit_s']:.1f}) "
            f"| {row['target_s']:g} | {gap} | {row['peak_bytes'] / 1e6:.0f} MB "
            f"| {row['found']}{reached} | {row['peers']} |"
        )
    yield ""
    if small := record.get("exhaustive"):
        yield (
            f"On {small['clusters']} generated clusters small enough to look at every candidate (a "
            f"plan fits on {small['fits']} of them) {small['equal']} plans are the optimum, and "
            f"{small['bounds']} bounds are not above it."
        )
    if samples := record.get("samples"):
        yield (
            f"On the sample clusters ({samples['plans']} plans of {samples['models']} models) the "
            f"median gap is {100 * samples['median_gap']:.2f} %, the largest "
            f"{100 * samples['largest_gap']:.2f} %."
        )


def written(text: str, lines: str) -> str:
    """`text` with the table in place of the one between the marks."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert pattern.search(text), f"README.md has no {BEGIN}"
    return pattern.sub(lambda _: lines, text)
