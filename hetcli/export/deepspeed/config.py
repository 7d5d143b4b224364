"""ds_config.json of a plan.

Keys and defaults: deepspeed/runtime/config.py and deepspeed/runtime/zero/config.py of 0.19. Unknown
keys at the top level are ignored by DeepSpeed, so they are spelled here once, and removed features
(MiCS, elasticity, sparse attention and others, gone since 0.19.7) do not appear.
"""

from __future__ import annotations

import json
from typing import Any, Final

from hetcli.spec.plan import Parallelism
from hetcli.spec.workload import Pretrain

__all__ = ["KEYS", "REMOVED_KEYS", "config_text", "deepspeed_config"]

# The keys at the top level that hetcli writes; DeepSpeed ignores a misspelled one in silence.
KEYS: Final = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "optimizer",
        "zero_optimization",
        "steps_per_print",
        "wall_clock_breakdown",
        "bf16",
        "fp16",
        "data_types",
        "zero_allow_untested_optimizer",
    }
)
# Keys whose features are gone since DeepSpeed 0.19.8, which refuses them: at the top level, and of
# zero_optimization.
REMOVED_KEYS: Final = frozenset(
    {
        "elasticity",
        "amp",
        "compression_training",
        "curriculum_learning",
        "sparse_attention",
        "progressive_layer_drop",
        "eigenvalue",
        "nebula",
        "quantize_training",
        "graph_harvesting",
        "sparse_gradients",
        "mics_shard_size",
        "mics_hierarchical_params_gather",
        "zeropp_loco_param",
    }
)

LEARNING_RATE = 3e-4
# DeepSpeed's default since 0.19.5, 0 before: written, so that it is the same for every release.
GRADIENT_CLIPPING = 1.0


def config_text(degrees: Parallelism, workload: Pretrain) -> str:
    """The file's text."""
    return json.dumps(deepspeed_config(degrees, workload), indent=2) + "\n"


def deepspeed_config(degrees: Parallelism, workload: Pretrain) -> dict[str, Any]:
    """The configuration that makes DeepSpeed do what the plan says.

    DeepSpeed insists on batch = micro-batch x accumulation x replicas; where replicas read unequal
    micro-batches, the planned one is nominal and so is the batch.
    """
    nominal = degrees.micro_batch_size * degrees.gradient_accumulation
    config: dict[str, Any] = {
        "train_batch_size": nominal * (degrees.data_parallel or 1),
        "train_micro_batch_size_per_gpu": degrees.micro_batch_size,
        "gradient_accumulation_steps": degrees.gradient_accumulation,
        "gradient_clipping": GRADIENT_CLIPPING,
        "optimizer": _optimizer(degrees, workload),
        "zero_optimization": _zero(degrees),
        "steps_per_print": 1_000_000_000,
        "wall_clock_breakdown": False,
    }
    if degrees.precision == "bf16":
        config["bf16"] = {"enabled": True}
        if degrees.pipeline_parallel > 1:
            # Otherwise bf16 gradients of all micro-batches are summed in bf16.
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    if degrees.precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 16}
    if workload.optimizer == "sgd":
        # ZeRO asks for consent to optimizers that it was not tried with.
        config["zero_allow_untested_optimizer"] = True
    return config


def _optimizer(degrees: Parallelism, workload: Pretrain) -> dict[str, Any]:
    if workload.optimizer == "sgd":
        return {"type": "SGD", "params": {"lr": LEARNING_RATE}}
    parameters: dict[str, Any] = {
        "lr": LEARNING_RATE,
        "betas": [0.9, 0.95],
        "weight_decay": 0.1,
        # PyTorch's own kernel; DeepSpeed's is compiled on the node. On the host there is no other.
        "torch_adam": degrees.offload == "none",
    }
    return {"type": "AdamW", "params": parameters}


def _zero(degrees: Parallelism) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": degrees.zero_stage,
        "overlap_comm": degrees.overlap_grad_reduce and degrees.zero_stage > 0,
        "contiguous_gradients": True,
    }
    if degrees.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if degrees.offload == "optimizer+parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero
