"""torchrun with static rendezvous: an explicit node rank, and as many processes as a node has."""

from __future__ import annotations

from collections.abc import Mapping

from hetcli.export.launchers.launcher import Launcher
from hetcli.export.placement import Placement
from hetcli.export.planned import Planned

__all__ = ["TORCHRUN"]


def _check(target: str, planned: Planned, placement: Placement) -> None:
    """Ranks are prefix sums of the nodes' processes: every placement can be started."""
    del target, planned, placement


def _settings(planned: Planned, placement: Placement) -> Mapping[str, object]:
    del planned
    return {"uneven": len({host.processes for host in placement.hosts}) > 1}


TORCHRUN = Launcher(
    "torchrun",
    "launch/torchrun.sh.j2",
    "torchrun",
    _check,
    _settings,
    # Its agents know each other by node rank only, so a machine may run several.
    repeats_machines=True,
)
