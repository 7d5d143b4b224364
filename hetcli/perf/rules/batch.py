"""How a batch is cut into micro-batches, and layers into stages."""

from __future__ import annotations

from collections.abc import Sequence

from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.perf.rules.numbers import divisors, listed, multiples_around, nearest

__all__ = [
    "check_batch",
    "check_interleaving",
    "check_micro_batch_count",
    "check_pipeline",
    "check_stage_layers",
    "interleaving_is_legal",
    "legal_batches",
]


def legal_batches(global_batch: int, samples: int) -> list[int]:
    """The global batches nearest to `global_batch` that are multiples of mbs x dp = `samples`."""
    return (
        [global_batch] if global_batch % samples == 0 else multiples_around(global_batch, samples)
    )


def check_batch(global_batch: int, micro_batch_size: int, data_parallel: int) -> int:
    """Return the micro-batches of one replica: gbs = mbs x dp x accumulation, exactly.

    Raises:
        InfeasibleError: with the nearest legal global batches; hetcli never changes it on its own.
    """
    samples = micro_batch_size * data_parallel
    if global_batch % samples:
        legal = [
            f"{batch} (accumulation {batch // samples})"
            for batch in legal_batches(global_batch, samples)
        ]
        raise InfeasibleError(
            f"global batch {global_batch} is not a multiple of micro_batch_size "
            f"{micro_batch_size} x data_parallel {data_parallel}",
            why=f"{global_batch} % {samples} = {global_batch % samples}",
            fix=f"the nearest legal global batches are {' and '.join(legal)}",
        )
    return global_batch // samples


def check_micro_batch_count(local_batch: int, micro_batches: int) -> int:
    """Return the micro-batch size when a replica's batch is cut into `micro_batches` equal parts.

    Raises:
        ConfigurationError: the parts would be unequal (PyTorch's pipeline then fails at the loss:
            pytorch/pytorch#126600).
    """
    if local_batch % micro_batches:
        counts = nearest(divisors(local_batch), micro_batches)
        batches = multiples_around(local_batch, micro_batches)
        raise ConfigurationError(
            f"a local batch of {local_batch} cannot be cut into {micro_batches} micro-batches",
            why=f"{local_batch} % {micro_batches} = {local_batch % micro_batches}",
            fix=(
                f"{' or '.join(map(str, counts))} micro-batches, "
                f"or a local batch of {' or '.join(map(str, batches))}"
            ),
        )
    return local_batch // micro_batches


def check_pipeline(
    *,
    pipeline_parallel: int,
    global_batch: int,
    micro_batch_size: int,
    data_parallel: int,
    layers: int,
) -> None:
    """Check that every stage has work: a layer to hold, and a micro-batch while others compute.

    Only the first and the last stage may be without a decoder layer (embedding or head alone).

    Raises:
        InfeasibleError: with the global batch, or the number of stages, that works.
    """
    if pipeline_parallel > layers + 2:
        raise InfeasibleError(
            f"pipeline_parallel {pipeline_parallel} has more stages than {layers} layers can fill",
            why="only the first and the last stage may hold no layer",
            fix=f"pipeline_parallel of at most {layers + 2}",
        )
    micro_batches = check_batch(global_batch, micro_batch_size, data_parallel)
    if micro_batches < pipeline_parallel:
        needed = pipeline_parallel * micro_batch_size * data_parallel
        raise InfeasibleError(
            f"{micro_batches} micro-batches cannot fill {pipeline_parallel} pipeline stages",
            why=(
                f"global batch {global_batch} / (micro_batch_size {micro_batch_size} x "
                f"data_parallel {data_parallel}) = {micro_batches} micro-batches (gradient "
                "accumulation), fewer than the stages"
            ),
            fix=f"a global batch of at least {needed} (--global-batch {needed}), or fewer stages",
        )


def interleaving_is_legal(stages: int, micro_batches: int, group: int | None = None) -> bool:
    """Whether interleaved 1F1B runs: PP <= N <= M and (M mod N == 0 or M mod N >= PP).

    N is `--microbatch-group-size-per-virtual-pipeline-stage`, by default the stages. Megatron-LM's
    validator accepts more than its schedule can run.
    """
    size = stages if group is None else group
    if not 1 < stages <= size <= micro_batches:
        return False
    rest = micro_batches % size
    return rest == 0 or rest >= stages


def check_interleaving(stages: int, micro_batches: int, group: int | None = None) -> None:
    """Refuse an interleaved schedule that would fail in the first step.

    Raises:
        ConfigurationError: with the nearest numbers of micro-batches that run.
    """
    if interleaving_is_legal(stages, micro_batches, group):
        return
    if stages < 2:
        raise ConfigurationError(
            "virtual stages need a pipeline",
            why="with one stage there is nothing to interleave",
            fix="pipeline_parallel of at least 2, or one chunk a stage",
        )
    size = stages if group is None else group
    nearest = [value for value in multiples_around(micro_batches, size) if value >= size]
    raise ConfigurationError(
        f"{micro_batches} micro-batches cannot be interleaved over {stages} stages",
        why=(
            f"with groups of {size}: stages <= group <= micro-batches, and the last group must be "
            "whole or at least as many as the stages"
        ),
        fix=f"{' or '.join(map(str, nearest or [size]))} micro-batches, or the 1f1b schedule",
    )


def check_stage_layers(stage_layers: Sequence[int], layers: int, stages: int | None = None) -> None:
    """Check an explicit split: one count a stage, none negative, their sum the model's layers.

    Raises:
        ConfigurationError: Megatron-LM would silently build another model (issue 1304).
    """
    if stages is not None and len(stage_layers) != stages:
        raise ConfigurationError(
            f"{len(stage_layers)} layer counts are given for {stages} pipeline stages",
            why="every stage needs its own number of layers",
            fix=f"give {stages} numbers that sum up to {layers}",
        )
    total = sum(stage_layers)
    if total != layers or min(stage_layers) < 0:
        raise ConfigurationError(
            f"stage layers {listed(stage_layers)} do not build the model",
            why=f"they sum up to {total}; the model has {layers} layers",
            fix=f"numbers of at least 0 whose sum is {layers}",
        )
