"""A plan as a FlagScale run with heterogeneous meshes (`hetero_process_meshes`).

Its layout is that of release 0.9: one YAML file with the sections experiment and train, whose keys
become Megatron-LM's options. FlagScale's own runner starts all nodes from the first one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import yaml

from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.export.environment import node_environment
from hetcli.export.flagscale.meshes import Mesh, mesh_gaps, meshes, shares_embedding
from hetcli.export.launch import LaunchFile
from hetcli.export.megatron.model import model_arguments
from hetcli.export.placement import DEFAULT_ORDER, Placement, place
from hetcli.export.planned import Planned
from hetcli.export.program import Argument, Program
from hetcli.export.refuse import refuse_spread, unsupported
from hetcli.perf import rules
from hetcli.spec.plan import PlanStage

__all__ = ["DEFAULT_VERSION", "VERSIONS", "program"]

VERSIONS: Final = ("0.9",)
DEFAULT_VERSION: Final = "0.9"
TARGET: Final = "flagscale"
USER_VARIABLES: Final = ("FLAGSCALE_PATH",)


def program(planned: Planned, version: str) -> tuple[Program, Placement]:
    """What every rank runs, and where.

    Raises:
        UnsupportedByTargetError: FlagScale cannot run the plan or build the model.
    """
    found = meshes(planned)
    _check(planned, found)
    placement = place(planned.plan, (DEFAULT_ORDER,))
    if placement is None:
        raise unsupported(
            TARGET,
            "this placement: a node holds ranks that do not follow each other",
            why="ranks are stage by stage, and FlagScale sorts hosts by device type",
            nearest="whole stages on consecutive nodes",
            plans="megatron",
        )
    for host in placement.hosts:
        if len(planned.gpus_of(host)) > 1 or placement.splits_machines:
            raise unsupported(
                TARGET,
                f"unlike devices in one machine, {host.name}",
                why="its hostfile gives every host one type",
                nearest="machines whose devices are equal",
                plans="megatron",
            )
    refuse_spread(TARGET, planned.plan, plans="megatron")
    return (
        Program(
            template="flagscale/program.sh.j2",
            files=(
                LaunchFile("flagscale.yaml", _config(planned, placement, found)),
                LaunchFile("hostfile.flagscale", _hostfile(planned, placement)),
            ),
            settings={"flagscale_version": version},
            user_variables=USER_VARIABLES,
            steps_before=(
                f"Set `FLAGSCALE_PATH` to a checkout of FlagScale (release v{version}.0).",
                "In `flagscale.yaml`, replace the mock data and set the learning rate.",
            ),
            notes=(
                "Experimental: FlagScale's heterogeneous training could not be run to check this "
                "directory; its rules are those that its source states.",
                *planned.vendor_notes,
            ),
        ),
        placement,
    )


def _check(planned: Planned, found: tuple[Mesh, ...]) -> None:
    plan, degrees = planned.plan, planned.plan.parallelism
    model = planned.model
    rules.check_model("megatron", model, planned.sequence)
    gaps = [
        (what, why, nearest)
        for wrong, what, why, nearest in (
            (
                len({stage.pipeline for stage in plan.stages}) > 1,
                "pipelines of different shapes",
                "a mesh is a part of one pipeline",
                "a plan of the grid space",
            ),
            (
                degrees.virtual_stages > 1 or (len(plan.stages) > 1 and degrees.schedule != "1f1b"),
                f"the {degrees.schedule} schedule with {degrees.virtual_stages} chunks a stage",
                "meshes run 1F1B with one chunk a stage",
                "the 1f1b schedule",
            ),
            (
                degrees.zero_stage > 1 or degrees.offload == "optimizer+parameters",
                f"ZeRO stage {degrees.zero_stage} with offload {degrees.offload}",
                "its distributed optimizer shards optimizer states only",
                "zero_stage 1",
            ),
            (
                len({(stage.recompute, stage.recompute_layers) for stage in plan.stages}) > 1,
                "stages that recompute in unlike ways",
                "hetcli does not write the per-stage lists of FlagScale",
                "one recompute setting",
            ),
            (
                any(
                    len({(r.micro_batches, r.micro_batch_size) for r in stage.replicas}) > 1
                    for stage in plan.stages
                )
                or len({stage.replicas[0].micro_batches for stage in plan.stages}) > 1,
                "unequal micro-batches of replicas",
                "the micro-batch is one number a mesh, and all run as many of them",
                "equal replicas",
            ),
        )
        if wrong
    ]
    gaps += mesh_gaps(found, model, distributed_optimizer=degrees.zero_stage == 1)
    for what, why, nearest in gaps:
        raise unsupported(TARGET, what, why=why, nearest=nearest, plans="megatron")
    try:
        rules.check_precision(planned.nodes, degrees.precision)
        rules.check_neighbours(planned.hardware, planned.nodes)
        for stage in plan.stages:
            rules.check_tensor_parallel(model, stage.tensor_parallel)
            rules.check_splits(
                "megatron",
                model,
                sequence=planned.sequence,
                precision=degrees.precision,
                tensor_parallel=stage.tensor_parallel,
                context_parallel=degrees.context_parallel,
                expert_tensor_parallel=degrees.expert_tensor_parallel,
                sequence_parallel=degrees.sequence_parallel,
            )
        for mesh in found:
            rules.check_expert_parallel(
                model,
                expert_parallel=mesh.expert_parallel,
                expert_tensor_parallel=mesh.expert_tensor_parallel,
                pipeline_parallel=mesh.pipeline_parallel,
                world=math.prod(mesh.degrees) // mesh.expert_parallel,
            )
    except (ConfigurationError, InfeasibleError) as error:
        raise unsupported(
            TARGET, error.what, why=error.why, nearest=error.fix, plans="megatron"
        ) from error


def _hostfile(planned: Planned, placement: Placement) -> str:
    return "".join(
        f"{host.name} slots={host.processes} type={planned.gpus_of(host)[0].name}\n"
        for host in placement.hosts
    )


def _config(planned: Planned, placement: Placement, found: tuple[Mesh, ...]) -> str:
    """flagscale.yaml: what FlagScale's runner reads."""
    degrees = planned.plan.parallelism
    first = found[0]
    train = {
        "system": {
            "tensor_model_parallel_size": first.tensor_parallel,
            "pipeline_model_parallel_size": len(planned.plan.stages),
            "context_parallel_size": 1,
            **_experts(planned, first),
            "sequence_parallel": degrees.sequence_parallel,
            "use_distributed_optimizer": degrees.zero_stage == 1,
            "overlap_grad_reduce": degrees.overlap_grad_reduce,
            "overlap_param_gather": degrees.overlap_param_gather,
            **_offload(degrees.offload),
            "precision": _precision(degrees.precision),
            "logging": {"log_interval": 1, "log_throughput": True},
            "recompute": _recompute(planned.plan.stages[0]),
            "hetero": _hetero(planned, found),
        },
        "model": {
            **_keys(model_arguments(planned.model, planned.sequence, grouped_gemm=False)),
            "transformer_impl": "transformer_engine",
            "micro_batch_size": first.micro_batch_size,
            "global_batch_size": degrees.global_batch,
            "train_iters": planned.steps,
            "eval_iters": 0,
            "eval_interval": 1000,
            "optimizer": planned.plan.inputs.workload.optimizer,
            "lr": 3e-4,
            "min_lr": 3e-5,
            "lr_decay_style": "cosine",
            "weight_decay": 0.1,
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "clip_grad": 1.0,
            "seed": 1234,
        },
        "data": {"mock_data": True, "tokenizer": {"tokenizer_type": "NullTokenizer"}},
    }
    document = {
        "experiment": {
            "exp_name": "hetcli",
            "exp_dir": "./outputs",
            "task": {
                "type": "train",
                "backend": "megatron",
                "entrypoint": "flagscale/train/train_gpt.py",
            },
            "runner": {
                "per_node_task": False,
                "no_shared_fs": False,
                "rdzv_backend": "static",
                "hostfile": "hostfile.flagscale",
                "nnodes": len(placement.hosts),
                "nproc_per_node": max(host.processes for host in placement.hosts),
            },
            "envs": {
                "CUDA_DEVICE_MAX_CONNECTIONS": "1",
                "node_specific": {
                    host.name: {
                        variable.name: variable.value
                        for variable in node_environment(
                            planned, placement, host, launcher_sets_devices=False
                        )
                    }
                    for host in placement.hosts
                },
            },
        },
        "train": train,
        "action": "run",
        "hydra": {"run": {"dir": "${experiment.exp_dir}/hydra"}},
    }
    return yaml.safe_dump(document, sort_keys=False)


