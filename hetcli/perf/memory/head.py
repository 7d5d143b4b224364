"""Bytes that the ends of the model keep: the embedding, the final norm, the logits and the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetcli.perf.configuration import Framework, Shape
from hetcli.perf.memory.activations import (
    element_bytes,
    sequence_ways,
    tokens,
    trains_with_dropout,
)
from hetcli.spec.model.architecture import Model

__all__ = [
    "HeadActivations",
    "embedding_activation_bytes",
    "head_activation_bytes",
    "padded_vocabulary",
]

# Megatron-LM, megatron/training/arguments.py: --make-vocab-size-divisible-by.
VOCABULARY_MULTIPLE = 128


@dataclass(frozen=True, slots=True)
class HeadActivations:
    """Bytes of one micro-batch at the end of the model.

    `hidden` are the final norm's input and output. `loss` is the fp32 softmax that stays until the
    backward pass; `logits` are the copies of the head's output that live while the loss runs.
    """

    hidden: int
    loss: int
    logits: int


def padded_vocabulary(model: Model, tensor_parallel: int, framework: Framework) -> int:
    """Rows of the word table: Megatron-LM (and its DeepSpeed fork) pad to 128 x tensor ranks."""
    if framework != "megatron" and tensor_parallel == 1:
        return model.vocab_size
    multiple = VOCABULARY_MULTIPLE * tensor_parallel
    return math.ceil(model.vocab_size / multiple) * multiple


def embedding_activation_bytes(model: Model, shape: Shape) -> int:
    """The mask of the dropout behind the embedding; its output is the first layer's input."""
    if not trains_with_dropout(model):
        return 0
    return math.ceil(tokens(shape) * model.hidden_size / sequence_ways(shape))


def head_activation_bytes(model: Model, shape: Shape, framework: Framework) -> HeadActivations:
    """What one micro-batch keeps behind the last layer, prediction layers' own heads included.

    The loss is computed in fp32, 4 bytes a logit: Megatron-LM works in place of its copy of the
    logits (megatron/core/tensor_parallel/cross_entropy.py), 6 bytes a logit with the bf16 ones;
    PyTorch's cross_entropy needs that copy beside its result, 10 bytes a logit. A fused loss keeps
    the bf16 logits and writes their gradient beside them, 4 bytes a logit (flash-attention,
    flash_attn/losses/cross_entropy.py).
    """
    here, hidden = tokens(shape), model.hidden_size * element_bytes(shape)
    vocabulary = padded_vocabulary(model, shape.tensor_parallel, framework)
    logits = here * vocabulary / shape.tensor_parallel
    copies, kept = 0 if shape.precision == "fp32" else element_bytes(shape), 4
    if shape.fused_loss:
        copies = kept = element_bytes(shape)
    elif framework != "megatron":
        copies += 4
    return HeadActivations(
        hidden=math.ceil(here * hidden * (1 + model.final_norm) / sequence_ways(shape)),
        loss=math.ceil(kept * logits * (1 + model.prediction_layers)),
        logits=math.ceil(copies * logits),
    )
