"""How long a pipeline takes: its chains simulated, the slowest one and every stage's end.

All micro-batches are simulated. Rounds that cost the same do not prove that later ones will: a
slower stage with less to do at the start can take over at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hetcli.perf.chains import Chain
from hetcli.perf.configuration import ScheduleName
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.simulate import simulate
from hetcli.perf.pipeline.timeline import Timeline
from hetcli.perf.pipeline.work import Schedule

__all__ = ["PipelineTime", "chain_timeline", "pipeline_time", "sends_beside_compute"]

# Megatron-LM's interleaved schedule sends beside the computation (`overlap_p2p_communication` in
# core/model_parallel_config.py); its plain 1F1B and DeepSpeed's engine wait for the message.
_OVERLAPPING = frozenset[ScheduleName]({"interleaved", "zb-h1", "zb-v", "wave", "bidirectional"})


def sends_beside_compute(name: ScheduleName) -> bool:
    """Whether a stage computes while its messages travel, instead of waiting for each."""
    return name in _OVERLAPPING


@dataclass(frozen=True, slots=True)
class PipelineTime:
    """The slowest chain of a pipeline, its seconds, and when each stage is done over all chains.

    `sending_s` is the time for which a stage's messages block it.
    """

    slowest: Chain
    makespan_s: float
    sending_s: tuple[float, ...]
    finish_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Seconds at the end of a simulation."""

    makespan_s: float
    finish_s: tuple[float, ...]
    sending_s: tuple[float, ...]


@lru_cache(maxsize=512)
def _schedule(name: ScheduleName, stages: int, micro_batches: int, chunks: int) -> Schedule:
    return schedule(name, stages, micro_batches, chunks)


def chain_timeline(chain: Chain, name: ScheduleName, micro_batches: int | None = None) -> Timeline:
    """What every stage of a chain does when, over `micro_batches` of it (default: all its own)."""
    batches = chain.micro_batches if micro_batches is None else micro_batches
    order = _schedule(name, len(chain.stages), batches, len(chain.stages[0].forward))
    return simulate(
        order,
        [[each.total for each in stage.forward] for stage in chain.stages],
        [[each.total for each in stage.backward] for stage in chain.stages],
        (*chain.send_s, chain.wrap_s),
        return_s=(*chain.return_s, chain.wrap_s),
        weight_s=[stage.weight_s for stage in chain.stages] if order.splits_backward else None,
        overlap=sends_beside_compute(name),
    )


def _simulated(chain: Chain, name: ScheduleName) -> _Ends:
    timeline = chain_timeline(chain, name)
    stages = range(timeline.schedule.stages)
    finish = tuple(timeline.of_stage(stage)[-1].end_s for stage in stages)
    return _Ends(timeline.makespan_s, finish, timeline.sending_s)


def pipeline_time(found: Sequence[Chain], name: ScheduleName) -> PipelineTime:
    """The time of a pipeline whose members work as the chains in `found` do."""
    timed = [(_simulated(chain, name), chain) for chain in found]
    ends, slowest = max(timed, key=lambda item: item[0].makespan_s)
    finish = tuple(
        max(column) for column in zip(*(each.finish_s for each, _ in timed), strict=True)
    )
    return PipelineTime(slowest, ends.makespan_s, ends.sending_s, finish)
