"""What `plan` and `estimate` share: reading their inputs, and showing or saving a plan."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from hetcli.cli.output import Output

if TYPE_CHECKING:
    from hetcli.spec.cluster import Cluster
    from hetcli.spec.model.architecture import Model
    from hetcli.spec.plan import Plan
    from hetcli.spec.workload import Pretrain

__all__ = ["PlanningInputs", "given_inputs", "show_plan", "value_of"]


class PlanningInputs(TypedDict):
    """The three inputs of every plan."""

    cluster: Cluster
    model: Model
    workload: Pretrain


def value_of(choice: Enum | None) -> Any:
    """The word that the user wrote for an option, or None."""
    return None if choice is None else choice.value


def given_inputs(
    *,
    cluster: str,
    model: str,
    workload: str | None,
    hardware: str | None = None,
    efficiency: str | None = None,
    lora_rank: int | None = None,
    own_batch: Callable[[Cluster], int | None] | None = None,
    **flags: int | str | Enum | None,
) -> PlanningInputs:
    """Read the cluster, the model and the workload that the options name.

    `own_batch` says the global batch that other options make up, where none is given.
    """
    from hetcli.catalog.inputs import (
        read_cluster,
        read_model,
        read_workload,
        with_adapters,
        with_hardware,
    )

    described = with_adapters(read_model(model), lora_rank)
    found = with_hardware(read_cluster(cluster), hardware)
    if efficiency is not None:
        from hetcli.perf.validation.calibration import read_efficiency

        found = found.model_copy(update={"efficiency": read_efficiency(Path(efficiency))})
    plain = {name: flag.value if isinstance(flag, Enum) else flag for name, flag in flags.items()}
    if own_batch is not None and workload is None and plain.get("global_batch") is None:
        plain["global_batch"] = own_batch(found)
    return {
        "cluster": found,
        "model": described,
        "workload": read_workload(workload, model=described, flags=plain),
    }


def show_plan(output: Output, plan: Plan, out: str | None) -> None:
    """Write plan.json where asked, and print the result."""
    from hetcli.report.terminal import plan_view

    if out is not None:
        output.save(out, plan)
    if out != "-":
        output.result(plan, *plan_view(plan, verbose=output.verbose))
