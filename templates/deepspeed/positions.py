"""Where a token stands: rotary tables with their scalings, and ALiBi's slopes.

The scalings are those of Hugging Face's `rope_scaling`, by the names that plan.json uses.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

Table = tuple[Tensor, Tensor, bool]


def rotary_table(
    model: dict[str, Any], size: int, query: Tensor, window: int | None
) -> Table | None:
    """Cosines and sines for the first dimensions of a head of `size`; None without rotation."""
    positions = model["positions"]
    if positions["kind"] != "rope":
        return None
    rotary = positions["rotary"] or {"base": 10000.0, "fraction": 1.0}
    base = rotary["base"]
    if window is not None and rotary.get("local_base"):
        base = rotary["local_base"]
    dimensions = int(size * rotary["fraction"]) // 2 * 2
    length = query.shape[2]
    frequencies, gain = _frequencies(
        dimensions, base, _hashable(rotary.get("scaling")), model["max_sequence"], length
    )
    steps = torch.arange(length, device=query.device, dtype=torch.float32)
    angles = steps[:, None] * frequencies.to(query.device)[None, :]
    return angles.cos() * gain, angles.sin() * gain, bool(rotary.get("interleaved"))


def rotate(tensor: Tensor, table: Table | None) -> Tensor:
    """The tensor with its first dimensions turned by the table's angles."""
    if table is None:
        return tensor
    cosine, sine, interleaved = table
    turned, still = tensor[..., : 2 * cosine.shape[-1]].float(), tensor[..., 2 * cosine.shape[-1] :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    parts = (first * cosine - second * sine, second * cosine + first * sine)
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([turned.to(tensor.dtype), still], dim=-1)


def softmax_correction(model: dict[str, Any]) -> float:
    """What YaRN multiplies the softmax scale of latent attention by."""
    rotary = model["positions"].get("rotary") or {}
    scaling = rotary.get("scaling") or {}
    if scaling.get("kind") != "yarn" or not scaling.get("mscale_all_dim"):
        return 1.0
    return _concentration(scaling["factor"] or 1.0, scaling["mscale_all_dim"]) ** 2


def alibi_slopes(heads: int) -> Tensor:
    """One slope a head (arXiv 2108.12409): a geometric sequence from 2^(-8/n), n a power of two."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (number + 1) / power) for number in range(power)]
    slopes += [2 ** (-4 * (2 * number + 1) / power) for number in range(heads - power)]
    return torch.tensor(slopes)


def _hashable(scaling: dict[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    if scaling is None:
        return ()
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(scaling.items()))


@lru_cache(maxsize=16)
def _frequencies(
    dimensions: int, base: float, items: tuple[tuple[str, Any], ...], longest: int, length: int
) -> tuple[Tensor, float]:
    """The angle that each pair of dimensions turns by from token to token, and the table's gain."""
    scaling = dict(items)
    exponents = torch.arange(0, dimensions, 2, dtype=torch.float32) / dimensions
    plain = base**-exponents
    factor = scaling.get("factor") or 1.0
    original = scaling.get("original_max_sequence") or longest
    match scaling.get("kind"):
        case "linear":
            return plain / factor, 1.0
        case "dynamic" if length > original:
            grown = factor * length / original - (factor - 1)
            return (base * grown ** (dimensions / (dimensions - 2))) ** -exponents, 1.0
        case "llama3":
            return _llama3(plain, scaling, factor, original), 1.0
        case "yarn":
            return _yarn(plain, scaling, factor, original, dimensions, base)
        case "longrope":
            chosen = "long_factors" if length > original else "short_factors"
            stretch = longest / original
            usual = 1.0
            if stretch > 1:
                usual = math.sqrt(1 + math.log(stretch) / math.log(original))
            gain = scaling.get("attention_factor") or usual
            return plain / torch.tensor(scaling[chosen], dtype=torch.float32), gain
    return plain, 1.0


def _llama3(plain: Tensor, scaling: dict[str, Any], factor: float, original: int) -> Tensor:
    low = scaling.get("low_frequency_factor") or 1.0
    high = scaling.get("high_frequency_factor") or 4.0
    turns = original * plain / (2 * math.pi)
    mix = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - mix) * plain / factor + mix * plain


def _yarn(
    plain: Tensor,
    scaling: dict[str, Any],
    factor: float,
    original: int,
    dimensions: int,
    base: float,
) -> tuple[Tensor, float]:
    fast, slow = scaling.get("beta_fast") or 32.0, scaling.get("beta_slow") or 1.0

    def dimension(turns: float) -> float:
        return dimensions * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(fast)), 0)
    high = min(math.ceil(dimension(slow)), dimensions - 1)
    ramp = (torch.arange(dimensions // 2) - low) / max(high - low, 0.001)
    kept = 1 - ramp.clamp(0.0, 1.0)
    gain = scaling.get("attention_factor")
    if gain is None:
        mscale = 1.0 if scaling.get("mscale") is None else scaling["mscale"]
        all_dim = scaling.get("mscale_all_dim") or 0.0
        gain = _concentration(factor, mscale) / _concentration(factor, all_dim)
    return plain / factor * (1 - kept) + plain * kept, gain


def _concentration(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
