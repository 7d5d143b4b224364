"""How an exporter says no: the rule, the nearest legal plan and the command that finds one."""

from __future__ import annotations

from hetcli.errors import UnsupportedByTargetError
from hetcli.export.placement import spread_group
from hetcli.spec.plan import Plan

__all__ = ["refuse_spread", "unsupported"]


def refuse_spread(target: str, plan: Plan, plans: str | None = None) -> None:
    """Refuse a tensor-parallel group that is not inside one node.

    Raises:
        UnsupportedByTargetError: naming its nodes.
    """
    nodes = spread_group(plan)
    if nodes:
        raise unsupported(
            target,
            f"a tensor-parallel group over {' and '.join(nodes)}",
            why=f"{target} accepts it and then sends every layer's activations over the network",
            nearest="tensor-parallel groups inside one node",
            flags="--tp <at most the devices of a node>",
            plans=plans,
        )


def unsupported(
    target: str, what: str, *, why: str, nearest: str, flags: str = "", plans: str | None = None
) -> UnsupportedByTargetError:
    """The error to raise when `target` cannot run what the plan asks for.

    `nearest` names the closest legal plan, `flags` the options of `hetcli plan` that lead there,
    `plans` the target to plan for where `hetcli plan` does not know this one.
    """
    command = " ".join(part for part in (f"hetcli plan --target {plans or target}", flags) if part)
    return UnsupportedByTargetError(
        f"{target} cannot run {what}", why=why, fix=f"{nearest}; to plan one: {command}"
    )
