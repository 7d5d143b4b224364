"""Slurm: one component of a heterogeneous job a run of equal nodes, one task a node.

A task looks its host up in a table that the plan made and runs that node's script, so Slurm's own
numbering of nodes does not matter. Nodes are asked for by name and whole: the plan says which of
their devices are used. Source: Slurm's pages on heterogeneous jobs, `sbatch` and `srun`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hetcli.errors import UnsupportedByTargetError
from hetcli.export.launch import LaunchFile
from hetcli.export.launchers.launcher import Launcher
from hetcli.export.launchers.node_types import node_types
from hetcli.export.placement import Placement
from hetcli.export.planned import Planned
from hetcli.export.preflight import name_words
from hetcli.export.templating import render_template

__all__ = ["SLURM"]

# What a node name may hold in a #SBATCH line, where nothing can be quoted; brackets are ranges.
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Words of catalogue names that stand before the model, which sites name their GRES types by.
_SERIES: Final = frozenset({"nvidia", "amd", "rtx", "gtx", "tesla", "instinct", "geforce"})


def gres_type(gpu: str) -> str:
    """The usual GRES type of a catalogue name: `a100` of A100-SXM4-80GB."""
    words = [word for word in name_words(gpu).split() if word not in _SERIES]
    return words[0] if words else "gpu"


def _check(target: str, planned: Planned, placement: Placement) -> None:
    del target, planned
    for host in placement.hosts:
        if not _NODE_NAME.fullmatch(host.name):
            raise UnsupportedByTargetError(
                f"the slurm launcher cannot name the node {host.name!r}",
                why="a --nodelist takes letters, digits, dots, hyphens and underscores",
                fix="the name that sinfo shows, in the cluster file, or --launcher torchrun",
            )


def _settings(planned: Planned, placement: Placement) -> Mapping[str, object]:
    del planned
    return {"uneven": len({host.processes for host in placement.hosts}) > 1}


def _files(planned: Planned, placement: Placement) -> tuple[LaunchFile, ...]:
    types = node_types(planned, placement)
    gres = {
        kind.number: "" if kind.vendor == "cpu" else f"gpu:{gres_type(kind.gpu)}:{kind.gpus}"
        for kind in types
    }
    job = render_template("launch/job.sbatch.j2", types=types, gres=gres)
    task = render_template("launch/run_task.sh.j2", hosts=placement.hosts)
    return (
        LaunchFile("job.sbatch", job, executable=True),
        LaunchFile("run_task.sh", task, executable=True),
    )


SLURM = Launcher(
    "slurm",
    "launch/torchrun.sh.j2",
    "torchrun",
    _check,
    _settings,
    files=_files,
    start=("sbatch job.sbatch --check", "sbatch job.sbatch"),
)
