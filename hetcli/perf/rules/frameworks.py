"""What a framework cannot build or combine: asked before a search, and again by the export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hetcli.catalog.gpu import Gpu
from hetcli.errors import ConfigurationError, UnsupportedByTargetError
from hetcli.perf.configuration import Framework, Offload, TrainingPrecision
from hetcli.perf.rules.megatron_model import Gap, megatron_gaps
from hetcli.spec.model.architecture import Model, MoeFeedForward

__all__ = [
    "FUSED_ATTENTION_CAPABILITY",
    "check_framework",
    "check_model",
    "check_splits",
    "has_fused_attention",
    "runs_attention",
]

# Transformer Engine is compiled for compute capability 7.0 and later, but below 8.0 it leaves out
# every attention backend except the unfused one, which in turn cannot split sequences over ranks
# (transformer_engine/common/CMakeLists.txt; get_attention_backend in
# pytorch/attention/dot_product_attention/utils.py of release 2.9).
FUSED_ATTENTION_CAPABILITY: Final = 8.0


def has_fused_attention(gpu: Gpu) -> bool:
    """Whether Megatron-LM has more than its unfused attention on a device type."""
    capability = gpu.compute_capability
    return capability is None or float(capability) >= FUSED_ATTENTION_CAPABILITY


def runs_attention(framework: Framework, gpu: Gpu, attention: str, context_parallel: int) -> bool:
    """Whether a device type takes part in the attention that is asked for."""
    needed = attention == "flash" or context_parallel > 1
    return framework != "megatron" or not needed or has_fused_attention(gpu)


def check_model(framework: Framework, model: Model, sequence: int) -> None:
    """Check that the framework can build the model, for sequences of `sequence` tokens.

    Raises:
        UnsupportedByTargetError: naming the first part that it cannot build, and who can.
    """
    table = model.positions.table_size
    if model.positions.kind == "learned" and sequence > table:
        raise UnsupportedByTargetError(
            f"{framework} cannot train {model.name} on sequences of {sequence} tokens",
            why=f"its position table has {table} rows",
            fix=f"hetcli plan --seq-len {table}",
        )
    match framework:
        case "megatron":
            gaps = megatron_gaps(model, sequence)
            fix = "hetcli plan --target deepspeed, whose trainer builds this model"
        case "deepspeed":
            gaps = _trainer_gaps(model)
            fix = "hetcli plan --target megatron"
        case _:
            return
    gap = next(gaps, None)
    if gap is not None:
        what, why = gap
        raise UnsupportedByTargetError(
            f"{framework} cannot build {what} of {model.name}", why=why, fix=fix
        )


def _trainer_gaps(model: Model) -> Iterator[Gap]:
    """What the trainer that is exported with DeepSpeed does not build."""
    if model.prediction_layers:
        yield (
            f"the {model.prediction_layers} prediction layers",
            "the trainer predicts the next token only",
        )


def check_splits(
    framework: Framework,
    model: Model,
    *,
    sequence: int,
    precision: TrainingPrecision,
    tensor_parallel: int,
    context_parallel: int,
    expert_tensor_parallel: int,
    sequence_parallel: bool,
) -> None:
    """Check that the framework can split the layers of a model so.

    Raises:
        ConfigurationError: with the first rule that is broken.
    """
    parts = [run.layer.feed_forward for run in model.layers]
    routed = [part for part in parts if isinstance(part, MoeFeedForward)]
    slices, split = expert_tensor_parallel, tensor_parallel > 1
    share = sequence // context_parallel
    rules: tuple[tuple[bool, str, str, str], ...] = ()
    if framework == "megatron":
        rules = (
            (
                bool(routed) and split and not sequence_parallel,
                f"experts with tensor_parallel {tensor_parallel} without sequence parallelism",
                "Megatron-LM only warns, and then every rank routes every token",
                "sequence_parallel, or tensor_parallel 1",
            ),
            (
                slices > 1 and any(moe.bias for moe in routed),
                f"expert_tensor_parallel {slices} for experts with biases",
                "TransformerConfig: biases of experts need expert_tensor_parallel 1",
                "expert_tensor_parallel 1",
            ),
            (
                sequence_parallel and share % tensor_parallel > 0,
                f"sequence parallelism over {tensor_parallel} ranks of {share} tokens",
                f"{share} % {tensor_parallel} = {share % tensor_parallel}",
                "a sequence that context x tensor parallelism divides, or tensor_parallel 1",
            ),
            (
                # TransformerEngine, transformer_engine/pytorch/utils.py, assert_dim_for_fp8_exec.
                precision == "fp8" and model.hidden_size % 16 > 0,
                f"fp8 with the hidden size {model.hidden_size}",
                "fp8 matrix products need dimensions that are multiples of 16",
                "--precision bf16",
            ),
        )
    if framework == "deepspeed":
        rules = (
            (
                sequence_parallel and split,
                "sequence parallelism within tensor groups",
                "the trainer keeps whole sequences on every tensor rank",
                "tensor parallelism without it",
            ),
            (
                bool(routed) and slices != tensor_parallel,
                f"expert_tensor_parallel {slices}",
                "the trainer splits experts as it splits the other layers",
                f"expert_tensor_parallel {tensor_parallel}",
            ),
        )
    for wrong, what, why, fix in rules:
        if wrong:
            raise ConfigurationError(what, why=why, fix=fix)


def check_framework(
    framework: Framework,
    *,
    pipeline_parallel: int = 1,
    virtual_stages: int = 1,
    zero_stage: int = 0,
    offload: Offload = "none",
    context_parallel: int = 1,
    expert_parallel: int = 1,
    precision: TrainingPrecision | None = None,
) -> None:
    """Check what the framework itself cannot combine.

    Raises:
        ConfigurationError: with the combinations that run.
    """
    if framework == "megatron" and zero_stage > 1:
        raise ConfigurationError(
            f"ZeRO stage {zero_stage} is not a Megatron-LM distributed optimizer",
            why="the distributed optimizer shards optimizer states only (ZeRO-1)",
            fix="zero_stage 0 or 1, or the deepspeed target",
        )
    if framework == "megatron" and offload == "optimizer+parameters":
        raise ConfigurationError(
            "Megatron-LM does not keep parameters in host memory",
            why="--optimizer-cpu-offload moves optimizer states only",
            fix="offload none or optimizer, or the deepspeed target",
        )
    if framework != "deepspeed":
        return
    if precision == "fp8":
        raise ConfigurationError(
            "fp8 with DeepSpeed",
            why="the trainer computes in bf16, fp16 or fp32",
            fix="--precision bf16, or the megatron target",
        )
    if pipeline_parallel > 1 and zero_stage > 1:
        raise ConfigurationError(
            f"ZeRO stage {zero_stage} with {pipeline_parallel} pipeline stages",
            why="DeepSpeed's pipeline engine keeps whole gradients: ZeRO-2 and ZeRO-3 are refused",
            fix="zero_stage 0 or 1 with a pipeline, or pipeline_parallel 1",
        )
    if virtual_stages > 1:
        raise ConfigurationError(
            f"{virtual_stages} virtual stages",
            why="DeepSpeed's PipelineModule runs plain 1F1B only",
            fix="one chunk a stage, or the megatron target",
        )
    if offload == "optimizer+parameters" and zero_stage < 3:
        raise ConfigurationError(
            f"parameter offload with ZeRO stage {zero_stage}",
            why="only ZeRO-3 shards parameters, so only it can offload them",
            fix="zero_stage 3",
        )
    if context_parallel > 1 or expert_parallel > 1:
        raise ConfigurationError(
            f"context_parallel {context_parallel} and expert_parallel {expert_parallel} "
            "with DeepSpeed",
            why="the exported DeepSpeed configuration has neither",
            fix="context_parallel 1 and expert_parallel 1, or the megatron target",
        )
