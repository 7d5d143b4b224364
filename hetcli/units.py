"""Read and print quantities the way people write them; inside, everything is SI base units.

Bytes are integers; rates are bytes per second, durations seconds, both floats. A bare number is
refused wherever two readings are plausible: `80` may be GB or GiB, `200` Gbit/s or GB/s.
"""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = [
    "format_bytes",
    "format_bytes_exact",
    "format_count",
    "format_duration",
    "format_duration_exact",
    "format_flops",
    "format_money",
    "format_rate",
    "format_rate_exact",
    "parse_bytes",
    "parse_count",
    "parse_duration",
    "parse_flops",
    "parse_rate",
]

GIB: Final = 1024**3

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "Ti": 1024.0**4, "Pi": 1024.0**5}
_PREFIXES: Final = {**_DECIMAL, **_BINARY}
_SECONDS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_NUMBER: Final = r"(?P<number>[+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
_BYTES: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP]i?)?B")
_RATE_BYTES: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP]i?)?B(?:/s|ps)")
_RATE_BITS: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP])?(?:b|bit|bits)(?:/s|ps)")
_DURATION: Final = re.compile(rf"{_NUMBER}\s*(?P<unit>ns|us|µs|ms|s|min|h|d)")
_COUNT: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTPB]i?)?")
_FLOPS: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP])?(?:FLOP/s|FLOPS|FLOPs|flops)")


def _match(pattern: re.Pattern[str], text: str, kind: str, example: str) -> re.Match[str]:
    found = pattern.fullmatch(text.strip())
    if found is None:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise ValueError(f"{shown!r} is not a {kind}; write it like {example}")
    return found


def _finite(value: float, text: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too large to be a quantity")
    return value


def parse_bytes(text: str) -> int:
    """Bytes from `80GiB`, `80GB` or `512B`. Raises ValueError on a bare number or another unit."""
    found = _match(_BYTES, text, "size", "80GiB or 80GB (a bare number could be either)")
    value = float(found["number"]) * _PREFIXES[found["prefix"] or ""]
    return round(_finite(value, text))


def parse_rate(text: str) -> float:
    """Bytes per second from `200Gbps` (bits) or `25GB/s` (bytes). Raises ValueError otherwise."""
    bits = _RATE_BITS.fullmatch(text.strip())
    if bits is not None:
        return _finite(float(bits["number"]) * _PREFIXES[bits["prefix"] or ""] / 8, text)
    example = "200Gbps (bits) or 25GB/s (bytes); a bare number could be either"
    found = _match(_RATE_BYTES, text, "rate", example)
    return _finite(float(found["number"]) * _PREFIXES[found["prefix"] or ""], text)


def parse_duration(text: str) -> float:
    """Seconds from `5us`, `3ms`, `10s`, `2min`, `7.9h`, `30d`. Raises ValueError otherwise."""
    found = _match(_DURATION, text, "duration", "5us, 3ms, 10s, 2min, 4h or 30d")
    return _finite(float(found["number"]) * _SECONDS[found["unit"]], text)


def parse_count(text: str) -> int:
    """A whole number from `512`, `128k` (128,000), `4Ki` (4,096), `1.5M` or `300B`.

    Raises ValueError on anything else, also on a fraction.
    """
    found = _match(_COUNT, text, "count", "512, 4Ki (4,096), 128k (128,000) or 300B")
    prefix = found["prefix"] or ""
    factor = 1e9 if prefix == "B" else _PREFIXES.get(prefix)
    if factor is None:
        raise ValueError(f"{text!r} is not a count; write it like 512, 4Ki or 300B")
    value = _finite(float(found["number"]) * factor, text)
    if abs(value - round(value)) > 1e-6:
        raise ValueError(f"{text!r} is not a whole number")
    return round(value)


def parse_flops(text: str) -> float:
    """FLOP/s from `312TFLOP/s` or `1.98PFLOPS`. Raises ValueError otherwise."""
    found = _match(_FLOPS, text, "compute rate", "312TFLOP/s")
    return _finite(float(found["number"]) * _PREFIXES[found["prefix"] or ""], text)


def _trim(value: float, digits: int = 3) -> str:
    """At most `digits` significant digits, without a trailing zero after the point."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_bytes(value: float) -> str:
    """`78.2 GiB`: binary units, three significant digits."""
    sign, size = ("-", -value) if value < 0 else ("", float(value))
    for prefix in ("", "Ki", "Mi", "Gi", "Ti"):
        if size < 1024 or prefix == "Ti":
            return f"{sign}{_trim(size)} {prefix}B"
        size /= 1024
    raise AssertionError("unreachable")


def format_bytes_exact(value: int) -> str:
    """A spelling that `parse_bytes` reads back to the same number of bytes."""
    for prefix, factor in reversed(_BINARY.items()):
        if value and value % int(factor) == 0:
            return f"{value // int(factor)}{prefix}B"
    return f"{value}B"


def format_rate(value: float) -> str:
    """`25 GB/s`: decimal units, as network and memory rates are quoted."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{_trim(value / factor)} {prefix}B/s"
    return f"{_trim(value)} B/s"


def format_rate_exact(value: float) -> str:
    """A spelling that `parse_rate` reads back to the same rate."""
    return f"{value!r}B/s"


def format_duration(value: float) -> str:
    """`12.3 s`, `4.5 ms`, `2.1 h`: three significant digits."""
    size = abs(value)
    if size == 0:
        return "0 s"
    for unit in ("d", "h", "min", "s", "ms", "us"):
        if size >= _SECONDS[unit] * (2 if unit in ("d", "h", "min") else 1):
            return f"{_trim(value / _SECONDS[unit])} {unit}"
    return f"{_trim(value / 1e-9)} ns"


def format_duration_exact(value: float) -> str:
    """A spelling that `parse_duration` reads back to the same duration."""
    return f"{value!r}s"


def format_flops(value: float) -> str:
    """`312 TFLOP/s`."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if value >= factor:
            return f"{_trim(value / factor)} {prefix}FLOP/s"
    return f"{_trim(value)} FLOP/s"


def format_count(value: float) -> str:
    """`6.74B`, `32.8k`: three significant digits with a decimal prefix."""
    for prefix, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{_trim(value / factor)}{prefix}"
    return _trim(value)


def format_money(value: float) -> str:
    """`$0.278`: three significant digits below one dollar, cents from there on."""
    return f"${_trim(value)}" if abs(value) < 1 else f"${value:,.2f}"
