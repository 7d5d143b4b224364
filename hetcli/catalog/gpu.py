"""One accelerator as its data sheet states it; dense peaks, SI base units."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import Name, Origin, Record

__all__ = ["Dtype", "Gpu"]

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Positive = Annotated[float, Field(gt=0)]


class Gpu(Record):
    """A GPU model. A peak that is missing from `peak_flops` is a dtype the card does not have.

    `usable_flops` is the peak that shares of the peak apply to where measurements show that the
    data sheet's can't be held (power-limited cards such as L4 and T4); gpus.yaml says how it is
    found. `memory_bytes` is what the driver offers to programs.
    """

    name: Name
    aliases: tuple[Name, ...] = ()
    vendor: Literal["nvidia", "amd", "huawei", "intel", "cpu", "unknown"]
    architecture: Name
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    memory_bytes: Annotated[int, Field(gt=0)]
    memory_bytes_per_s: Positive
    peak_flops: dict[Dtype, Positive]
    usable_flops: dict[Dtype, Positive] = Field(default_factory=dict)
    # Key into the link catalogue for devices of one node.
    intra_link: Name
    # Data sheet or assumed, where sources disagree or only a secondary one exists.
    origin: Origin = Origin.DATASHEET
    tdp_w: Positive | None = None
    price_per_hour: Positive | None = None
    flash_attention: bool
    multiprocessors: Annotated[int, Field(gt=0)] | None = None
    source: Annotated[str, Field(min_length=1)]
    notes: str = ""

    def supports(self, dtype: Dtype) -> bool:
        """Whether the card computes in `dtype` with its own units."""
        return dtype in self.peak_flops
