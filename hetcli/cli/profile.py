"""`hetcli profile`: measure this node, or all nodes; merge, show and import profiles."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.default_group import default_group
from hetcli.cli.output import Output
from hetcli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from hetcli.spec.model.architecture import Model
    from hetcli.spec.profile import Profile


class Device(StrEnum):
    """What to profile."""

    auto = "auto"
    gpu = "gpu"
    cpu = "cpu"


class Part(StrEnum):
    """What to measure: devices, links inside a node, links between nodes."""

    compute = "compute"
    inside = "inside"
    between = "between"


class Manifest(StrEnum):
    """Where a manifest runs the profiler."""

    kubernetes = "kubernetes"


class LayerPrecision(StrEnum):
    """The dtype in which imported layers were measured."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"
    fp8 = "fp8"


DeviceOption = Annotated[
    Device, typer.Option("--device", help="auto: GPUs where there are any, else the CPU.")
]

ProfilesArgument = Annotated[
    list[str], typer.Argument(metavar="PROFILE...", help="profile.json files, or folders of them.")
]


def register(app: typer.Typer) -> None:
    """Add the command and its subcommands to `app`."""
    group = typer.Typer(cls=default_group("node"), rich_markup_mode=None)
    app.add_typer(group, name="profile", help="Measure this node, or all nodes.")
    _register_node(group)
    _register_merge(group)
    _register_show(group)
    _register_import(group)
    _register_agent(group)


def _register_node(group: typer.Typer) -> None:
    @command(group, "node")
    def node(
        output: Output,
        out: Annotated[
            str | None,
            typer.Option(
                "-o",
                "--output",
                metavar="PATH",
                help="Write profile.json here; for several nodes a folder.",
            ),
        ] = None,
        device: DeviceOption = Device.auto,
        quick: Annotated[bool, typer.Option("--quick", help="Less than a minute a node.")] = False,
        full: Annotated[bool, typer.Option("--full", help="More shapes, sizes and pairs.")] = False,
        only: Annotated[
            list[Part] | None,
            typer.Option("--only", help="Measure this part; may be repeated (default: all)."),
        ] = None,
        measure: Annotated[
            bool, typer.Option("--measure/--no-measure", help="Measure, or only take inventory.")
        ] = True,
        seconds: Annotated[
            float | None,
            typer.Option("--seconds", min=1, help="Time for a node's compute probes."),
        ] = None,
        model: Annotated[
            str | None,
            typer.Option("--model", metavar="MODEL", help="Measure the shapes of this model."),
        ] = None,
        name: Annotated[
            str | None, typer.Option("--name", help="What to call this node (default: host name).")
        ] = None,
        hosts: Annotated[
            str | None,
            typer.Option("--hosts", metavar="HOSTS", help="Profile these through ssh: n-[0-3],m."),
        ] = None,
        hostfile: Annotated[
            str | None,
            typer.Option("--hostfile", metavar="FILE", help="Profile the hosts of a hostfile."),
        ] = None,
        remote_command: Annotated[
            str, typer.Option("--remote-command", help="How hetcli starts on the other hosts.")
        ] = "hetcli",
        resume: Annotated[
            bool, typer.Option("--resume", help="Keep what the output holds, measure the rest.")
        ] = False,
        manifest: Annotated[
            Manifest | None,
            typer.Option("--manifest", help="Only write a job that profiles --nodes nodes."),
        ] = None,
        nodes: Annotated[
            int, typer.Option("--nodes", min=1, help="For --manifest: pods, one a node.")
        ] = 1,
        image: Annotated[
            str | None,
            typer.Option("--image", metavar="IMAGE", help="For --manifest: an image with hetcli."),
        ] = None,
        gpus: Annotated[
            int, typer.Option("--gpus", min=0, help="For --manifest: NVIDIA GPUs of each pod.")
        ] = 0,
    ) -> ExitCode:
        """Take the inventory of this node, or of all nodes, and measure what they reach.

        Under Slurm (srun hetcli profile) and torchrun all nodes of the job are profiled.
        """
        if manifest is not None:
            from hetcli.probe.manifest import kubernetes_manifest

            if image is None:
                raise UsageError(
                    "--manifest without --image",
                    why="the pods need an image in which hetcli is installed",
                    fix="add --image IMAGE",
                )
            text = kubernetes_manifest(nodes=nodes, image=image, gpus=gpus)
            output.save_text(out or "-", text)
            return ExitCode.YES
        if image is not None or nodes > 1 or gpus:
            raise UsageError(
                "--nodes, --image and --gpus without --manifest",
                why="they describe the pods of a manifest",
                fix="add --manifest kubernetes, or give --hosts for nodes to reach through ssh",
            )
        from hetcli.cli.progress import keeping
        from hetcli.probe.campaign import Settings
        from hetcli.probe.profiler import Targets, profile
        from hetcli.report.profile import profiles_view

        if quick and full:
            raise UsageError(
                "--quick and --full", why="they are opposites", fix="give one of them, or none"
            )
        targets = Targets(
            choice=device.value,
            name=name,
            hosts=_hosts(hosts, hostfile),
            remote_command=tuple(shlex.split(remote_command)),
        )
        settings = Settings(
            level="quick" if quick else "full" if full else "normal",
            model=_model(model),
            parts=frozenset(each.value for each in only or Part) if measure else frozenset(),
            compute_s=seconds,
        )
        with keeping(output, out, several=targets.several, resume=resume) as kept:
            outcome = profile(targets, settings, kept.listener, previous=kept.previous)
        if outcome is None:
            return ExitCode.YES
        for each in outcome.profiles:
            for note in each.notes:
                output.note(f"{each.node}: {note}")
        if out != "-":
            output.result(_document(outcome.profiles), *profiles_view(outcome.profiles))
        return outcome.verdict()


