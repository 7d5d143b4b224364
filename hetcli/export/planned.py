"""A plan opened for export: its configuration, its hardware, and that its parts agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, get_args

from hetcli.catalog.gpu import Gpu
from hetcli.errors import ConfigurationError
from hetcli.export.placement import Host
from hetcli.perf.configuration import Configuration, Framework, ScheduleName
from hetcli.perf.hardware import Hardware, Node
from hetcli.perf.resolve import resolve
from hetcli.search.document import configuration_of
from hetcli.spec.cluster import NodeGroup
from hetcli.spec.model.architecture import Model, MoeFeedForward
from hetcli.spec.plan import Plan

__all__ = ["Planned", "configuration", "open_plan"]

# Steps of a run whose plan names no number of tokens.
DEFAULT_STEPS: Final = 100


@dataclass(frozen=True)
class Planned:
    """A plan and what its names stand for."""

    plan: Plan
    hardware: Hardware

    @property
    def model(self) -> Model:
        """The model that is trained."""
        return self.plan.inputs.model

    @property
    def sequence(self) -> int:
        """Tokens of one sequence."""
        return self.plan.inputs.workload.sequence

    @property
    def steps(self) -> int:
        """Optimizer steps of the run: the planned tokens, or enough to see that it runs."""
        workload = self.plan.inputs.workload
        if workload.tokens is None:
            return DEFAULT_STEPS
        return math.ceil(workload.tokens / (workload.global_batch * workload.sequence))

    @cached_property
    def groups(self) -> Mapping[str, NodeGroup]:
        """The group of every node, and for a machine that is several nodes the first of theirs."""
        groups = self.plan.inputs.cluster.nodes
        nodes = {name: group for group in groups for name in group.node_names}
        machines = {name: group for group in reversed(groups) for name in group.machine_names}
        return {**machines, **nodes}

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that the plan uses, in the order of its stages."""
        names = dict.fromkeys(device.node for stage in self.plan.stages for device in stage.devices)
        return tuple(self.hardware.by_name[name] for name in names)

    @cached_property
    def _gpus(self) -> Mapping[tuple[str, int], Gpu]:
        return {
            (node.machine, index): node.device_type.gpu
            for node in self.hardware.nodes
            for index in node.devices
        }

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The device types that the plan uses, each once."""
        return tuple(
            {node.device_type.gpu.name: node.device_type.gpu for node in self.nodes}.values()
        )

    @property
    def has_experts(self) -> bool:
        """Whether a layer of the model has routed experts."""
        return any(isinstance(run.layer.feed_forward, MoeFeedForward) for run in self.model.layers)

    @cached_property
    def vendors(self) -> tuple[str, ...]:
        """Vendors of the used devices, each once."""
        return tuple(dict.fromkeys(gpu.vendor for gpu in self.gpus))

    @property
    def joining_backend(self) -> str | None:
        """The library that joins the used devices of several vendors; None for one vendor."""
        backend = self.plan.inputs.cluster.cross_vendor_backend
        return backend.name if backend is not None and len(self.vendors) > 1 else None

    @property
    def vendor_notes(self) -> tuple[str, ...]:
        """What to know where devices of several vendors are in one job."""
        if self.joining_backend is None:
            return ()
        return (
            f"Devices of {' and '.join(self.vendors)} exchange data by {self.joining_backend}, as "
            "the cluster file says: it must stand in for the collective library of "
            "torch.distributed on every node.",
        )

    def gpu_of(self, node: str) -> Gpu:
        """The device type of a node."""
        return self.hardware.by_name[node].device_type.gpu

    def gpu_at(self, machine: str, device: int) -> Gpu:
        """The device type of a device of a machine."""
        return self._gpus[machine, device]

    def gpus_of(self, host: Host) -> tuple[Gpu, ...]:
        """The device types of a host's processes, each once: unlike ones share a machine."""
        used = (self.gpu_at(host.name, index) for index in host.devices)
        return tuple({gpu.name: gpu for gpu in used}.values())


