"""How often a plan's job should save, and how many nodes to hold in reserve, in words."""

from __future__ import annotations

from hetcli.adapt.checkpoint import Saving, best_interval, spares_that_pay, work_share
from hetcli.perf.memory.states import recipe
from hetcli.search.document import configuration_of
from hetcli.spec.model.parameters import (
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
)
from hetcli.spec.plan import Plan
from hetcli.units import format_bytes, format_duration

__all__ = ["checkpoint_bytes", "plan_saving", "saving_note", "spares_note"]

# Assumed where nobody says: what one node writes to a shared file system.
NODE_BYTES_PER_S = 2e9
# Assumed: scheduling, start of processes and communicators, loading.
RESTART_S = 600.0


def checkpoint_bytes(plan: Plan) -> float:
    """Weights and optimizer state of the whole model, once each."""
    model, configuration = plan.inputs.model, configuration_of(plan)
    parameters = sum(layer_parameters(layer, model).total for layer in model.each_layer())
    parameters += embedding_parameters(model).total + final_norm_parameters(model).total
    parameters += head_parameters(model).total
    costs = recipe(configuration.framework, configuration.precision, configuration.zero_stage)
    return float(parameters * (costs.weights.total + costs.optimizer.total))


def plan_saving(plan: Plan, mtbf_s: float, node_bytes_per_s: float = NODE_BYTES_PER_S) -> Saving:
    """The best interval when all nodes of the plan write their part at the same time."""
    nodes = len({device.node for stage in plan.stages for device in stage.devices})
    write_s = checkpoint_bytes(plan) / (nodes * node_bytes_per_s)
    return best_interval(write_s, mtbf_s, RESTART_S)


def saving_note(plan: Plan, *, mtbf_s: float | None, node_bytes_per_s: float | None) -> str | None:
    """A sentence about checkpoints; None when no time between failures is known.

    `mtbf_s` counts before the workload's own.
    """
    mtbf_s = mtbf_s or plan.inputs.workload.mean_time_between_failures_s
    if not mtbf_s:
        return None
    saving = plan_saving(plan, mtbf_s, node_bytes_per_s or NODE_BYTES_PER_S)
    assumed = " (2 GB/s a node assumed)" if node_bytes_per_s is None else ""
    return (
        f"checkpoint every {format_duration(saving.interval_s)}: "
        f"{format_bytes(checkpoint_bytes(plan))}{assumed}, goodput {saving.goodput:.1%}"
    )


def spares_note(
    plan: Plan, share_without: float, *, mtbf_s: float | None, repair_s: float | None
) -> str | None:
    """A sentence about spare nodes; None when no time between failures, or of repair, is known.

    `share_without` is the share of its speed that the job keeps without a node.
    """
    mtbf_s = mtbf_s or plan.inputs.workload.mean_time_between_failures_s
    if not mtbf_s or repair_s is None:
        return None
    nodes = len({device.node for stage in plan.stages for device in stage.devices})
    spares, speed = spares_that_pay(nodes, nodes * mtbf_s, repair_s, share_without)
    alone = work_share(nodes, 0, nodes * mtbf_s, repair_s, share_without)
    return (
        f"spare nodes that pay: {spares}, with {speed:.1%} of the speed of all {nodes} nodes on "
        f"average; without one {alone:.1%}"
    )
