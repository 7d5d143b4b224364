"""Position embeddings as Megatron-LM's options say them, of models that pass its rules.

Source: megatron/training/arguments.py, `RotaryEmbedding` and `YarnRotaryEmbedding` of core 0.19.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hetcli.export.program import Argument
from hetcli.perf.rules.megatron_model import LATENT_YARN
from hetcli.spec.model.architecture import (
    LatentAttention,
    Layer,
    Model,
    Rotary,
    RotaryScaling,
)

__all__ = ["position_arguments"]


def position_arguments(model: Model, layers: list[Layer], sequence: int) -> Iterator[Argument]:
    """The options of the position embedding."""
    positions = model.positions
    latent = any(isinstance(layer.attention, LatentAttention) for layer in layers)
    table = positions.table_size if positions.kind == "learned" else model.max_sequence
    yield Argument("--max-position-embeddings", (str(max(table, sequence)),))
    match positions.kind:
        case "learned":
            yield Argument("--position-embedding-type", ("learned_absolute",))
        case "none":
            yield Argument("--position-embedding-type", ("none",))
        case "rope":
            yield from _rotary(positions.rotary or Rotary(), latent)


def _rotary(rotary: Rotary, latent: bool) -> Iterator[Argument]:
    scaling = rotary.scaling
    yarn = scaling is not None and scaling.kind == "yarn"
    yield Argument("--position-embedding-type", ("yarn" if yarn and not latent else "rope",))
    yield Argument("--rotary-base", (str(int(rotary.base)),))
    if not math.isclose(rotary.fraction, 1.0):
        yield Argument("--rotary-percent", (repr(rotary.fraction),))
    if rotary.interleaved and not latent:
        yield Argument("--rotary-interleaved")
    if latent:
        yield Argument("--rope-type", ("yarn" if yarn else "rope",))
        if not yarn:
            yield Argument("--no-rope-fusion", why="the fused kernel for latent attention is YaRN")
    if scaling is not None:
        yield from _scaling(scaling, latent)


def _scaling(scaling: RotaryScaling, latent: bool) -> Iterator[Argument]:
    factor = scaling.factor or 1.0
    match scaling.kind:
        case "llama3":
            yield Argument("--use-rope-scaling")
            yield Argument("--rope-scaling-factor", (repr(factor),))
        case "linear":
            yield Argument("--rotary-seq-len-interpolation-factor", (str(int(factor)),))
        case "yarn":
            yield from _yarn(scaling, factor, latent)


def _yarn(scaling: RotaryScaling, factor: float, latent: bool) -> Iterator[Argument]:
    yield Argument("--rotary-scaling-factor", (repr(factor),))
    if not latent:
        original = scaling.original_max_sequence or LATENT_YARN[0]
        betas = (scaling.beta_fast or LATENT_YARN[1], scaling.beta_slow or LATENT_YARN[2])
        yield Argument("--yarn-original-max-position-embeddings", (str(original),))
        yield Argument("--yarn-beta-fast", (repr(float(betas[0])),))
        yield Argument("--yarn-beta-slow", (repr(float(betas[1])),))
    yield Argument("--mscale", (repr(1.0 if scaling.mscale is None else scaling.mscale),))
    yield Argument("--mscale-all-dim", (repr(scaling.mscale_all_dim or 0.0),))
