"""The frameworks that a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hetcli.export.deepspeed import target as deepspeed
from hetcli.export.flagscale import target as flagscale
from hetcli.export.generic import target as generic
from hetcli.export.megatron import target as megatron
from hetcli.export.placement import Placement
from hetcli.export.planned import Planned
from hetcli.export.program import Program
from hetcli.export.torchtitan import target as torchtitan

__all__ = ["TARGETS", "ExportTarget"]


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """A framework: the releases it is written for, and what makes its program of a plan.

    `program(planned, version)` raises UnsupportedByTargetError for a plan that it cannot run. The
    first of the launchers is the one that is taken when none is asked for.
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
        ExportTarget(
            "flagscale",
            "FlagScale",
            flagscale.VERSIONS,
            flagscale.DEFAULT_VERSION,
            ("flagscale",),
            flagscale.program,
        ),
        ExportTarget(
            "torchtitan",
            "torchtitan",
            torchtitan.VERSIONS,
            torchtitan.DEFAULT_VERSION,
            ("torchrun", "slurm", "kubernetes"),
            torchtitan.program,
        ),
        ExportTarget(
            "generic",
            "your own trainer",
            generic.VERSIONS,
            generic.DEFAULT_VERSION,
            ("torchrun", "slurm", "kubernetes"),
            generic.program,
        ),
    )
}
