"""Which devices can compute in which precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from hetcli.catalog.gpu import Gpu
from hetcli.errors import InfeasibleError
from hetcli.perf.configuration import TrainingPrecision
from hetcli.perf.hardware import Node
from hetcli.perf.rules.numbers import listed

__all__ = ["check_precision", "nodes_without", "supports"]

# CUDA's compute capability from which a dtype has units of its own (CUDA C++ Programming Guide,
# "Arithmetic Instructions": bf16 from 8.0, fp8 from 8.9, fp16 tensor cores from 7.0).
MINIMUM_CAPABILITY: Final[dict[TrainingPrecision, str]] = {"bf16": "8.0", "fp8": "8.9"}


def supports(gpu: Gpu, precision: TrainingPrecision) -> bool:
    """Whether a device can train in `precision` with its own units."""
    return gpu.supports(precision)


def nodes_without(nodes: Iterable[Node], precision: TrainingPrecision) -> list[Node]:
    """The nodes whose devices lack `precision`."""
    return [node for node in nodes if not supports(node.device_type.gpu, precision)]


# Nodes that a message names.
_SHOWN_NODES = 8


def check_precision(nodes: Sequence[Node], precision: TrainingPrecision) -> None:
    """Check that every node can compute in one joint precision.

    Raises:
        InfeasibleError: naming the nodes that cannot.
    """
    lacking = nodes_without(nodes, precision)
    if not lacking:
        return
    shown = listed(node.name for node in lacking[:_SHOWN_NODES])
    if len(lacking) > _SHOWN_NODES:
        shown += f" and {len(lacking) - _SHOWN_NODES} more"
    gpus = {node.device_type.gpu.name: node.device_type.gpu for node in lacking}
    raise InfeasibleError(
        f"{precision} cannot run on {shown} ({listed(sorted(gpus))})",
        why=listed(_reason(gpus[name], precision) for name in sorted(gpus)),
        fix="--precision auto finds a joint precision or leaves those nodes out",
    )


def _reason(gpu: Gpu, precision: TrainingPrecision) -> str:
    needed = MINIMUM_CAPABILITY.get(precision)
    if gpu.vendor == "nvidia" and gpu.compute_capability and needed:
        has = gpu.compute_capability
        return f"{precision} needs compute capability {needed}, {gpu.name} has {has}"
    return f"{gpu.name} has no {precision} units"
