"""Seconds of the optimizer step on a device, or on its host when the states are offloaded."""

from __future__ import annotations

from typing import Literal

from hetcli.perf.configuration import Offload
from hetcli.perf.hardware import DeviceType

__all__ = ["optimizer_time"]

# Bytes that mixed-precision Adam moves for a parameter: the fp32 gradient is read, both moments
# and the master weight are read and written, the 16-bit weight is written (arXiv 1910.02054, 3.1).
ADAM_BYTES = 4 + 3 * 8 + 2
# The same without moments: gradient, master weight, weight.
SGD_BYTES = 4 + 8 + 2
# Megatron-LM and DeepSpeed read the gradients once more for the norm and scale them in place.
CLIP_BYTES = 3 * 4
# Assumed: what CPU Adam sustains over its share of a host's memory channels.
HOST_BYTES_PER_S = 20e9


def optimizer_time(
    state_parameters: float,
    device_type: DeviceType,
    optimizer: Literal["adam", "sgd"] = "adam",
    offload: Offload = "none",
) -> float:
    """Seconds to update `state_parameters` (those whose optimizer state this device holds)."""
    touched = (ADAM_BYTES if optimizer == "adam" else SGD_BYTES) + CLIP_BYTES
    if offload != "none":
        return state_parameters * touched / HOST_BYTES_PER_S
    bandwidth = device_type.gpu.memory_bytes_per_s * device_type.shares.streaming.value
    nbytes = state_parameters * touched
    return nbytes / bandwidth * device_type.slowdown
