"""Plans that the trial runtime cannot run as they are meant, refused with what would work."""

from __future__ import annotations

from hetcli.errors import UnsupportedByTargetError
from hetcli.perf.configuration import Configuration
from hetcli.spec.model.architecture import Model

__all__ = ["check_supported"]


def check_supported(configuration: Configuration, model: Model) -> None:
    """Raise UnsupportedByTargetError for a plan whose trial would measure something else."""
    if model.adapters is not None:
        _refuse("adapters", "its layers train all of their weights", "plan without --lora")
    if configuration.precision == "fp8":
        _refuse("fp8 training", "its kernels are not PyTorch's own", "plan with --precision bf16")
    if configuration.zero_stage == 3:
        _refuse("ZeRO stage 3", "weights are held whole during a step", "plan with --zero 2")
    if configuration.offload != "none":
        _refuse(
            f"offload of {configuration.offload}",
            "optimizer and weights stay on the device",
            "plan without --offload",
        )
    slices, degrees = (
        configuration.expert_tensor_parallel,
        {stage.tensor_parallel for stage in configuration.stages},
    )
    if slices > 1 and (configuration.expert_parallel > 1 or degrees != {slices}):
        _refuse(
            f"expert_tensor_parallel {slices} with expert_parallel "
            f"{configuration.expert_parallel} and tensor_parallel {sorted(degrees)}",
            "experts are either cut like the other weights or whole",
            "plan with --etp 1",
        )


def _refuse(what: str, why: str, fix: str) -> None:
    raise UnsupportedByTargetError(f"hetcli trial does not run {what}", why=why, fix=fix)
