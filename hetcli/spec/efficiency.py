"""efficiency.json: what share of its data sheet a device reaches, and what a framework adds.

Every term says from how many measurements it was fitted and where they were published.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Name, Origin, Record
from hetcli.spec.profile import ComputeDtype

__all__ = ["Efficiency", "EfficiencyTable", "FrameworkCost", "MatmulCurve", "Term"]

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
    matmul: dict[ComputeDtype, MatmulCurve]
    sustained: dict[ComputeDtype, Term]
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