def _hosts(hosts: str | None, hostfile: str | None) -> tuple[str, ...]:
    from hetcli.spec.hostfile import read_hostfile
    from hetcli.spec.hosts import expand_hosts

    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile", why="both name the hosts", fix="give one")
    if hostfile is not None:
        return tuple(host.name for host in read_hostfile(hostfile))
    try:
        return expand_hosts(hosts) if hosts is not None else ()
    except ValueError as error:
        raise UsageError("--hosts", why=str(error), fix="write names like n[0-3],m") from None


def _model(argument: str | None) -> Model | None:
    from hetcli.catalog.inputs import read_model

    return None if argument is None else read_model(argument)


def _document(profiles: Sequence[Profile]) -> Profile | dict[str, object]:
    """One profile is its own document; several stand in a list."""
    if len(profiles) == 1:
        return profiles[0]
    rows = [profile.model_dump(mode="json") for profile in profiles]
    return {"schema_version": 1, "profiles": rows}


def _register_merge(group: typer.Typer) -> None:
    @command(group, "merge")
    def merge(
        output: Output,
        profiles: ProfilesArgument,
        out: Annotated[
            str | None,
            typer.Option("-o", "--output", metavar="FILE", help="Write cluster.yaml here."),
        ] = None,
        name: Annotated[str, typer.Option("--name", help="What to call the cluster.")] = "measured",
    ) -> ExitCode:
        """Make a cluster file of profiles, and name what is slower than its peers."""
        from hetcli.cli.progress import profile_files, read_profiles
        from hetcli.perf.fitting.links import fit_links
        from hetcli.probe.health import examine
        from hetcli.probe.join import join_profiles
        from hetcli.probe.merge import merge_profiles
        from hetcli.report.findings import merge_view
        from hetcli.spec.source import dump_yaml

        listed = read_profiles(profiles)
        read = join_profiles(listed)
        links = fit_links(read)
        findings = examine(read, links)
        cluster, left = merge_profiles(
            read, name=name, links=links, findings=findings, files=profile_files(profiles, listed)
        )
        findings = (*findings, *left)
        for finding in findings:
            output.warn(str(finding))
        text = dump_yaml(cluster)
        if out is not None:
            output.save_text(out, text)
        elif not output.json:
            output.write(text)
        if output.json or out not in {None, "-"}:
            document = {
                "schema_version": 1,
                "cluster": cluster.model_dump(mode="json"),
                "findings": [finding.model_dump(mode="json") for finding in findings],
            }
            output.result(document, *merge_view(cluster, findings))
        return ExitCode.YES


def _register_show(group: typer.Typer) -> None:
    @command(group, "show")
    def show(output: Output, profiles: ProfilesArgument) -> ExitCode:
        """Show what profiles hold."""
        from hetcli.cli.progress import read_profiles
        from hetcli.report.profile import profiles_view

        read = read_profiles(profiles)
        output.result(_document(read), *profiles_view(read))
        return ExitCode.YES


def _register_import(group: typer.Typer) -> None:
    @command(group, "import")
    def import_(
        output: Output,
        files: Annotated[
            list[str],
            typer.Argument(
                metavar="FILE...",
                help="Output of nccl-tests, nvbandwidth, nvidia-smi topo -m or npu-smi info; "
                "profiles of Metis and Sailor.",
            ),
        ],
        out: Annotated[
            str | None,
            typer.Option(
                "-o", "--output", metavar="PATH", help="Write here; for several nodes a folder."
            ),
        ] = None,
        name: Annotated[
            str | None,
            typer.Option("--name", help="What to call a node that the file does not name."),
        ] = None,
        device_name: Annotated[
            str | None, typer.Option("--device-name", help="The GPU, where the file has no name.")
        ] = None,
        model: Annotated[
            str | None,
            typer.Option("--model", metavar="MODEL", help="The model whose layers were measured."),
        ] = None,
        seq_len: Annotated[
            int | None, typer.Option("--seq-len", min=1, help="The sequence length of the layers.")
        ] = None,
        precision: Annotated[
            LayerPrecision | None, typer.Option("--precision", help="The dtype of the layers.")
        ] = None,
        ranks: Annotated[
            int | None, typer.Option("--ranks", min=1, help="How many ranks took part.")
        ] = None,
    ) -> ExitCode:
        """Make profiles of what other tools measured."""
        from hetcli.cli.progress import save_profiles
        from hetcli.probe.imports.detect import read_foreign
        from hetcli.probe.imports.foreign import Known
        from hetcli.probe.imports.gather import gather
        from hetcli.report.profile import profiles_view
        from hetcli.spec.source import read_text

        known = Known(
            label="",
            name=name,
            device=device_name,
            model=_model(model),
            sequence=seq_len,
            dtype=precision.value if precision is not None else None,
            ranks=ranks,
        )
        texts = [read_text(file) for file in files]
        read = gather(
            profile
            for text, label in texts
            for profile in read_foreign(text, dataclasses.replace(known, label=label))
        )
        for profile in read:
            for note in profile.notes:
                output.note(f"{profile.node}: {note}")
        if out is not None:
            save_profiles(output, out, read)
        if out != "-":
            output.result(_document(read), *profiles_view(read))
        return ExitCode.YES


def _register_agent(group: typer.Typer) -> None:
    @command(group, "agent", hidden=True)
    def agent(output: Output, device: DeviceOption = Device.auto) -> None:  # noqa: ARG001
        """Measure what a profiler on another machine asks for, on standard streams."""
        from hetcli.probe.agent import serve_standard_streams

        serve_standard_streams(device.value)
