"""The figures of the benchmark as a table, and their place in README.md."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["REGRET", "table", "written"]

BEGIN = "<!-- figures: written by benchmarks/end_to_end.py -->"
END = "<!-- end of figures -->"
# A plan within this of the fastest one counts as the fastest.
REGRET = 0.03
# Two predictions of one plan differ by rounding only.
SAME = 1e-6


def table(figures: Mapping[str, Any]) -> str:
    """Markdown between its two marks; a part that was not run has no rows."""
    rows = [*_clusters(figures.get("clusters", {})), *_replan(figures), *_detection(figures)]
    body = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"{BEGIN}\n| figure | measured |\n|---|---|\n{body}\n{END}"


def _clusters(clusters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not clusters:
        return
    each = list(clusters.values())
    plans = [plan for cluster in each for plan in cluster["plans"]]
    errors = [abs(plan["predicted_s"] / plan["measured_s"] - 1) for plan in plans]
    good = sum(cluster["regret"] <= REGRET for cluster in each)
    where = f"{len(plans)} plans on {len(each)} emulated clusters"
    yield (
        f"step time, predicted against measured, {where}",
        f"mean error {statistics.mean(errors):.1%}, largest {max(errors):.1%}",
    )
    yield (
        f"planned configuration is the fastest measured one, or within {REGRET:.0%} of it",
        f"{good} of {len(each)} clusters, at most {max(c['regret'] for c in each):.1%} slower",
    )
    yield (
        "the search finds the best of all plans whose replicas do equal work (enumerated)",
        f"{sum(c['search_excess'] <= SAME for c in each)} of {len(each)} clusters, "
        f"at most {max(max(c['search_excess'], 0.0) for c in each):.1%} slower",
    )


def _replan(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "replan" not in figures:
        return
    found = figures["replan"]
    layers = ", ".join(map(str, found["layers"]))
    yield (
        "ResiHP's example: three stages of four layers, the middle one loses half its tensor group",
        f"layers {layers}; chosen plan {found['gain']:.2f} x the better of the two alternatives",
    )
    yield "planning 1,024 GPUs again when a node is lost", f"{found['seconds']:.2f} s"


def _detection(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "detection" not in figures:
        return
    found = figures["detection"]
    yield (
        "devices at 0.3 to 0.9 of their speed found, batches of skewed lengths (simulated)",
        f"{found['found']:.2%}, {found['false_alarms']:.2f} false alarms in 1,000 steps",
    )


def written(page: str, figures: str) -> str:
    """The page with its table made anew. Raises ValueError when it has no marks for one."""
    mark = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not mark.search(page):
        raise ValueError(f"no place for the figures: {BEGIN}")
    return mark.sub(lambda _: figures, page)