def open_plan(plan: Plan) -> Planned:
    """The plan with its hardware, after a check that its parts agree with each other.

    Raises:
        ConfigurationError: the file was edited into something that is no plan.
    """
    for check in (_layers, _devices, _batch, _degrees):
        check(plan)
    hardware = resolve(plan.inputs.cluster)
    for device in (device for stage in plan.stages for device in stage.devices):
        node = hardware.by_name.get(device.node)
        if node is None or device.index not in node.devices:
            raise _disagrees(
                f"{device.node}:{device.index} is not a usable device of the plan's cluster",
                "inputs.cluster holds every device that a stage names",
            )
    return Planned(plan, hardware)


def configuration(plan: Plan, framework: Framework) -> Configuration:
    """The plan's configuration as the rules of `hetcli.perf` read it for a framework."""
    return replace(configuration_of(plan), framework=framework)


def _disagrees(what: str, rule: str) -> ConfigurationError:
    return ConfigurationError(
        f"the plan contradicts itself: {what}",
        why=rule,
        fix="export the plan.json that hetcli wrote, or plan again",
    )


def _layers(plan: Plan) -> None:
    layers = plan.inputs.model.layer_count
    for pipeline in sorted({stage.pipeline for stage in plan.stages}):
        stages = [stage for stage in plan.stages if stage.pipeline == pipeline]
        total = sum(stage.layers for stage in stages)
        if total != layers:
            raise _disagrees(
                f"the stages hold {total} layers, the model has {layers}",
                "stages[].layers sum up to the model's layers",
            )
        for stage in stages:
            if sum(stage.chunks) != stage.layers or len(stage.chunks) != len(stages[0].chunks):
                raise _disagrees(
                    f"chunks {list(stage.chunks)} of a stage with {stage.layers} layers",
                    "stages[].chunks sum up to stages[].layers, equally many in every stage",
                )


def _devices(plan: Plan) -> None:
    seen: set[tuple[str, int]] = set()
    for index, stage in enumerate(plan.stages):
        members = [device for replica in stage.replicas for device in replica.devices]
        if members != list(stage.devices):
            raise _disagrees(
                f"stage {index} lists other devices than its replicas",
                "stages[].devices are those of its replicas, in order",
            )
        width = stage.tensor_parallel * plan.parallelism.context_parallel
        for replica in stage.replicas:
            if len(replica.devices) != width:
                raise _disagrees(
                    f"a replica of stage {index} has {len(replica.devices)} devices",
                    f"tensor_parallel x context_parallel = {width} devices a replica",
                )
        for device in members:
            if (device.node, device.index) in seen:
                raise _disagrees(
                    f"{device.node}:{device.index} is used twice", "one process a device"
                )
            seen.add((device.node, device.index))


def _batch(plan: Plan) -> None:
    wanted = plan.parallelism.global_batch
    read = 0
    for pipeline in sorted({stage.pipeline for stage in plan.stages}):
        batches = {
            sum(replica.micro_batches * replica.micro_batch_size for replica in stage.replicas)
            for stage in plan.stages
            if stage.pipeline == pipeline
        }
        if len(batches) != 1:
            raise _disagrees(
                f"the stages of pipeline {pipeline} read {sorted(batches)} sequences",
                "every stage reads the same sequences",
            )
        read += batches.pop()
    if read != wanted or wanted != plan.inputs.workload.global_batch:
        raise _disagrees(
            f"the replicas read {read} sequences a step, the global batch is {wanted}",
            "global batch = micro_batch_size x data_parallel x accumulation",
        )


def _degrees(plan: Plan) -> None:
    degrees = plan.parallelism
    schedules = get_args(ScheduleName)
    if degrees.schedule not in schedules:
        raise _disagrees(
            f"the schedule is {degrees.schedule!r}", f"schedules are {', '.join(schedules)}"
        )
    if degrees.data_parallel is None or {stage.pipeline for stage in plan.stages} != {0}:
        return
    found = {
        "pipeline_parallel": (degrees.pipeline_parallel, {len(plan.stages)}),
        "data_parallel": (degrees.data_parallel, {len(stage.replicas) for stage in plan.stages}),
        "virtual_stages": (degrees.virtual_stages, {len(stage.chunks) for stage in plan.stages}),
    }
    for name, (said, seen) in found.items():
        if seen != {said}:
            raise _disagrees(
                f"{name} is {said}, the stages say {sorted(seen)}",
                f"parallelism.{name} repeats what the stages are",
            )
