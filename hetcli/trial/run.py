"""`hetcli trial`: run a plan here, or take part in it, and compare."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any, Literal

from hetcli.errors import EnvironmentFailure, UsageError
from hetcli.spec.plan import Plan, PlanDevice
from hetcli.spec.trial import Trial
from hetcli.trial.compare import compare
from hetcli.trial.job import Job
from hetcli.trial.launch import launch
from hetcli.trial.support import check_supported
from hetcli.trial.torchrun import launched, run_launched
from hetcli.trial.trace import trace_document

__all__ = ["TrialOptions", "run_trial", "within"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """How to run; `here` runs all nodes of the plan as processes of this machine."""

    steps: int = 5
    warm_up: int = 2
    processor: Literal["auto", "cuda", "cpu"] = "auto"
    time_limit_s: float = 600.0
    stall_s: float = 60.0
    here: bool = False


def run_trial(plan: Plan, options: TrialOptions) -> tuple[Trial, dict[str, Any]] | None:
    """The trial and its trace; None in a process whose rank is not the one that reports.

    Raises EnvironmentFailure when the processes fail or the time is up, UnsupportedByTargetError
    for a plan that the runtime cannot run, UsageError when the plan needs more nodes than this.
    """
    from hetcli.search.document import configuration_of

    check_supported(configuration_of(plan), plan.inputs.model)
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentFailure(
            "a trial needs torch",
            why="torch is not installed",
            fix="pip install 'hetcli[profile]'",
        )
    processor = _processor(options.processor)
    if launched(os.environ):
        job, reports = run_launched(
            plan,
            steps=options.steps,
            warm_up=options.warm_up,
            processor=processor,
            time_limit_s=options.time_limit_s,
            stall_s=options.stall_s,
        )
        return (compare(plan, job, reports), trace_document(reports)) if reports else None
    nodes = dict.fromkeys(device.node for stage in plan.stages for device in stage.devices)
    if len(nodes) > 1 and not options.here:
        raise UsageError(
            f"the plan uses {len(nodes)} nodes, and this is one of them",
            why="every node has to start its own processes",
            fix=_torchrun(plan, list(nodes)),
        )
    job = Job(
        plans=(plan,),
        devices=_devices(plan),
        steps=options.steps,
        warm_up=options.warm_up,
        processor=processor,
        stall_s=options.stall_s,
    )
    [reports] = launch(job, time_limit_s=options.time_limit_s)
    return compare(plan, job, reports), trace_document(reports)


def _processor(choice: Literal["auto", "cuda", "cpu"]) -> Literal["cuda", "cpu"]:
    if choice != "auto":
        return choice
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _devices(plan: Plan) -> tuple[PlanDevice, ...]:
    return tuple(
        dict.fromkeys(
            PlanDevice(node=device.node, index=device.index)
            for stage in plan.stages
            for device in stage.devices
        )
    )


def _torchrun(plan: Plan, nodes: list[str]) -> str:
    """What to start on every node."""
    devices = _devices(plan)
    lines = [
        f"torchrun --nnodes {len(nodes)} --node-rank {rank} --nproc-per-node "
        f"{sum(device.node == node for device in devices)} --rdzv-backend static "
        f"--master-addr {nodes[0]} --log-dir /dev/null -m hetcli trial PLAN"
        for rank, node in enumerate(nodes)
    ]
    return "\n".join(
        [
            "start on each node in this order:",
            *lines,
            "or export it and start run_node_<i>.sh --trial on each, or --here, without a network",
        ]
    )


def within(trial: Trial, tolerance: float | None) -> bool:
    """Whether the step's prediction is off by at most `tolerance` per cent; None: always."""
    error = trial.step_time_s.error
    return tolerance is None or error is None or abs(error) * 100 <= tolerance
