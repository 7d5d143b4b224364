"""How an exporter says no: the rule, the nearest legal plan and the command that finds one."""

from __future__ import annotations

from hetcli.errors import UnsupportedByTargetError

__all__ = ["unsupported"]


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
