"""Bytes that every device of a configuration holds, itemised.

`states` says what parameters cost, `activations` and `head` what a micro-batch leaves behind,
`in_flight` how many micro-batches a stage holds, `overhead` what libraries and the driver take;
`stage_model` adds them up for many stages at once and `stage` for one. `estimators` are the
closed forms of frameworks for model states alone.
"""

from hetcli.perf.memory.activations import boundary_bytes, layer_activation_bytes
from hetcli.perf.memory.head import (
    embedding_activation_bytes,
    head_activation_bytes,
    padded_vocabulary,
)
from hetcli.perf.memory.in_flight import held_chunks, in_flight
from hetcli.perf.memory.stage import allocated_bytes, layer_kinds, stage_ends, stage_memory
from hetcli.perf.memory.stage_model import ITEMS, StageMemoryModel, stage_memory_model
from hetcli.perf.memory.states import StateBytes, layer_state_bytes

__all__ = [
    "ITEMS",
    "StageMemoryModel",
    "StateBytes",
    "allocated_bytes",
    "boundary_bytes",
    "embedding_activation_bytes",
    "head_activation_bytes",
    "held_chunks",
    "in_flight",
    "layer_activation_bytes",
    "layer_kinds",
    "layer_state_bytes",
    "padded_vocabulary",
    "stage_ends",
    "stage_memory",
    "stage_memory_model",
]
