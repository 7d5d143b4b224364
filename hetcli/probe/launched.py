"""Was this process started on every node at once, and by whom? Slurm's and torchrun's variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hetcli.errors import UsageError
from hetcli.spec.hosts import expand_hosts

__all__ = ["Placement", "placement"]

# Next to torch's rendezvous port, which its own agent keeps.
_DEFAULT_PORT: Final = 29600
# Slurm jobs of one node must not meet on one port.
_PORTS: Final = 1000


@dataclass(frozen=True)
class Placement:
    """The place of this process among those that profile one cluster.

    `first` says on which of a node's processes it is: only the first measures. `leader` is the
    address of node 0, `port` where it waits for the others.
    """

    launcher: str
    node: int
    nodes: int
    first: bool
    leader: str
    port: int
    token: str


def placement(environment: Mapping[str, str]) -> Placement | None:
    """The placement that the environment describes; None for a process started by itself.

    Raises UsageError when the variables contradict each other.
    """
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_STEP_NUM_NODES", "1")) > 1:
        return _slurm(environment)
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _torch(environment)
    return None


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise UsageError(
            f"{name}={value}" if value else f"{name} is not set",
            why="the launcher's variables say which node this is, and this one is needed",
            fix="start with `srun hetcli profile` or `torchrun ... --no-python hetcli profile`",
        )
    return int(value)


def _slurm(environment: Mapping[str, str]) -> Placement:
    job = _number(environment, "SLURM_JOB_ID")
    # The step's nodes in the order of their numbers; node 0 is the first.
    hosts = expand_hosts(environment.get("SLURM_STEP_NODELIST", ""))
    return Placement(
        launcher="Slurm",
        node=_number(environment, "SLURM_NODEID"),
        nodes=_number(environment, "SLURM_STEP_NUM_NODES"),
        first=_number(environment, "SLURM_LOCALID") == 0,
        leader=hosts[0],
        port=_DEFAULT_PORT + job % _PORTS,
        token=f"{job}.{environment.get('SLURM_STEP_ID', '0')}",
    )


def _torch(environment: Mapping[str, str]) -> Placement | None:
    """What torchrun sets, or a job template: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    world = _number(environment, "WORLD_SIZE")
    if "GROUP_RANK" in environment:
        node, nodes = _number(environment, "GROUP_RANK"), _number(environment, "GROUP_WORLD_SIZE")
    else:
        node, nodes = _number(environment, "RANK"), world
    if nodes < 2:
        return None
    return Placement(
        launcher="torchrun" if "GROUP_RANK" in environment else "RANK and WORLD_SIZE",
        node=node,
        nodes=nodes,
        first=int(environment.get("LOCAL_RANK", "0")) == 0,
        leader=environment.get("MASTER_ADDR", "") or _missing_leader(),
        port=_number(environment, "MASTER_PORT") + 1,
        token=environment.get("TORCHELASTIC_RUN_ID", "hetcli"),
    )


def _missing_leader() -> str:
    raise UsageError(
        "MASTER_ADDR is not set",
        why="the other nodes must find node 0",
        fix="set MASTER_ADDR to its address, or start with torchrun",
    )
