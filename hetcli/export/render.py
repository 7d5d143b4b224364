"""From a plan to the files of its launch directory. Nothing is written here."""

from __future__ import annotations

from typing import Final

import hetcli
from hetcli.errors import ConfigurationError, UnknownNameError, UnsupportedByTargetError
from hetcli.export.environment import node_environment, socket_interface
from hetcli.export.equal_nodes import equal_nodes
from hetcli.export.launch import LaunchDirectory, LaunchFile
from hetcli.export.launchers.deepspeed import DEEPSPEED
from hetcli.export.launchers.flagscale import FLAGSCALE
from hetcli.export.launchers.kubernetes import KUBERNETES
from hetcli.export.launchers.launcher import Launcher
from hetcli.export.launchers.slurm import SLURM
from hetcli.export.launchers.torchrun import TORCHRUN
from hetcli.export.placement import Host, Placement
from hetcli.export.planned import Planned, open_plan
from hetcli.export.preflight import LISTED_VENDORS, device_checks
from hetcli.export.program import Program
from hetcli.export.targets import TARGETS, ExportTarget
from hetcli.export.templating import render_template
from hetcli.perf.resolve import resolve
from hetcli.spec.plan import Plan
from hetcli.units import format_count, format_duration

__all__ = ["LAUNCHERS", "render"]

LAUNCHERS: Final = {
    launcher.name: launcher for launcher in (TORCHRUN, DEEPSPEED, SLURM, KUBERNETES, FLAGSCALE)
}


def render(
    plan: Plan,
    *,
    target: str | None = None,
    launcher: str | None = None,
    target_version: str | None = None,
) -> LaunchDirectory:
    """The launch directory that starts `plan` on `target`; the plan's own target by default.

    Without a `launcher` it is the target's first one. `target_version` is a release such as 0.19
    or 0.19.2.

    Raises:
        UnknownNameError: no such target, launcher or release.
        ConfigurationError: the plan file contradicts itself.
        UnsupportedByTargetError: the target or the launcher cannot run the plan.
    """
    if target == "verl":
        raise _one_size(plan)
    chosen = _target(target or plan.target)
    version = _version(chosen, target_version)
    starter = _launcher(chosen, launcher or chosen.launchers[0])
    planned = open_plan(plan)
    program, placement = chosen.program(planned, version)
    _check_host_names(placement)
    _check_machines(starter, placement)
    starter.check(chosen.name, planned, placement)
    scripts = [_node_script(planned, placement, host, program, starter) for host in placement.hosts]
    files = [
        LaunchFile("plan.json", plan.model_dump_json(indent=2) + "\n"),
        _hostfile(planned, placement),
        *program.files,
    ]
    files += [
        *scripts,
        _common(planned, placement, program, starter, [file.name for file in files]),
    ]
    if starter.files is None:
        files.append(_start_all(placement, program))
    else:
        files += starter.files(planned, placement)
    files.append(_readme(planned, placement, program, starter, chosen, version))
    return LaunchDirectory(
        target=chosen.name,
        target_version=version,
        launcher=starter.name,
        files={file.name: file for file in files},
        command=starter.start[-1],
        notes=program.notes,
    )


def _target(name: str) -> ExportTarget:
    if name not in TARGETS:
        raise UnknownNameError(
            f"no export target {name!r}",
            why=_REASONS.get(name, "hetcli has no exporter of that name"),
            fix=f"targets are {', '.join(TARGETS)}",
        )
    return TARGETS[name]


# Why a name that users try is not a target.
_REASONS: Final = {
    "accelerate": "accelerate launch divides the processes evenly among the machines, so it cannot "
    "start unlike numbers of devices (huggingface/accelerate issue 3894)",
    "free": "plans of the free space have replicas of unlike shape; no framework runs them",
}


def _one_size(plan: Plan) -> UnsupportedByTargetError:
    """How verl could use the plan's cluster, for which hetcli writes no jobs."""
    offers = " or ".join(str(each) for each in equal_nodes(resolve(plan.inputs.cluster)))
    return UnsupportedByTargetError(
        "hetcli writes no jobs for verl",
        why="trainer.n_gpus_per_node and trainer.nnodes say one size for all nodes: with others "
        "its rollout waits for ever for devices on one node",
        fix=f"nodes x devices: {offers}; rollout.tensor_model_parallel_size at most the devices "
        "of a node",
    )


