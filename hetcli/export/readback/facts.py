"""The facts of a plan that a launch directory repeats, from the plan and from the files."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

import yaml

from hetcli.export.deepspeed.config import KEYS, REMOVED_KEYS
from hetcli.export.megatron.layout import parse_layout
from hetcli.export.readback.shell import options
from hetcli.spec.plan import Plan, PlanStage

__all__ = [
    "Facts",
    "deepspeed_facts",
    "flagscale_devices",
    "flagscale_facts",
    "megatron_facts",
    "planned_facts",
    "planned_recompute",
    "stage_recompute",
    "torchtitan_facts",
]

Facts = dict[str, object]
Options = Mapping[str, tuple[str, ...]]

# Facts that each target's files repeat.
_BATCH: Final = ("micro_batch_size", "gradient_accumulation", "zero_stage", "offload", "precision")

_DEGREES: Final = (
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "micro_batch_size",
    "global_batch",
    "zero_stage",
    "offload",
    "precision",
    "attention",
    "overlap_grad_reduce",
    "overlap_param_gather",
)


def planned_facts(plan: Plan, target: str) -> Facts:
    """What the files of `target` must say."""
    degrees = plan.parallelism
    if target == "generic":
        return {}
    if target == "flagscale":
        return _flagscale_planned(plan)
    if target == "torchtitan":
        return _torchtitan_planned(plan)
    if target == "deepspeed":
        facts = {name: getattr(degrees, name) for name in _BATCH}
        return {**facts, "ignored keys": [], "refused keys": []}
    model = plan.inputs.model
    experts = ("expert_parallel", "expert_tensor_parallel") if _has_experts(plan) else ()
    return {
        **{name: getattr(degrees, name) for name in (*_DEGREES, *experts)},
        "sequence_parallel": degrees.sequence_parallel and degrees.tensor_parallel > 1,
        "sequence": plan.inputs.workload.sequence,
        "layers": model.layer_count,
        "hidden_size": model.hidden_size,
        "vocabulary": model.vocab_size,
        "layers of every chunk": [list(stage.chunks) for stage in plan.stages],
    }


def _has_experts(plan: Plan) -> bool:
    return any(
        run.layer.feed_forward is not None and run.layer.feed_forward.kind == "moe"
        for run in plan.inputs.model.layers
    )


def megatron_facts(words: tuple[str, ...]) -> Facts:
    """What the options of Megatron-LM say. Raises ValueError on values that it could not read."""
    given = options(words)

    def number(name: str, default: int = 1) -> int:
        return int(given[name][0]) if name in given else default

    pipeline = number("--pipeline-model-parallel-size")
    layers = number("--num-layers", 0)
    facts: Facts = {
        "tensor_parallel": number("--tensor-model-parallel-size"),
        "pipeline_parallel": pipeline,
        "context_parallel": number("--context-parallel-size"),
        "micro_batch_size": number("--micro-batch-size"),
        "global_batch": number("--global-batch-size", 0),
        "zero_stage": int("--use-distributed-optimizer" in given),
        "offload": "optimizer" if "--optimizer-cpu-offload" in given else "none",
        "precision": _precision(given),
        "attention": given.get("--attention-backend", ("auto",))[0],
        "overlap_grad_reduce": "--overlap-grad-reduce" in given,
        "overlap_param_gather": "--overlap-param-gather" in given,
        "sequence_parallel": "--sequence-parallel" in given,
        "sequence": number("--seq-length", 0),
        "layers": layers,
        "hidden_size": number("--hidden-size", 0),
        "vocabulary": number("--vocab-size", 0),
        "layers of every chunk": _chunks(given, pipeline, layers),
    }
    if "--num-experts" in given:
        facts["expert_parallel"] = number("--expert-model-parallel-size")
        facts["expert_tensor_parallel"] = number("--expert-tensor-parallel-size")
    return facts


def _precision(given: Options) -> str:
    if "--fp8-format" in given:
        return "fp8"
    return next((name for name in ("bf16", "fp16") if f"--{name}" in given), "fp32")


def _chunks(given: Options, pipeline: int, layers: int) -> list[list[int]]:
    if "--pipeline-model-parallel-layout" not in given:
        return [[layers // pipeline]] * pipeline
    layout = parse_layout(given["--pipeline-model-parallel-layout"][0])
    layout.check(
        layers=layers,
        prediction_layers=int(given.get("--mtp-num-layers", ("0",))[0]),
        pipeline_parallel=pipeline,
    )
    return [list(chunks) for chunks in layout.chunks(pipeline)]


def stage_recompute(words: tuple[str, ...]) -> tuple[str, int | None]:
    """Granularity and number of layers, None for all of them, that options ask for."""
    given = options(words)
    granularity = given.get("--recompute-granularity", ("none",))[0]
    if granularity == "full" and given.get("--recompute-method") == ("block",):
        return granularity, int(given["--recompute-num-layers"][0])
    return granularity, None


def planned_recompute(stage: PlanStage) -> tuple[str, int | None]:
    """The same of a planned stage."""
    return stage.recompute, stage.recompute_layers if stage.recompute == "full" else None


def deepspeed_facts(text: str) -> Facts:
    """What ds_config.json says. Raises ValueError where it is no such file."""
    config: dict[str, Any] = json.loads(text)
    try:
        zero = config["zero_optimization"]
        offload = "offload_optimizer" in zero, "offload_param" in zero
        removed = REMOVED_KEYS & (config.keys() | zero.keys())
        return {
            "ignored keys": sorted(config.keys() - KEYS - removed),
            "refused keys": sorted(removed),
            "micro_batch_size": config["train_micro_batch_size_per_gpu"],
            "gradient_accumulation": config["gradient_accumulation_steps"],
            "zero_stage": zero["stage"],
            "offload": {(True, True): "optimizer+parameters", (True, False): "optimizer"}.get(
                offload, "none"
            ),
            "precision": next(
                (n for n in ("bf16", "fp16") if config.get(n, {}).get("enabled")), "fp32"
            ),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"ds_config.json lacks {error}") from error


def _flagscale_planned(plan: Plan) -> Facts:
    degrees, model = plan.parallelism, plan.inputs.model
    first = plan.stages[0]
    experts = degrees.expert_parallel if _has_experts(plan) else None
    return {
        "layers of every stage": [stage.layers for stage in plan.stages],
        "tensor_parallel of every stage": [stage.tensor_parallel for stage in plan.stages],
        "data_parallel of every stage": [len(stage.replicas) for stage in plan.stages],
        "expert_parallel": experts,
        "micro_batch_size": first.replicas[0].micro_batch_size,
        "global_batch": degrees.global_batch,
        "zero_stage": degrees.zero_stage,
        "precision": degrees.precision,
        "sequence_parallel": degrees.sequence_parallel,
        "recompute": planned_recompute(first),
        "sequence": plan.inputs.workload.sequence,
        "layers": model.layer_count,
        "hidden_size": model.hidden_size,
        "vocabulary": model.vocab_size,
    }


def flagscale_facts(text: str) -> Facts:
    """What flagscale.yaml says. Raises ValueError where it is no such file."""
    train = _train(text)
    system, model = train["system"], train["model"]
    hetero, precision, recompute = system["hetero"], system["precision"], system["recompute"]
    flat = hetero["hetero_process_meshes"]
    meshes = [flat[start : start + 5] for start in range(0, len(flat), 5)]
    stages = [mesh for mesh in meshes for _ in range(mesh[4])]
    return {
        "layers of every stage": hetero["hetero_pipeline_layer_split"],
        "tensor_parallel of every stage": [mesh[0] for mesh in stages],
        "data_parallel of every stage": [mesh[3] for mesh in stages],
        "expert_parallel": system.get("expert_model_parallel_size"),
        "micro_batch_size": model["micro_batch_size"],
        "global_batch": model["global_batch_size"],
        "zero_stage": int(system["use_distributed_optimizer"]),
        "precision": "fp8"
        if "fp8_format" in precision
        else next((name for name in ("bf16", "fp16") if precision.get(name)), "fp32"),
        "sequence_parallel": system["sequence_parallel"],
        "recompute": (
            recompute.get("recompute_granularity", "none"),
            recompute["recompute_num_layers"]
            if recompute.get("recompute_method") == "block"
            else None,
        ),
        "sequence": model["seq_length"],
        "layers": model["num_layers"],
        "hidden_size": model["hidden_size"],
        "vocabulary": model["vocab_size"],
    }


def flagscale_devices(text: str) -> dict[str, tuple[str, ...]]:
    """The devices that flagscale.yaml shows to the processes of each node."""
    of_node = _document(text)["experiment"]["envs"]["node_specific"]
    return {
        node: tuple(str(value).split(","))
        for node, variables in of_node.items()
        for name, value in variables.items()
        if name.endswith("VISIBLE_DEVICES")
    }


def _document(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"flagscale.yaml: {error}") from error


def _train(text: str) -> Any:
    return _document(text)["train"]


def _torchtitan_planned(plan: Plan) -> Facts:
    degrees = plan.parallelism
    chunks = range(degrees.virtual_stages)
    parts = [stage.chunks[chunk] for chunk in chunks for stage in plan.stages]
    return {
        "tensor_parallel": degrees.tensor_parallel,
        "pipeline_parallel": degrees.pipeline_parallel,
        "context_parallel": degrees.context_parallel,
        "data_parallel": degrees.data_parallel,
        "gradient_accumulation": degrees.gradient_accumulation,
        "sharded": degrees.zero_stage > 0 and (degrees.data_parallel or 1) > 1,
        "micro_batch_size": degrees.micro_batch_size,
        "global_batch": degrees.global_batch,
        "sequence": plan.inputs.workload.sequence,
        "precision": degrees.precision,
        "sequence_parallel": degrees.sequence_parallel,
        "layers of every part": parts if degrees.pipeline_parallel > 1 else None,
        "recompute": plan.stages[0].recompute,
    }


def torchtitan_facts(text: str) -> Facts:
    """What titan_plan.py says. Raises ValueError where it is no such file."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"titan_plan.py: {error}") from error
    named = {
        target.id: ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    training, parallelism = named["TRAINING"], named["PARALLELISM"]
    parts = parallelism.get("module_fqns_per_model_part")
    local, whole = training["local_batch_size"], training["global_batch_size"]
    replicas = (
        parallelism["data_parallel_replicate_degree"] * parallelism["data_parallel_shard_degree"]
    )
    micro = parallelism.get("pipeline_parallel_microbatch_size", local)
    return {
        "tensor_parallel": parallelism["tensor_parallel_degree"],
        "pipeline_parallel": parallelism["pipeline_parallel_degree"],
        "context_parallel": parallelism["context_parallel_degree"],
        "data_parallel": replicas,
        "gradient_accumulation": local // micro if parts else whole // (local * replicas),
        "sharded": parallelism["data_parallel_shard_degree"] > 1,
        "micro_batch_size": micro,
        "global_batch": whole,
        "sequence": training["seq_len"],
        "precision": {"bfloat16": "bf16"}.get(training["mixed_precision_param"], "fp32"),
        "sequence_parallel": parallelism["enable_sequence_parallel"],
        "layers of every part": parts
        and [sum(name.startswith("layers.") for name in part) for part in parts],
        "recompute": "full" if "FullAC.Config()" in text else "none",
    }
