"""What is to be trained and with what goal."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetcli.spec.base import ByteSize, Document

__all__ = ["AttentionKernel", "Objective", "Precision", "Pretrain", "RecomputeChoice"]

Precision = Literal["auto", "bf16", "fp16", "fp32", "fp8"]
AttentionKernel = Literal["auto", "flash", "unfused"]
RecomputeChoice = Literal["none", "selective", "full"]
Objective = Literal["throughput", "cost"]
Size = Annotated[int, Field(gt=0, le=2**40)]


class Pretrain(Document):
    """A pretraining job: one optimizer step reads `global_batch` sequences of `sequence` tokens."""

    kind: Literal["pretrain"] = "pretrain"
    global_batch: Size
    sequence: Size
    precision: Precision = "auto"
    optimizer: Literal["adam", "sgd"] = "adam"
    attention: AttentionKernel = "auto"
    # Bytes of every device that stay free, beyond what the model books.
    memory_margin: ByteSize = 1024**3
    objective: Objective = "throughput"
    tokens: Size | None = None
    mean_time_between_failures_s: float | None = Field(default=None, gt=0)
