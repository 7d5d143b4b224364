"""FlagScale's process meshes, and the rules that hold between them.

Source: flagscale/train/arguments.py (pre_validate_args) and hetero/parallel_context.py of FlagScale
0.9, and the limits that pull request 395 of FlagScale states for expert parallelism. They are
checked when training starts, so they are checked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hetcli.export.planned import Planned
from hetcli.spec.model.architecture import Model
from hetcli.spec.plan import PlanStage

__all__ = ["Mesh", "mesh_gaps", "meshes", "shares_embedding"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Consecutive stages on one device type that are split alike."""

    device_type: str
    tensor_parallel: int
    data_parallel: int
    pipeline_parallel: int
    micro_batch_size: int
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1

    @property
    def degrees(self) -> tuple[int, int, int, int, int]:
        """The five numbers that `hetero_process_meshes` has of every mesh."""
        return (
            self.tensor_parallel,
            self.context_parallel,
            self.expert_parallel,
            self.data_parallel,
            self.pipeline_parallel,
        )


def meshes(planned: Planned) -> tuple[Mesh, ...]:
    """The meshes of a plan's stages, in their order."""
    degrees = planned.plan.parallelism

    def kind(stage: PlanStage) -> tuple[str, int, int, int]:
        types = sorted({planned.gpu_of(device.node).name for device in stage.devices})
        sizes = {replica.micro_batch_size for replica in stage.replicas}
        return "+".join(types), stage.tensor_parallel, len(stage.replicas), max(sizes)

    return tuple(
        Mesh(
            device_type,
            tensor,
            data,
            sum(1 for _ in stages),
            size,
            context_parallel=degrees.context_parallel,
            expert_parallel=degrees.expert_parallel,
            expert_tensor_parallel=degrees.expert_tensor_parallel,
        )
        for (device_type, tensor, data, size), stages in groupby(planned.plan.stages, key=kind)
    )


def shares_embedding(model: Model) -> bool:
    """Whether the last stage holds the embedding too: for the output, or for prediction layers."""
    return model.tied_embeddings or model.prediction_layers > 0


def mesh_gaps(
    found: Sequence[Mesh], model: Model, *, distributed_optimizer: bool
) -> Iterator[tuple[str, str, str]]:
    """What FlagScale refuses of some meshes: what, why, and the nearest that it takes."""
    first, last = found[0], found[-1]
    if any(mesh.context_parallel > 1 for mesh in found):
        yield (
            f"context_parallel {first.context_parallel} in meshes",
            "ParallelContext asserts a context parallelism of 1",
            "context_parallel 1",
        )
    for mesh in found:
        sequences = first.data_parallel * first.micro_batch_size
        if mesh.data_parallel * mesh.micro_batch_size != sequences:
            yield (
                f"{mesh.data_parallel} replicas x micro-batches of {mesh.micro_batch_size} behind "
                f"{first.data_parallel} x {first.micro_batch_size}",
                "the micro-batch of a mesh is that of the first, times its data parallelism, over "
                "the mesh's own",
                f"data parallelism that divides {sequences} in every mesh",
            )
    experts = {mesh.expert_parallel for mesh in found}
    if 1 in experts and len(experts) > 1:
        yield (
            f"expert_parallel {' and '.join(str(mesh.expert_parallel) for mesh in found)}",
            "either all meshes have an expert parallelism of 1 or none has",
            "expert_parallel 1 in all meshes, or more in all",
        )
    shared = shares_embedding(model)
    what = "prediction layers" if model.prediction_layers else "tied embeddings"
    if shared and first.tensor_parallel != last.tensor_parallel:
        yield (
            f"tensor_parallel {first.tensor_parallel} first and {last.tensor_parallel} last "
            f"with {what}",
            "the first and the last stage share the embedding, split in one way",
            "one tensor_parallel for both",
        )
    if (
        shared
        and distributed_optimizer
        and first.data_parallel % last.data_parallel
        and last.data_parallel % first.data_parallel
    ):
        yield (
            f"data_parallel {first.data_parallel} first and {last.data_parallel} last with {what}",
            "the gradients of the shared embedding are reduced partially: one must divide the "
            "other",
            "data parallelism of which one divides the other",
        )
    types = [name for name, _ in groupby(mesh.device_type for mesh in found)]
    if len(types) > len(set(types)) or any("+" in name for name in types):
        yield (
            f"stages on {', '.join(types)}",
            "FlagScale sorts hosts by device type, so the meshes of a type follow each other, and "
            "a mesh has one type",
            "all stages of a type one after the other",
        )
