"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = [
    "Attention",
    "ClusterOption",
    "GlobalBatch",
    "MemoryMargin",
    "ModelOption",
    "Objective",
    "Offload",
    "Precision",
    "Recompute",
    "Schedule",
    "SequenceLength",
    "Target",
    "WorkloadOption",
]


class Target(StrEnum):
    """The framework that the plan must run on."""

    megatron = "megatron"
    deepspeed = "deepspeed"


class Precision(StrEnum):
    """The training precision; auto takes the best that every used device has."""

    auto = "auto"
    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"
    fp8 = "fp8"


class Attention(StrEnum):
    """The attention kernel; auto takes the best that each device type has."""

    auto = "auto"
    flash = "flash"
    unfused = "unfused"


class Objective(StrEnum):
    """What the best plan is best in."""

    throughput = "throughput"
    cost = "cost"


class Recompute(StrEnum):
    """What the backward pass computes again."""

    none = "none"
    selective = "selective"
    full = "full"


class Schedule(StrEnum):
    """The pipeline schedule."""

    one_f_one_b = "1f1b"
    interleaved = "interleaved"


class Offload(StrEnum):
    """What lives in host memory."""

    none = "none"
    optimizer = "optimizer"
    optimizer_parameters = "optimizer+parameters"


ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="cluster.yaml, sample:NAME, A100:8+V100:8, or - for stdin.",
    ),
]
ModelOption = Annotated[
    str,
    typer.Option("--model", metavar="MODEL", help="A preset, a Hugging Face config.json, or -."),
]
WorkloadOption = Annotated[
    str | None,
    typer.Option("--workload", metavar="FILE", help="workload.yaml instead of the flags below."),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option(
        "--global-batch", "--gbs", min=1, help="Sequences of one optimizer step, over all devices."
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option("--seq-len", min=1, help="Tokens of one sequence (default: the model's maximum)."),
]
MemoryMargin = Annotated[
    str | None,
    typer.Option("--memory-margin", metavar="SIZE", help="Kept free on every device (1GiB)."),
]
