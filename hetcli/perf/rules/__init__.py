"""What a parallel configuration must satisfy before it is worth a prediction.

Two kinds of refusal. A degree that the model or the framework can never take is the user's mistake
(`ConfigurationError`, with the legal values); a batch, a world or a device pool that does not
suffice is a negative answer (`InfeasibleError`, with the nearest that would). Sources are
Megatron-LM's `validate_args` and `schedules.py` (core 0.19) and DeepSpeed's `PipelineEngine`,
unless a docstring names another one.
"""

from __future__ import annotations

from hetcli.perf.rules.batch import (
    check_batch,
    check_interleaving,
    check_micro_batch_count,
    check_pipeline,
    check_stage_layers,
    interleaving_is_legal,
    legal_batches,
)
from hetcli.perf.rules.degrees import (
    check_context_parallel,
    check_expert_parallel,
    check_tensor_parallel,
    legal_expert_parallel,
    legal_expert_tensor_parallel,
    legal_tensor_parallel,
)
from hetcli.perf.rules.frameworks import (
    FUSED_ATTENTION_CAPABILITY,
    check_framework,
    check_model,
    check_splits,
    has_fused_attention,
    runs_attention,
)
from hetcli.perf.rules.neighbours import can_talk, check_neighbours
from hetcli.perf.rules.numbers import divisors
from hetcli.perf.rules.precision import check_precision, nodes_without, supports
from hetcli.perf.rules.whole import check

__all__ = [
    "FUSED_ATTENTION_CAPABILITY",
    "can_talk",
    "check",
    "check_batch",
    "check_context_parallel",
    "check_expert_parallel",
    "check_framework",
    "check_interleaving",
    "check_micro_batch_count",
    "check_model",
    "check_neighbours",
    "check_pipeline",
    "check_precision",
    "check_splits",
    "check_stage_layers",
    "check_tensor_parallel",
    "divisors",
    "has_fused_attention",
    "interleaving_is_legal",
    "legal_batches",
    "legal_expert_parallel",
    "legal_expert_tensor_parallel",
    "legal_tensor_parallel",
    "nodes_without",
    "runs_attention",
    "supports",
]
