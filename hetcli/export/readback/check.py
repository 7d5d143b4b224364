"""Whether the scripts and configurations of a directory describe its plan.json.

Read are the files as a shell or a framework would; options are compared one fact at a time, and the
placement is rebuilt from what the nodes' scripts start, so that an edited directory is judged by
what it would do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from hetcli.errors import UsageError
from hetcli.export.generic.assignment import assignment_text, by_node
from hetcli.export.placement import by_machine
from hetcli.export.readback.facts import (
    Facts,
    deepspeed_facts,
    flagscale_devices,
    flagscale_facts,
    megatron_facts,
    planned_facts,
    planned_recompute,
    stage_recompute,
    torchtitan_facts,
)
from hetcli.export.readback.shell import Script, options, read_script
from hetcli.spec.plan import Plan
from hetcli.spec.source import read_document

__all__ = ["Checked", "check_directory"]

# A node's name, and the index of a device in it.
Device = tuple[str, int]

# Arrays of the training script's options that hetcli plans.
_PLANNED: Final = ("MODEL", "PARALLELISM", "BATCH", "PRECISION", "RECOMPUTE")
# The file that only a target's own directories have.
_OWN_FILE: Final = {
    "deepspeed": "ds_config.json",
    "flagscale": "flagscale.yaml",
    "torchtitan": "titan_plan.py",
    "generic": "ranks.json",
}
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
        target = next((t for t, name in _OWN_FILE.items() if (folder / name).exists()), "megatron")
        facts = _facts(folder, target, common)
        differences = [*_compare(facts, planned_facts(plan, target))]
        if target == "generic" and _text(folder, "ranks.json") != assignment_text(plan):
            differences.append("ranks.json gives ranks other parts than planned")
        if target == "flagscale":
            differences += _flagscale_hosts(folder, nodes)
        differences += _placement(plan, common, nodes, target)
        differences += _hosts(_text(folder, "hostfile"), nodes)
        if target == "megatron":
            differences += _recompute(plan, common, nodes)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(
            f"{folder} cannot be read back",
            why=str(error),
            fix="export the plan again, into another directory",
        ) from error
    return Checked(target, len(facts) + 2 * len(nodes), tuple(differences))


def _facts(folder: Path, target: str, common: Script) -> Facts:
    match target:
        case "deepspeed":
            return deepspeed_facts(_text(folder, "ds_config.json"))
        case "flagscale":
            return flagscale_facts(_text(folder, "flagscale.yaml"))
        case "torchtitan":
            return torchtitan_facts(_text(folder, "titan_plan.py"))
        case "generic":
            return {}  # Its only file of its own is compared whole.
    return megatron_facts(_words(common))


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


def _devices(nodes: list[Script]) -> list[Device]:
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
    started, planned = _devices(nodes), _planned(plan, common, target)
    if len(started) != len(planned):
        differences.append(f"{len(started)} processes are started, planned are {len(planned)}")
        return differences
    for (number, position), block in groupby(range(len(planned)), key=lambda r: planned[r][0]):
        ranks = list(block)
        found, wanted = [started[r] for r in ranks], [planned[r][1] for r in ranks]
        if found != wanted:
            differences.append(
                f"stage {number} replica {position} is started on {found}, planned is {wanted}"
            )
    return differences


def _planned(plan: Plan, common: Script, target: str) -> list[tuple[tuple[int, int], Device]]:
    """Stage, replica and device of every rank, in the rank order that the scripts ask for."""
    plan = by_machine(plan)
    role = {
        (device.node, device.index): (number, position)
        for number, stage in enumerate(plan.stages)
        for position, replica in enumerate(stage.replicas)
        for device in replica.devices
    }
    order = list(role)
    if target == "generic":
        order = [(device.node, device.index) for _, device in by_node(plan)]
    elif target == "megatron" and "--use-tp-pp-dp-mapping" in options(_words(common)):
        # Stable: within a replica stages stay in order.
        order.sort(key=lambda device: role[device][1])
    return [(role[device], device) for device in order]


def _flagscale_hosts(folder: Path, nodes: list[Script]) -> list[str]:
    """FlagScale starts by a hostfile of its own, with the devices of its configuration."""
    lines = [line.split() for line in _text(folder, "hostfile.flagscale").splitlines()]
    shown = flagscale_devices(_text(folder, "flagscale.yaml"))
    differences = []
    for (name, slots, _), node in zip(lines, nodes, strict=True):
        devices = node.arrays["DEVICES"]
        if (name, slots) != (node.values["NODE_NAME"], f"slots={len(devices)}"):
            differences.append(
                f"hostfile.flagscale has {name} {slots}, its script starts {devices}"
            )
        if shown.get(name, devices) != devices:
            differences.append(f"{name} is shown devices {shown[name]}, planned is {devices}")
    return differences


def _hosts(hostfile: str, nodes: list[Script]) -> list[str]:
    lines = [line.split() for line in hostfile.splitlines()]
    found = [words[0] for words in lines if words and not words[0].startswith("#")]
    names = [node.values["NODE_NAME"] for node in nodes]
    return [] if found == names else [f"the hostfile names {found}, the scripts are for {names}"]


def _recompute(plan: Plan, common: Script, nodes: list[Script]) -> list[str]:
    stages = {
        (device.node, device.index): (number, stage)
        for number, stage in enumerate(by_machine(plan).stages)
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
