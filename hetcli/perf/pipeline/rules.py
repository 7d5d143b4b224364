"""Which numbers of stages, micro-batches and model chunks a schedule can have."""

from __future__ import annotations

from typing import Final, get_args

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import ScheduleName
from hetcli.perf.rules.batch import check_interleaving

__all__ = ["check_schedule", "default_chunks"]

# Model chunks a stage holds when nobody says otherwise: the fewest that the schedule is made for.
_DEFAULT_CHUNKS: Final[dict[ScheduleName, int]] = {
    "gpipe": 1,
    "1f1b": 1,
    "interleaved": 2,
    "zb-h1": 1,
    "zb-v": 2,
    "wave": 2,
    "bidirectional": 2,
}


def default_chunks(name: ScheduleName) -> int:
    """Model chunks a stage of this schedule holds when the caller does not say."""
    if name not in _DEFAULT_CHUNKS:
        raise ConfigurationError(
            f"schedule {name!r}",
            why="no schedule has this name",
            fix=f"one of {', '.join(get_args(ScheduleName))}",
        )
    return _DEFAULT_CHUNKS[name]


def check_schedule(
    name: ScheduleName,
    stages: int,
    micro_batches: int,
    virtual_stages: int | None = None,
    micro_batch_group_size: int | None = None,
) -> None:
    """Raise ConfigurationError, with the nearest legal values, when no such schedule exists.

    `virtual_stages` counts all model chunks that a stage holds, also the second copy of a
    bidirectional pipeline. `micro_batch_group_size`, Megatron-LM's
    --microbatch-group-size-per-virtual-pipeline-stage, is for `interleaved` only.
    """
    default = default_chunks(name)
    counts = (
        stages,
        micro_batches,
        1 if micro_batch_group_size is None else micro_batch_group_size,
    )
    if min(counts) < 1:
        raise ConfigurationError(
            f"{name} with {stages} stages, {micro_batches} micro-batches, groups of {counts[2]}",
            why="a pipeline needs at least one of each",
            fix="raise the number to 1 or more",
        )
    _check_chunks(name, default if virtual_stages is None else virtual_stages)
    if name in ("wave", "bidirectional") and stages % 2:
        raise ConfigurationError(
            f"{name} with {stages} stages",
            why="its pipelines fold or meet in the middle, which needs an even number of stages",
            fix=f"{stages - 1} or {stages + 1} stages" if stages > 1 else "2 stages",
        )
    if name == "interleaved":
        check_interleaving(stages, micro_batches, micro_batch_group_size)
    elif micro_batch_group_size is not None:
        raise ConfigurationError(
            f"{name} with micro-batch groups of {micro_batch_group_size}",
            why="only the interleaved schedule groups micro-batches",
            fix="leave the group size out, or take schedule interleaved",
        )


def _check_chunks(name: ScheduleName, chunks: int) -> None:
    if name == "interleaved":
        legal, rule = chunks >= 2, "2 or more"
    elif name == "wave":
        legal, rule = chunks >= 2 and chunks % 2 == 0, "2, 4, 6, … (two a wave)"
    elif name == "bidirectional":
        # BitPipe folds both directions: two chunks a wave, each twice (arXiv 2410.19367).
        legal = chunks == 2 or (chunks > 0 and chunks % 4 == 0)
        rule = "2 (Chimera), or 4, 8, … (BitPipe: two a wave and direction)"
    else:
        only = default_chunks(name)
        legal, rule = chunks == only, str(only)
    if not legal:
        raise ConfigurationError(
            f"{name} with {chunks} model chunks a stage",
            why="the schedule is not defined for that number of chunks",
            fix=f"{rule} model chunks a stage",
        )
