"""The DeepSpeed launcher, started on every node by itself (`--no_ssh`, DeepSpeed 0.15 and later).

Its other ways to reach nodes (Slurm, MPICH, Intel MPI, MVAPICH) refuse unequal slots. It gives the
process of global rank r the local rank r mod (processes of the node), and sorts the included slots:
source: deepspeed/launcher/launch.py and runner.py of 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetcli.errors import UnsupportedByTargetError
from hetcli.export.launchers.launcher import Launcher
from hetcli.export.placement import Host, Placement
from hetcli.export.planned import Planned

__all__ = ["DEEPSPEED", "inclusion", "started_devices"]

# What `--include` and the hostfile use as separators.
_SEPARATORS = frozenset("@:,#")


def started_devices(host: Host) -> tuple[int, ...]:
    """The devices that the launcher gives to the node's processes, in rank order."""
    slots = sorted(host.devices)
    return tuple(slots[rank % len(slots)] for rank in host.ranks)


def inclusion(planned: Planned, placement: Placement) -> str:
    """The value of `--include`, empty when every node uses all that it has."""
    whole = all(
        sorted(host.devices) == list(range(planned.groups[host.name].gpus))
        for host in placement.hosts
    )
    if whole:
        return ""
    return "@".join(
        f"{host.name}:{','.join(map(str, sorted(host.devices)))}" for host in placement.hosts
    )


def _check(target: str, planned: Planned, placement: Placement) -> None:
    """Refuse host names that its notation cuts, and ranks on other devices than planned.

    The trainer of the deepspeed target picks its device by the plan, whatever the launcher says.
    """
    del planned
    for host in placement.hosts:
        if set(host.name) & _SEPARATORS:
            raise UnsupportedByTargetError(
                f"the deepspeed launcher cannot name the host {host.name!r}",
                why="its hostfile and --include separate by @ : , and #",
                fix="--launcher torchrun, or a host name without them",
            )
        if target != "deepspeed" and started_devices(host) != host.devices:
            shown = " ".join(map(str, started_devices(host)))
            raise UnsupportedByTargetError(
                f"the deepspeed launcher would start the ranks of {host.name} on devices {shown}",
                why="it takes rank modulo processes as the local rank; the plan has "
                + " ".join(map(str, host.devices)),
                fix="--launcher torchrun, which keeps the planned order",
            )


def _settings(planned: Planned, placement: Placement) -> Mapping[str, object]:
    return {"include": inclusion(planned, placement)}


DEEPSPEED = Launcher(
    "deepspeed", "launch/deepspeed.sh.j2", "deepspeed", _check, _settings, sets_devices=True
)
