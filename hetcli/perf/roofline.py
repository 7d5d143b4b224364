"""The roofline of a device: what its memory and its arithmetic allow (Williams et al., 2009)."""

from __future__ import annotations

from typing import Final

from hetcli.catalog.gpu import Dtype

__all__ = ["matmul_intensity", "roof"]

# Bytes of an element in memory; tf32 is stored as fp32.
_ELEMENT_BYTES: Final[dict[Dtype, int]] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


def matmul_intensity(m: int, n: int, k: int, dtype: Dtype) -> float:
    """FLOP a byte of an (m, k) x (k, n) product that reads and writes every matrix once."""
    return 2 * m * n * k / (_ELEMENT_BYTES[dtype] * (m * k + k * n + m * n))


def roof(intensity: float, memory_bytes_per_s: float, peak_flops: float) -> float:
    """FLOP/s that a kernel of this intensity (FLOP/byte) can reach: equation 1 of the paper."""
    return min(peak_flops, intensity * memory_bytes_per_s)
