"""Whether the scripts and configurations of a directory describe its plan.json.

Read are the files as a shell or a framework would; options are compared one fact at a time, and the
placement is rebuilt from what the nodes' scripts start, so that an edited directory is judged by
what it would do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hetcli.errors import UsageError
from hetcli.export.readback.facts import (
    Facts,
    deepspeed_facts,
    megatron_facts,
    planned_facts,
    planned_recompute,
    stage_recompute,
)
from hetcli.export.readback.shell import Script, options, read_script
from hetcli.spec.plan import Plan
from hetcli.spec.source import read_document

__all__ = ["Checked", "check_directory"]

# Arrays of the training script's options that hetcli plans.
_PLANNED: Final = ("MODEL", "PARALLELISM", "BATCH", "PRECISION", "RECOMPUTE")
_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Checked:
    """What was read of a directory, and where it contradicts plan.json."""

    target: str
    facts: int
    differences: tuple[str, ...]


def check_directory(path: str | Path) -> Checked:
    """Hold the files of a launch directory against the plan.json in it.

    Raises:
        UsageError: the directory lacks files, or they are not such as hetcli writes.
    """
    folder = Path(path)
    plan = read_document(folder / "plan.json", Plan)
    try:
        common = read_script(_text(folder, "common.sh"))
        count = sum(1 for _ in folder.glob("run_node_*.sh"))
        nodes = [read_script(_text(folder, f"run_node_{rank}.sh")) for rank in range(count)]
        target = "deepspeed" if (folder / "ds_config.json").exists() else "megatron"
        facts = (
            deepspeed_facts(_text(folder, "ds_config.json"))
            if target == "deepspeed"
            else megatron_facts(_words(common))
        )
        differences = [*_compare(facts, planned_facts(plan, target))]
        differences += _placement(plan, common, nodes, target)
        differences += _hosts(_text(folder, "hostfile"), nodes)
        if target == "megatron":
            differences += _recompute(plan, common, nodes)
    except (ValueError, KeyError, IndexError) as error:
        raise UsageError(
            f"{folder} cannot be read back",
            why=str(error),
            fix="export the plan again, into another directory",
        ) from error
    return Checked(target, len(facts) + 2 * len(nodes), tuple(differences))


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{folder / name} cannot be read", why=str(error), fix="name a launch directory"
        ) from error


def _words(*scripts: Script) -> tuple[str, ...]:
    return tuple(w for s in scripts for name in _PLANNED for w in s.arrays.get(name, ()))


def _compare(found: Facts, planned: Facts) -> list[str]:
    return [
        f"{name} is {found.get(name)}, planned is {planned.get(name)}"
        for name in sorted(found.keys() | planned.keys())
        if found.get(name) != planned.get(name)
    ]


def _devices(nodes: list[Script]) -> list[tuple[str, int]]:
    """The device of every rank, as the nodes' scripts start them."""
    return [
        (node.values["NODE_NAME"], int(index)) for node in nodes for index in node.arrays["DEVICES"]
    ]


def _placement(plan: Plan, common: Script, nodes: list[Script], target: str) -> list[str]:
    differences = []
    for rank, node in enumerate(nodes):
        name, devices = node.values["NODE_NAME"], node.arrays["DEVICES"]
        if node.values["NODE_RANK"] != str(rank):
            differences.append(f"run_node_{rank}.sh has NODE_RANK {node.values['NODE_RANK']}")
        for variable in _VISIBLE:
            shown = node.values.get(variable)
            if shown is not None and shown != ",".join(devices):
                differences.append(f"{name} shows devices {shown}, its DEVICES are {devices}")
    ranks = _devices(nodes)
    width = plan.parallelism.context_parallel * plan.parallelism.tensor_parallel
    stages, replicas = len(plan.stages), len(plan.stages[0].replicas)
    if len(ranks) != width * stages * replicas:
        return [
            *differences,
            f"{len(ranks)} processes are started, planned are {width * stages * replicas}",
        ]
    by_replica = target == "megatron" and "--use-tp-pp-dp-mapping" in options(_words(common))
    for number, stage in enumerate(plan.stages):
        for position, replica in enumerate(stage.replicas):
            block = position * stages + number if by_replica else number * replicas + position
            started = ranks[block * width : (block + 1) * width]
            planned = [(device.node, device.index) for device in replica.devices]
            if started != planned:
                differences.append(
                    f"stage {number} replica {position} is started on {started}, "
                    f"planned is {planned}"
                )
    return differences


def _hosts(hostfile: str, nodes: list[Script]) -> list[str]:
    lines = [line.split() for line in hostfile.splitlines()]
    found = [words[0] for words in lines if words and not words[0].startswith("#")]
    names = [node.values["NODE_NAME"] for node in nodes]
    return [] if found == names else [f"the hostfile names {found}, the scripts are for {names}"]


def _recompute(plan: Plan, common: Script, nodes: list[Script]) -> list[str]:
    stages = {
        (device.node, device.index): (number, stage)
        for number, stage in enumerate(plan.stages)
        for device in stage.devices
    }
    differences = []
    for node in nodes:
        wish = stage_recompute(_words(common, node))
        for index in node.arrays["DEVICES"]:
            number, stage = stages.get((node.values["NODE_NAME"], int(index)), (0, None))
            if stage is not None and wish != planned_recompute(stage):
                differences.append(
                    f"stage {number} recomputes {wish}, planned is {planned_recompute(stage)}"
                )
                break
    return differences
