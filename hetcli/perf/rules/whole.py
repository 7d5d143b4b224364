"""A whole configuration against every rule."""

from __future__ import annotations

from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.perf.configuration import Configuration
from hetcli.perf.hardware import Hardware
from hetcli.perf.rules.batch import check_interleaving, check_stage_layers
from hetcli.perf.rules.degrees import (
    check_context_parallel,
    check_expert_parallel,
    check_tensor_parallel,
)
from hetcli.perf.rules.frameworks import check_framework, check_splits
from hetcli.perf.rules.neighbours import check_neighbours
from hetcli.perf.rules.numbers import listed
from hetcli.perf.rules.precision import check_precision
from hetcli.spec.model.architecture import Model

__all__ = ["check"]


def check(configuration: Configuration, model: Model, hardware: Hardware) -> None:
    """Check a whole configuration against every rule of this module.

    Raises:
        ConfigurationError: it can never run as it stands.
        InfeasibleError: the batch or the devices do not suffice.
    """
    _check_devices(configuration, hardware)
    nodes = sorted({device.node for device in configuration.devices})
    used = [hardware.by_name[name] for name in nodes]
    check_precision(used, configuration.precision)
    check_neighbours(hardware, used)
    check_context_parallel(configuration.sequence, configuration.context_parallel)
    samples = 0
    for pipeline in configuration.pipelines:
        stages = pipeline.stages
        chunks = len(stages[0].chunks)
        check_framework(
            configuration.framework,
            pipeline_parallel=len(stages),
            virtual_stages=chunks,
            zero_stage=configuration.zero_stage,
            offload=configuration.offload,
            context_parallel=configuration.context_parallel,
            expert_parallel=configuration.expert_parallel,
            precision=configuration.precision,
        )
        check_stage_layers([stage.layer_count for stage in stages], model.layer_count)
        batches = {
            sum(replica.micro_batches * replica.micro_batch_size for replica in stage.replicas)
            for stage in stages
        }
        if len(batches) != 1:
            raise ConfigurationError(
                "the stages of one pipeline read different batches",
                why=f"sequences a step: {listed(sorted(batches))}",
                fix="replicas of every stage must sum up to the same number of sequences",
            )
        samples += batches.pop()
        for stage in stages:
            check_tensor_parallel(model, stage.tensor_parallel)
            check_splits(
                configuration.framework,
                model,
                sequence=configuration.sequence,
                precision=configuration.precision,
                tensor_parallel=stage.tensor_parallel,
                context_parallel=configuration.context_parallel,
                expert_tensor_parallel=configuration.expert_tensor_parallel,
                sequence_parallel=configuration.sequence_parallel,
            )
        if configuration.schedule == "interleaved" and chunks > 1:
            check_interleaving(len(stages), stages[0].replicas[0].micro_batches)
        sizes = [sum(len(replica.devices) for replica in stage.replicas) for stage in stages]
        # The mesh is that of a stage; stages of one size are counted as the frameworks do.
        alike = len(set(sizes)) == 1
        for world in [sum(sizes)] if alike else sizes:
            check_expert_parallel(
                model,
                expert_parallel=configuration.expert_parallel,
                expert_tensor_parallel=configuration.expert_tensor_parallel,
                pipeline_parallel=len(stages) if alike else 1,
                world=world,
            )
    if samples != configuration.global_batch:
        raise InfeasibleError(
            f"the replicas read {samples} sequences a step, not {configuration.global_batch}",
            why="global batch = micro_batch_size x data_parallel x accumulation",
            fix=f"a global batch of {samples}",
        )


def _check_devices(configuration: Configuration, hardware: Hardware) -> None:
    """Every device exists, works once, and no tp group mixes device types."""
    seen = set()
    for stage in configuration.stages:
        for replica in stage.replicas:
            width = stage.tensor_parallel * configuration.context_parallel
            if len(replica.devices) != width:
                raise ConfigurationError(
                    f"a replica has {len(replica.devices)} devices",
                    why=f"tensor_parallel {stage.tensor_parallel} x context_parallel "
                    f"{configuration.context_parallel} = {width}",
                    fix=f"{width} devices a replica",
                )
            for device in replica.devices:
                node = hardware.by_name.get(device.node)
                if node is None or device.index not in node.devices:
                    raise ConfigurationError(
                        f"device {device} is not usable",
                        why="the cluster does not have it, or it is down or excluded",
                        fix=f"usable on {device.node}: {listed(node.devices)}"
                        if node
                        else f"nodes: {listed(list(hardware.by_name)[:8])}",
                    )
                if device in seen:
                    raise ConfigurationError(
                        f"device {device} is used twice",
                        why="one process a device",
                        fix="give every replica devices of its own",
                    )
                seen.add(device)
            for first in range(0, width, stage.tensor_parallel):
                group = replica.devices[first : first + stage.tensor_parallel]
                types = {hardware.node_of(device).device_type.name for device in group}
                if len(types) > 1:
                    raise ConfigurationError(
                        f"a tensor-parallel group mixes {listed(sorted(types))}",
                        why="every rank computes the same share, so the slowest card decides",
                        fix="tensor-parallel groups of one device type",
                    )
