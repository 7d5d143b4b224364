"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = [
    "LORA_RANK",
    "Attention",
    "AttentionOption",
    "ClusterOption",
    "ContextParallel",
    "DataParallel",
    "EfficiencyOption",
    "ExpertParallel",
    "ExpertTensorParallel",
    "GlobalBatch",
    "HardwareOption",
    "Lora",
    "LoraRank",
    "MemoryMargin",
    "MicroBatch",
    "ModelOption",
    "Objective",
    "ObjectiveOption",
    "Offload",
    "OffloadOption",
    "Out",
    "PipelineParallel",
    "Precision",
    "PrecisionOption",
    "Recompute",
    "RecomputeOption",
    "Schedule",
    "ScheduleOption",
    "SequenceLength",
    "Target",
    "TargetOption",
    "TensorParallel",
    "WorkloadOption",
    "ZeroStage",
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
HardwareOption = Annotated[
    str | None,
    typer.Option(
        "--hardware", metavar="FILE", help="Rates from hetcli fit or observe (hardware.json)."
    ),
]
EfficiencyOption = Annotated[
    str | None,
    typer.Option(
        "--efficiency", metavar="FILE", help="What hetcli fit RUNS.csv wrote, not the shipped."
    ),
]
ModelOption = Annotated[
    str,
    typer.Option("--model", metavar="MODEL", help="A preset, a Hugging Face config.json, or -."),
]
# Of the ranks that the paper tries (arXiv 2106.09685, table 6) the usual one.
LORA_RANK = 16
Lora = Annotated[
    bool,
    typer.Option("--lora", help="Train low-rank adapters instead of the model itself."),
]
LoraRank = Annotated[
    int | None,
    typer.Option(
        "--lora-rank", min=1, metavar="N", help=f"Their rank (default with --lora: {LORA_RANK})."
    ),
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


def _degree(kind: str, short: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        f"--{kind}-parallel",
        f"--{short}",
        min=1,
        metavar="N",
        help=f"{kind.replace('-', ' ').capitalize()} parallel degree.",
    )
    return option


TensorParallel = Annotated[int | None, _degree("tensor", "tp")]
PipelineParallel = Annotated[int | None, _degree("pipeline", "pp")]
DataParallel = Annotated[int | None, _degree("data", "dp")]
ContextParallel = Annotated[int | None, _degree("context", "cp")]
ExpertParallel = Annotated[int | None, _degree("expert", "ep")]
ExpertTensorParallel = Annotated[int | None, _degree("expert-tensor", "etp")]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        "--micro-batch", "--mbs", min=1, metavar="N", help="Sequences of one micro-batch."
    ),
]
PrecisionOption = Annotated[Precision | None, typer.Option("--precision")]
AttentionOption = Annotated[Attention | None, typer.Option("--attention")]
ObjectiveOption = Annotated[Objective | None, typer.Option("--objective")]
RecomputeOption = Annotated[Recompute | None, typer.Option("--recompute")]
ScheduleOption = Annotated[Schedule | None, typer.Option("--schedule")]
OffloadOption = Annotated[Offload | None, typer.Option("--offload")]
ZeroStage = Annotated[
    int | None,
    typer.Option(
        "--zero",
        min=0,
        max=3,
        metavar="STAGE",
        help="ZeRO stage; for Megatron-LM 1 is the distributed optimizer.",
    ),
]
TargetOption = Annotated[Target, typer.Option("--target", help="The framework that must run it.")]
Out = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="Write plan.json here.")
]
