"""ranks.json: what every rank of the job is in the plan.

Ranks count node by node, so any plan can be started: also those whose pipelines have unlike shapes,
which no framework's own rank order fits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hetcli.export.placement import by_machine
from hetcli.spec.base import SCHEMA_VERSION
from hetcli.spec.plan import Plan, PlanDevice, PlanStage

__all__ = ["assignment", "assignment_text", "by_node"]


def by_node(plan: Plan) -> list[tuple[int, PlanDevice]]:
    """The stage and the device of every rank: machine by machine, as the stages name them."""
    plan = by_machine(plan)
    members = [
        (index, device) for index, stage in enumerate(plan.stages) for device in stage.devices
    ]
    nodes = list(dict.fromkeys(device.node for _, device in members))
    return sorted(members, key=lambda member: nodes.index(member[1].node))


def assignment(plan: Plan) -> list[dict[str, Any]]:
    """One entry a rank, in the order of ranks.

    `stage` counts within the `pipeline`; `layers` are those of each chunk, as [first, count].
    `replica` and `tensor_rank` are positions within the stage and within the replica.
    """
    plan = by_machine(plan)
    roles = {
        (role["node"], role["device"]): role
        for index, stage in enumerate(plan.stages)
        for role in _roles(plan, index, stage)
    }
    ranks = [roles[device.node, device.index] for _, device in by_node(plan)]
    return [{"rank": rank, **role} for rank, role in enumerate(ranks)]


def assignment_text(plan: Plan) -> str:
    """The file's text."""
    ranks = assignment(plan)
    return json.dumps({"schema_version": SCHEMA_VERSION, "ranks": ranks}, indent=2) + "\n"


def _roles(plan: Plan, index: int, stage: PlanStage) -> Iterator[dict[str, Any]]:
    before = [s for s in plan.stages[:index] if s.pipeline == stage.pipeline]
    for position, replica in enumerate(stage.replicas):
        for place, device in enumerate(replica.devices):
            yield {
                "node": device.node,
                "device": device.index,
                "pipeline": stage.pipeline,
                "stage": len(before),
                "replica": position,
                "tensor_rank": place % stage.tensor_parallel,
                "context_rank": place // stage.tensor_parallel,
                "layers": _chunks(plan, index, stage),
                "micro_batches": replica.micro_batches,
                "micro_batch_size": replica.micro_batch_size,
                "gradient_weight": replica.gradient_weight,
                "recompute": stage.recompute,
            }


def _chunks(plan: Plan, index: int, stage: PlanStage) -> list[list[int]]:
    """First layer and layers of each chunk: chunk c of all stages precedes chunk c + 1."""
    members = [s for s in plan.stages if s.pipeline == stage.pipeline]
    position = sum(s.pipeline == stage.pipeline for s in plan.stages[:index])
    first, chunks = members[0].first_layer, []
    for chunk in range(len(stage.chunks)):
        for number, member in enumerate(members):
            if number == position:
                chunks.append([first, member.chunks[chunk]])
            first += member.chunks[chunk]
    return chunks
