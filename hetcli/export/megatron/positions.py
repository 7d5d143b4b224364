"""Position embeddings as Megatron-LM's options say them.

Source: megatron/training/arguments.py, `RotaryEmbedding` and `YarnRotaryEmbedding` of core 0.19.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from hetcli.errors import UnsupportedByTargetError
from hetcli.export.program import Argument
from hetcli.spec.model.architecture import (
    LatentAttention,
    Layer,
    Model,
    Rotary,
    RotaryScaling,
)

__all__ = ["position_arguments"]

Refuse = Callable[[Model, str, str], UnsupportedByTargetError]

# Constants of Megatron-LM's Llama 3 scaling, which has an option for the factor only
# (RotaryEmbedding._apply_scaling): low and high frequency factor, original sequence.
LLAMA3: Final = (1.0, 4.0, 8192)
# Defaults of MLATransformerConfig that have no option: original sequence, beta_fast, beta_slow.
LATENT_YARN: Final = (4096, 32.0, 1.0)


def position_arguments(
    model: Model, layers: list[Layer], sequence: int, refuse: Refuse
) -> Iterator[Argument]:
    """The options of the position embedding.

    Raises what `refuse` makes for an embedding that has no option.
    """
    positions = model.positions
    latent = any(isinstance(layer.attention, LatentAttention) for layer in layers)
    table = positions.table_size if positions.kind == "learned" else model.max_sequence
    yield Argument("--max-position-embeddings", (str(max(table, sequence)),))
    match positions.kind:
        case "learned":
            if sequence > table:
                raise refuse(
                    model,
                    f"sequences of {sequence} tokens",
                    f"its position table has {table} rows",
                )
            yield Argument("--position-embedding-type", ("learned_absolute",))
        case "none":
            yield Argument("--position-embedding-type", ("none",))
        case "rope":
            yield from _rotary(model, positions.rotary or Rotary(), latent, sequence, refuse)
        case kind:
            raise refuse(model, f"{kind} positions", "they are learned, rotary, YaRN or none")
    if model.prediction_layers and positions.kind != "rope":
        raise refuse(model, "prediction layers", "--mtp-num-layers needs rotary positions")


def _rotary(
    model: Model, rotary: Rotary, latent: bool, sequence: int, refuse: Refuse
) -> Iterator[Argument]:
    scaling = rotary.scaling
    yarn = scaling is not None and scaling.kind == "yarn"
    yield Argument("--position-embedding-type", ("yarn" if yarn and not latent else "rope",))
    if not float(rotary.base).is_integer():
        raise refuse(model, f"the rotary base {rotary.base}", "--rotary-base is an integer")
    if rotary.local_base is not None:
        raise refuse(model, "a second rotary base", "--rotary-base holds for all layers")
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
        yield from _scaling(model, scaling, latent, sequence, refuse)


def _scaling(
    model: Model, scaling: RotaryScaling, latent: bool, sequence: int, refuse: Refuse
) -> Iterator[Argument]:
    original = scaling.original_max_sequence
    factor = scaling.factor or 1.0
    match scaling.kind:
        case "llama3" if not latent:
            found = (scaling.low_frequency_factor, scaling.high_frequency_factor, original)
            if found != LLAMA3:
                raise refuse(
                    model,
                    f"a Llama 3 rotary scaling with {found}",
                    f"only the factor is an option; the others are {LLAMA3}",
                )
            yield Argument("--use-rope-scaling")
            yield Argument("--rope-scaling-factor", (repr(factor),))
        case "linear" if not latent and factor.is_integer():
            yield Argument("--rotary-seq-len-interpolation-factor", (str(int(factor)),))
        case "yarn":
            yield from _yarn(model, scaling, factor, latent, refuse)
        case "dynamic" if original is None or sequence <= original:
            return  # Changes nothing up to the sequence that it was trained on.
        case kind:
            raise refuse(
                model,
                f"the {kind} rotary scaling",
                "scalings are Llama 3, linear by an integer, and YaRN",
            )


def _yarn(
    model: Model, scaling: RotaryScaling, factor: float, latent: bool, refuse: Refuse
) -> Iterator[Argument]:
    original = scaling.original_max_sequence or LATENT_YARN[0]
    betas = (scaling.beta_fast or LATENT_YARN[1], scaling.beta_slow or LATENT_YARN[2])
    if latent and (original, *betas) != LATENT_YARN:
        raise refuse(
            model,
            f"a YaRN scaling of latent attention with {(original, *betas)}",
            f"original sequence, beta_fast and beta_slow have no option; they are {LATENT_YARN}",
        )
    mscale = 1.0 if scaling.mscale is None else scaling.mscale
    mscale_all = scaling.mscale_all_dim or 0.0
    usual = _concentration(factor, mscale) / _concentration(factor, mscale_all)
    wanted = scaling.attention_factor
    if wanted is not None and not math.isclose(wanted, usual, rel_tol=1e-6):
        raise refuse(
            model,
            f"the YaRN attention factor {wanted}",
            f"it follows from the scaling: {usual:.6g}",
        )
    yield Argument("--rotary-scaling-factor", (repr(factor),))
    if not latent:
        yield Argument("--yarn-original-max-position-embeddings", (str(original),))
        yield Argument("--yarn-beta-fast", (repr(float(betas[0])),))
        yield Argument("--yarn-beta-slow", (repr(float(betas[1])),))
    yield Argument("--mscale", (repr(mscale),))
    yield Argument("--mscale-all-dim", (repr(mscale_all),))


def _concentration(factor: float, mscale: float) -> float:
    """YaRN's softmax temperature (arXiv 2309.00071, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