def _version(target: ExportTarget, wanted: str | None) -> str:
    if wanted is None:
        return target.default_version
    release = ".".join(wanted.split(".")[:2])
    if release not in target.versions:
        raise UnknownNameError(
            f"{target.name} {wanted}",
            why="the options are written for given releases",
            fix=f"--target-version {' or '.join(target.versions)}",
        )
    return release


def _launcher(target: ExportTarget, name: str) -> Launcher:
    if name not in target.launchers:
        raise UnknownNameError(
            f"no launcher {name!r} for {target.name}",
            why=_REASONS.get(name, "it is not known to start this target"),
            fix=f"--launcher {' or '.join(target.launchers)}",
        )
    return LAUNCHERS[name]


def _check_host_names(placement: Placement) -> None:
    for host in placement.hosts:
        if any(character.isspace() for character in host.name) or host.name.startswith("#"):
            raise ConfigurationError(
                f"{host.name!r} cannot be a host name",
                why="a hostfile separates by white space and takes # for a comment",
                fix="the name that ssh knows the node by, in the cluster file",
            )


def _check_machines(launcher: Launcher, placement: Placement) -> None:
    if placement.splits_machines and not launcher.repeats_machines:
        raise UnsupportedByTargetError(
            f"the {launcher.name} launcher cannot start unlike devices of one machine apart",
            why="they do not follow each other in rank order, and it starts a machine once",
            fix="--launcher torchrun, which starts each kind by itself",
        )


def _node_script(
    planned: Planned, placement: Placement, host: Host, program: Program, launcher: Launcher
) -> LaunchFile:
    name = f"run_node_{host.rank}.sh"
    variables = node_environment(
        planned, placement, host, launcher_sets_devices=launcher.sets_devices
    )
    return LaunchFile(
        name,
        render_template(
            "launch/run_node.sh.j2",
            name=name,
            host=host,
            nodes=len(placement.hosts),
            gpu=_types(planned, host),
            vendor=planned.gpus_of(host)[0].vendor,
            gpus_in_node=planned.groups[host.name].gpus,
            checks=device_checks(planned, host),
            interface=socket_interface(planned, host) if len(placement.hosts) > 1 else None,
            variables=(*variables, *program.variables),
            groups=program.node_groups.get(host.rank, ()),
            hetcli_version=hetcli.__version__,
        ),
        executable=True,
    )


def _types(planned: Planned, host: Host) -> str:
    return " and ".join(gpu.name for gpu in planned.gpus_of(host))


def _hostfile(planned: Planned, placement: Placement) -> LaunchFile:
    slots = {host.rank: planned.groups[host.name].gpus for host in placement.hosts}
    text = render_template("launch/hostfile.j2", hosts=placement.hosts, slots=slots)
    return LaunchFile("hostfile", text)


def _common(
    planned: Planned,
    placement: Placement,
    program: Program,
    launcher: Launcher,
    required: list[str],
) -> LaunchFile:
    text = render_template(
        "launch/common.sh.j2",
        hosts=placement.hosts,
        groups=program.groups,
        program_template=program.template,
        launcher_template=launcher.template,
        launch_command=launcher.command,
        required_files=required,
        vendors=planned.vendors,
        listed=[vendor for vendor in planned.vendors if vendor in LISTED_VENDORS],
        **program.settings,
        **launcher.settings(planned, placement),
    )
    return LaunchFile("common.sh", text)


def _start_all(placement: Placement, program: Program) -> LaunchFile:
    text = render_template(
        "launch/start_all.sh.j2", hosts=placement.hosts, user_variables=program.user_variables
    )
    return LaunchFile("start_all.sh", text, executable=True)


def _readme(
    planned: Planned,
    placement: Placement,
    program: Program,
    launcher: Launcher,
    target: ExportTarget,
    version: str,
) -> LaunchFile:
    plan = planned.plan
    text = render_template(
        "launch/README.md.j2",
        model=planned.model.name,
        hosts=placement.hosts,
        gpus=[_types(planned, host) for host in placement.hosts],
        stages=plan.stages,
        degrees=plan.parallelism,
        sequence=planned.sequence,
        step_time=format_duration(plan.predicted.step_time_s),
        tokens_per_s=format_count(plan.predicted.tokens_per_s),
        target_title=target.title,
        target_version=version,
        launcher=launcher.name,
        start=launcher.start,
        steps_before=program.steps_before,
        notes=(*program.notes, *plan.notes),
        hetcli_version=hetcli.__version__,
    )
    return LaunchFile("README.md", text)
