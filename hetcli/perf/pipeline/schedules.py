"""The named schedules, each as the order of works of every stage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.list_scheduling import list_schedule
from hetcli.perf.pipeline.rules import check_schedule, default_chunks
from hetcli.perf.pipeline.work import Kind, Place, Route, Schedule, Work

__all__ = ["schedule"]


def schedule(
    name: ScheduleName,
    stages: int,
    micro_batches: int,
    virtual_stages: int | None = None,
    *,
    micro_batch_group_size: int | None = None,
) -> Schedule:
    """Return a named schedule.

    `virtual_stages` is the number of model chunks that every stage holds; the default is the
    schedule's own (1, or 2 where it needs several). `micro_batch_group_size` is Megatron-LM's
    --microbatch-group-size-per-virtual-pipeline-stage, by default the number of stages.

    - `gpipe` (arXiv 1811.06965): all forwards, then all backwards.
    - `1f1b` (arXiv 2006.09503, PipeDream-flush): backwards as soon as they can be.
    - `interleaved` (arXiv 2104.04473): 1F1B over several chunks a stage, Megatron-LM's order.
    - `zb-h1`, `zb-v` (arXiv 2401.10241): the backward is split, weight gradients fill the bubbles.
    - `wave` (Hanayo, arXiv 2308.15762): chunks zigzag over the stages, two a wave.
    - `bidirectional` (Chimera, arXiv 2107.06925, with 2 chunks; BitPipe, arXiv 2410.19367, with 4):
      two pipelines in opposite directions, each with its own copy of the weights; micro-batches
      alternate.

    The last two are drawn in their papers for as many micro-batches as stages; with more the same
    rule goes on: at most that many are in the pipelines at a time.

    Raises ConfigurationError when the schedule is not defined for these numbers.
    """
    check_schedule(name, stages, micro_batches, virtual_stages, micro_batch_group_size)
    chunks = default_chunks(name) if virtual_stages is None else virtual_stages
    group = stages if micro_batch_group_size is None else micro_batch_group_size
    return _build(name, stages, micro_batches, chunks, group)


# A planner asks for the same few shapes again and again; 65,000 works take 60 ms to write down.
@lru_cache(maxsize=32)
def _build(
    name: ScheduleName, stages: int, micro_batches: int, chunks: int, group: int
) -> Schedule:
    route_of = (0,) * micro_batches
    if name in ("wave", "bidirectional"):
        return _folded(name, stages, micro_batches, chunks)
    if name == "zb-v":
        routes: tuple[Route, ...] = (_zigzag(stages, 2, 0),)
        order = tuple(tuple(_zb_v(stage, stages, micro_batches)) for stage in range(stages))
        return Schedule(name, order, routes, route_of)
    routes = (tuple(Place(stage, chunk) for chunk in range(chunks) for stage in range(stages)),)
    works = []
    for stage in range(stages):
        if name == "gpipe":
            works.append(_one_forward_one_backward(micro_batches, micro_batches))
        elif name == "1f1b":
            works.append(_one_forward_one_backward(micro_batches, stages - 1 - stage))
        elif name == "zb-h1":
            works.append(_zb_h1(stage, stages, micro_batches))
        else:
            works.append(_interleaved(stage, stages, micro_batches, chunks, group))
    return Schedule(name, tuple(tuple(order) for order in works), routes, route_of)


def _one_forward_one_backward(micro_batches: int, warm_up: int) -> Iterator[Work]:
    visits = [(micro_batch, 0) for micro_batch in range(micro_batches)]
    return _alternate(visits, visits, warm_up)


def _alternate(
    forwards: list[tuple[int, int]], backwards: list[tuple[int, int]], warm_up: int
) -> Iterator[Work]:
    """`warm_up` forwards, then a forward and a backward in turn, then the backwards left over."""
    for visit in forwards[:warm_up]:
        yield Work("forward", *visit)
    for position, visit in enumerate(backwards):
        if warm_up + position < len(forwards):
            yield Work("forward", *forwards[warm_up + position])
        yield Work("backward", *visit)


def _interleaved(
    stage: int, stages: int, micro_batches: int, chunks: int, group: int
) -> Iterator[Work]:
    """Megatron-LM's order: a group of micro-batches through chunk after chunk, then the next group.

    The warm-up is that of core/pipeline_parallel/schedules.py (`get_pp_rank_microbatches`).
    """
    groups = [
        range(first, min(first + group, micro_batches)) for first in range(0, micro_batches, group)
    ]
    forwards = [(j, chunk) for members in groups for chunk in range(chunks) for j in members]
    backwards = [(j, chunks - 1 - chunk) for j, chunk in forwards]
    return _alternate(forwards, backwards, 2 * (stages - 1 - stage) + (chunks - 1) * group)


def _zb_h1(stage: int, stages: int, micro_batches: int) -> Iterator[Work]:
    """1F1B with the weight gradients `stage` micro-batches late (arXiv 2401.10241, section 2.1).

    So every stage holds as many micro-batches as the first one does in 1F1B.
    """
    warm_up = stages - 1 - stage
    for micro_batch in range(min(warm_up, micro_batches)):
        yield Work("forward", micro_batch, 0)
    for micro_batch in range(micro_batches + stage):
        if warm_up + micro_batch < micro_batches:
            yield Work("forward", warm_up + micro_batch, 0)
        if micro_batch < micro_batches:
            yield Work("backward-input", micro_batch, 0)
        if micro_batch >= stage:
            yield Work("backward-weight", micro_batch - stage, 0)


def _zb_v(stage: int, stages: int, micro_batches: int) -> Iterator[Work]:
    """The handcrafted ZB-V order (arXiv 2401.10241, section 6 and its drawing).

    Written for at least 2 * stages - 1 micro-batches; those beyond `micro_batches` are left out.
    """
    total = max(micro_batches, 2 * stages - 1)
    done: dict[tuple[Kind, int], int] = {}

    def take(*works: tuple[Kind, int], limit: int = total) -> Iterator[Work]:
        for kind, chunk in works:
            micro_batch = done.get((kind, chunk), 0)
            if micro_batch < limit:
                done[kind, chunk] = micro_batch + 1
                if micro_batch < micro_batches:
                    yield Work(kind, micro_batch, chunk)

    down: tuple[Kind, int] = ("forward", 0)
    up: tuple[Kind, int] = ("forward", 1)
    back_up: tuple[tuple[Kind, int], ...] = (("backward-input", 1), ("backward-weight", 1))
    back_down: tuple[tuple[Kind, int], ...] = (("backward-input", 0), ("backward-weight", 0))
    for _ in range(2 * (stages - stage) - 1):
        yield from take(down)
    for _ in range(stage):
        yield from take(up, down)
    for _ in range(stages - stage):
        yield from take(up, *back_up)
    while done.get(up, 0) < total:
        yield from take(down, *back_down, up, *back_up)
    for _ in range(stage):
        yield from take(back_down[0], back_up[0])
    for _ in range(stages - stage):
        yield from take(*back_down)
    for _ in range(total):
        yield from take(back_up[1])
    for _ in range(total):
        yield from take(back_down[1])


def _zigzag(stages: int, chunks: int, first_chunk: int, *, upwards: bool = False) -> Route:
    """Down the stages with one chunk, back up with the next; `upwards` starts at the last stage."""
    ways = (range(stages), range(stages - 1, -1, -1))
    return tuple(
        Place(stage, first_chunk + chunk)
        for chunk in range(chunks)
        for stage in ways[(chunk + upwards) % 2]
    )


def _folded(name: ScheduleName, stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Wave and bidirectional pipelines: unit time, and no more in flight than the papers' unit."""
    if name == "wave":
        routes: tuple[Route, ...] = (_zigzag(stages, chunks, 0),)
    else:
        half = chunks // 2
        routes = (_zigzag(stages, half, 0), _zigzag(stages, half, half, upwards=True))
    route_of = tuple(micro_batch % len(routes) for micro_batch in range(micro_batches))
    limits = {route[0]: stages // len(routes) for route in routes}
    return Schedule(name, list_schedule(stages, routes, route_of, limits=limits), routes, route_of)
