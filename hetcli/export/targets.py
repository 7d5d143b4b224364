"""The frameworks that a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hetcli.export.deepspeed import target as deepspeed
from hetcli.export.megatron import target as megatron
from hetcli.export.placement import Placement
from hetcli.export.planned import Planned
from hetcli.export.program import Program

__all__ = ["TARGETS", "ExportTarget"]


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """A framework: the releases it is written for, and what makes its program of a plan.

    `program(planned, version)` raises UnsupportedByTargetError for a plan that it cannot run.
    """

    name: str
    title: str
    versions: tuple[str, ...]
    default_version: str
    launchers: tuple[str, ...]
    program: Callable[[Planned, str], tuple[Program, Placement]]


TARGETS: Final = {
    target.name: target
    for target in (
        ExportTarget(
            "megatron",
            "Megatron-LM core",
            megatron.VERSIONS,
            megatron.DEFAULT_VERSION,
            ("torchrun", "deepspeed", "slurm", "kubernetes"),
            megatron.program,
        ),
        ExportTarget(
            "deepspeed",
            "DeepSpeed",
            deepspeed.VERSIONS,
            deepspeed.DEFAULT_VERSION,
            ("torchrun", "deepspeed", "slurm", "kubernetes"),
            deepspeed.program,
        ),
    )
}