def _hetero(planned: Planned, found: tuple[Mesh, ...]) -> dict[str, Any]:
    types = [mesh.device_type for mesh in found]
    return {
        "enable_hetero": True,
        "hetero_pipeline_layer_split": [stage.layers for stage in planned.plan.stages],
        "hetero_process_meshes": [degree for mesh in found for degree in mesh.degrees],
        "expert_tensor_parallel_size_per_process_mesh": [
            mesh.expert_tensor_parallel for mesh in found
        ],
        "hetero_device_types": types,
        # The runner overwrites it on every host by the type in the hostfile.
        "hetero_current_device_type": types[0],
        "standalone_embedding_stage": False,
        "use_partial_reduce_for_shared_embedding": (
            shares_embedding(planned.model) and found[0].data_parallel != found[-1].data_parallel
        ),
        "hetero_use_cpu_communication": planned.joining_backend == "gloo",
    }


def _experts(planned: Planned, mesh: Mesh) -> dict[str, int]:
    if not planned.has_experts:
        return {}
    return {
        "expert_model_parallel_size": mesh.expert_parallel,
        "expert_tensor_parallel_size": mesh.expert_tensor_parallel,
    }


def _offload(offload: str) -> dict[str, bool]:
    if offload == "none":
        return {}
    return {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}


def _precision(precision: str) -> dict[str, Any]:
    if precision == "fp8":
        return {"bf16": True, "fp8_format": "hybrid"}
    return {} if precision == "fp32" else {precision: True}


def _recompute(stage: PlanStage) -> dict[str, Any]:
    match stage.recompute:
        case "selective":
            return {"recompute_granularity": "selective"}
        case "full":
            layers = stage.recompute_layers
            return {
                "recompute_granularity": "full",
                "recompute_method": "uniform" if layers is None else "block",
                "recompute_num_layers": 1 if layers is None else layers,
            }
        case _:
            return {}


def _keys(arguments: Iterable[Argument]) -> dict[str, Any]:
    """Options of Megatron-LM as keys, which the runner turns back into options."""
    return {
        argument.option.removeprefix("--").replace("-", "_"): (
            True if not argument.values else _value(argument.values[0])
        )
        for argument in arguments
    }


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
