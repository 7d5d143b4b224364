"""How many micro-batches a stage holds activations of at its worst moment, without simulating."""

from __future__ import annotations

from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.rules import default_chunks

__all__ = ["in_flight"]


def in_flight(
    schedule: ScheduleName,
    stages: int,
    stage_index: int,
    micro_batches: int,
    virtual_stages: int | None = None,
    *,
    micro_batch_group_size: int | None = None,
) -> float:
    """Return the most micro-batches held, a part of a stage's chunks counting as that part.

    It follows from the order of works alone, so it holds for any times; every form is tested
    against the orders. Where chunks are unequal, weigh `Schedule.held` with their sizes instead.
    Sources: 1F1B arXiv 2006.09503, section 3.3; interleaved Korthikanti et al., arXiv 2205.05198,
    section 4.2.3 (1 + (p - 1)/(p v) times p at stage 0); ZB-H1 and ZB-V arXiv 2401.10241, sections
    2.1 and 6 (as much as 1F1B's first stage, everywhere); bidirectional Chimera, arXiv 2107.06925,
    table 2 (p/2 + 1 to p, each with half of what the device holds); wave and BitPipe by counting.

    The numbers must be legal for the schedule (`check_schedule`).
    """
    chunks = default_chunks(schedule) if virtual_stages is None else virtual_stages
    p, s, m = stages, stage_index, micro_batches
    if schedule == "gpipe":
        return float(m)
    if schedule == "1f1b":
        return float(min(m, p - s))
    if schedule == "zb-h1":
        return float(min(m, p))
    if schedule == "interleaved":
        group = p if micro_batch_group_size is None else micro_batch_group_size
        return min(m * chunks, 2 * (p - 1 - s) + (chunks - 1) * group + 1) / chunks
    if schedule == "zb-v":
        return min(2 * p, 2 * m, m + s + 1) / 2
    if schedule == "wave":
        return _folded(chunks, min(m, p), s) / chunks
    # Micro-batches alternate between the two directions, each of which takes p/2 at a time.
    down, up = min((m + 1) // 2, p // 2), min(m // 2, p // 2)
    if chunks == 2:
        return (min(down, p - s) + min(up, s + 1)) / 2
    half = chunks // 2
    return (_folded(half, down, s) + _folded(half, up, p - 1 - s)) / chunks


def _folded(chunks: int, micro_batches: int, distance: int) -> int:
    """Chunks held by a stage `distance` stages from the start of a zigzag with all in flight.

    The first stages get the first micro-batch's backward before the last forwards have come back.
    """
    return chunks * micro_batches - max(0, micro_batches - 1 - distance)
