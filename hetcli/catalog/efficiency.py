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
from typing import Annotated, Literal

import yaml
from pydantic import Field

from hetcli.catalog.gpu import Dtype, Gpu
from hetcli.catalog.hardware import find_gpu
from hetcli.spec.base import Name, Origin, Record

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

NonNegative = Annotated[float, Field(ge=0)]
Rows = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class Term(Record):
    """One number with its origin; `rows` measurements stand behind a fitted one."""

    value: NonNegative
    origin: Origin
    rows: Rows = 0
    source: Text


class MatmulCurve(Record):
    """Seconds of the product of (m x k) by (k x n).

    2mnk/(peak x compute) + (left x mk + right x kn + output x mn)/(HBM rate) + launch_s: `left`,
    `right` and `output` are bytes an element that the arithmetic does not hide, for fp8 with the
    cast of the left operand. `residual` is the median absolute relative error on the `rows`
    products that it was fitted on. A card that boosts beyond its data sheet has more than 1.
    """

    compute: Annotated[float, Field(gt=0)]
    left: NonNegative
    right: NonNegative
    output: NonNegative
    launch_s: NonNegative
    residual: NonNegative | None = None
    rows: Rows = 0
    origin: Origin
    source: Text


class Efficiency(Record):
    """One device; `name` is a GPU of the catalogue.

    `sustained` is the rate of long training over that of the short benchmark behind `matmul` (a
    hot card clocks lower). `attention` and `attention_backward` are shares of the 16-bit peak that
    the fused kernel reaches on the causal half of the scores; `streaming` is the share of the HBM
    rate of elementwise kernels, `grouped` the rate of experts' products over that of dense ones.
    """

    name: Name
    matmul: dict[Dtype, MatmulCurve]
    sustained: dict[Dtype, Term]
    attention: Term
    attention_backward: Term
    grouped: Term
    streaming: Term


class FrameworkCost(Record):
    """What a training framework adds to the kernels' own work.

    `elementwise` is how often its norms, activations and residuals move the data over what fused
    kernels move; `weight_bytes` what a micro-batch moves for each weight besides the products
    (casts, gradient accumulation); `host_layer_s` the time that the host needs to launch a layer's
    forward pass: a device that is faster waits for it. `tensor_exposed` is the share of the
    tensor-parallel collectives that stays visible when they are overlapped with the products.
    `attention_after_ampere` is the rate of its attention kernel over the vendor's own on cards
    newer than the kernel. ZeRO-3 gathers reach the share `gather` of a link's rate, and the share
    `gather_exposed` of them delays the computation even where that is longer. `routed` multiplies
    what routed experts cost: routing, permutation, grouped products and their all-to-alls.

    A framework may have several entries: each holds from its release `since` on, the one without
    from the beginning.
    """

    name: Literal["megatron", "deepspeed", "fsdp"]
    since: Name | None = None
    elementwise: Term
    weight_bytes: Term
    host_layer_s: Term
    tensor_exposed: Term
    attention_after_ampere: Term
    gather: Term
    gather_exposed: Term
    routed: Term


class EfficiencyTable(Record):
    """Every device that something was fitted for, and every framework."""

    devices: tuple[Efficiency, ...]
    frameworks: tuple[FrameworkCost, ...]


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
