"""One optimizer step as it runs: every pipeline's works, then what follows them."""

from __future__ import annotations

from dataclasses import dataclass

from hetcli.perf.chains import chains
from hetcli.perf.configuration import Configuration
from hetcli.perf.filling import chain_timeline
from hetcli.perf.hardware import Hardware
from hetcli.perf.pipeline.timeline import Timeline
from hetcli.perf.prediction import Breakdown
from hetcli.perf.stage import Costs
from hetcli.spec.model.architecture import Model

__all__ = ["ChainTimeline", "StepTimeline", "step_timeline"]


@dataclass(frozen=True, eq=False)
class ChainTimeline:
    """Data-parallel members of a pipeline that all work as `timeline` says.

    Stage i of the timeline is stage `first_stage + i` of the configuration, and `members[k][i]` is
    the position there of the replica that works for the k-th member.
    """

    pipeline: int
    first_stage: int
    members: tuple[tuple[int, ...], ...]
    timeline: Timeline


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """Seconds from the start of the step; the slowest chain comes first.

    All devices wait for the slowest pipeline (until `pipeline_s`), then for what of the gradient
    synchronisation nothing hides (`sync_s`), then for the optimizer (`optimizer_s`).
    """

    chains: tuple[ChainTimeline, ...]
    pipeline_s: float
    sync_s: float
    optimizer_s: float

    @property
    def step_s(self) -> float:
        """The end of the step."""
        return self.pipeline_s + self.sync_s + self.optimizer_s

    @property
    def after(self) -> tuple[tuple[str, float, float], ...]:
        """What follows the pipelines on all devices: (name, start, end), without empty parts."""
        synced = self.pipeline_s + self.sync_s
        parts = (
            ("gradient sync, exposed", self.pipeline_s, synced),
            ("optimizer", synced, self.step_s),
        )
        return tuple(part for part in parts if part[2] > part[1])


def step_timeline(
    configuration: Configuration, *, model: Model, hardware: Hardware, breakdown: Breakdown
) -> StepTimeline:
    """The step whose time `hetcli.perf.step.predict` gives, work by work.

    `breakdown` is the prediction's: what follows the pipelines is taken from there. With ZeRO-3
    that includes what sticks out of every micro-batch.
    """
    costs = Costs(model)
    found: list[ChainTimeline] = []
    first_stage = 0
    for number, pipeline in enumerate(configuration.pipelines):
        widths = [len(stage.replicas) for stage in pipeline.stages]
        for chain in chains(configuration, pipeline, hardware, costs):
            found.append(
                ChainTimeline(
                    pipeline=number,
                    first_stage=first_stage,
                    # Member r of the widest stage works with the others' member in proportion.
                    members=tuple(
                        tuple(member * width // max(widths) for width in widths)
                        for member in chain.members
                    ),
                    timeline=chain_timeline(chain, configuration.schedule),
                )
            )
        first_stage += len(pipeline.stages)
    found.sort(key=lambda each: -each.timeline.makespan_s)
    return StepTimeline(
        chains=tuple(found),
        pipeline_s=found[0].timeline.makespan_s,
        sync_s=breakdown.data_parallel,
        optimizer_s=breakdown.optimizer + breakdown.offload,
    )
