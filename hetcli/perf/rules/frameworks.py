"""What a framework itself cannot combine."""

from __future__ import annotations

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import Framework, Offload

__all__ = ["check_framework"]


def check_framework(
    framework: Framework,
    *,
    pipeline_parallel: int = 1,
    virtual_stages: int = 1,
    zero_stage: int = 0,
    offload: Offload = "none",
    context_parallel: int = 1,
    expert_parallel: int = 1,
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
