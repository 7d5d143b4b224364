"""What share of its data sheet a device reaches, and what a framework adds; data: efficiency.yaml.

Every term says from how many measurements it was fitted and where they were published. A device
without an entry of its own borrows from the nearest architecture, and the borrowed numbers are
marked `assumed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources

import yaml

from hetcli.catalog.gpu import Gpu
from hetcli.catalog.hardware import find_gpu
from hetcli.spec.base import Origin
from hetcli.spec.efficiency import Efficiency, EfficiencyTable, FrameworkCost, MatmulCurve, Term

__all__ = [
    "Efficiency",
    "EfficiencyTable",
    "FrameworkCost",
    "MatmulCurve",
    "Term",
    "efficiency_from",
    "efficiency_of",
    "framework_cost",
    "shipped_efficiency",
]


@cache
def shipped_efficiency() -> EfficiencyTable:
    """The table that comes with hetcli."""
    text = resources.files("hetcli.catalog").joinpath("efficiency.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return EfficiencyTable.model_validate(yaml.load(text, Loader=loader), strict=False)


def framework_cost(
    entries: Sequence[FrameworkCost], framework: str, release: str | None = None
) -> FrameworkCost:
    """The terms of a framework's release; without one, of its latest."""
    own = [entry for entry in entries if entry.name == framework]
    reached = [entry for entry in own if release is None or (entry.since or "") <= release]
    return max(reached or own, key=lambda entry: entry.since or "")


def efficiency_of(gpu: Gpu) -> Efficiency:
    """The GPU's own entry; what it lacks is borrowed from the nearest GPU and marked assumed.

    The nearest one is of the same vendor if any is, then of the nearest compute capability, then
    of the nearest peak.
    """
    return efficiency_from(gpu, shipped_efficiency().devices)


def efficiency_from(gpu: Gpu, entries: Sequence[Efficiency]) -> Efficiency:
    """`efficiency_of` over other entries than the shipped ones."""
    ranked = sorted(entries, key=lambda entry: _distance(gpu, find_gpu(entry.name)))
    nearest = ranked[0]
    own = nearest if nearest.name == gpu.name else _assumed(nearest)
    matmul, sustained = dict(own.matmul), dict(own.sustained)
    for dtype in gpu.peak_flops:
        for entry in ranked[1:]:
            if dtype in entry.matmul:
                matmul.setdefault(dtype, _assumed(entry).matmul[dtype])
            if dtype in entry.sustained:
                sustained.setdefault(dtype, _assumed(entry).sustained[dtype])
        if dtype not in matmul or dtype not in sustained:
            # Nobody measured it anywhere: the share of the 16-bit products is the best guess.
            stand_in = next(each for each in ("bf16", "fp16", *matmul) if each in matmul)
            matmul.setdefault(dtype, _assumed(own).matmul[stand_in])
            sustained.setdefault(dtype, _assumed(own).sustained[stand_in])
    return own.model_copy(update={"name": gpu.name, "matmul": matmul, "sustained": sustained})


def _distance(gpu: Gpu, other: Gpu) -> tuple[bool, bool, float, float, str]:
    def capability(entry: Gpu) -> float:
        return float(entry.compute_capability or 0)

    ratio = max(gpu.peak_flops.values()) / max(other.peak_flops.values())
    return (
        gpu.name != other.name,
        gpu.vendor != other.vendor,
        abs(capability(gpu) - capability(other)),
        abs(math.log(ratio)),
        other.name,
    )


def _assumed(entry: Efficiency) -> Efficiency:
    note = f"borrowed from {entry.name}"

    def term(own: Term) -> Term:
        return own.model_copy(update={"origin": Origin.ASSUMED, "rows": 0, "source": note})

    return Efficiency(
        name=entry.name,
        matmul={
            dtype: curve.model_copy(update={"origin": Origin.ASSUMED, "rows": 0, "source": note})
            for dtype, curve in entry.matmul.items()
        },
        sustained={dtype: term(own) for dtype, own in entry.sustained.items()},
        attention=term(entry.attention),
        attention_backward=term(entry.attention_backward),
        grouped=term(entry.grouped),
        streaming=term(entry.streaming),
    )
