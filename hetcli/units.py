"""Read and print quantities the way people write them; inside, everything is SI base units.

Bytes are integers; rates are bytes per second, durations seconds, both floats. A bare number is
refused wherever two readings are plausible: `80` may be GB or GiB, `200` Gbit/s or GB/s.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import floor, log10
from typing import Final, Literal

__all__ = [
    "format_bytes",
    "format_bytes_exact",
    "format_count",
    "format_duration",
    "format_duration_exact",
    "format_flop",
    "format_flops",
    "format_money",
    "format_rate",
    "format_rate_exact",
    "parse_bytes",
    "parse_count",
    "parse_duration",
    "parse_flops",
    "parse_rate",
    "parse_throughput",
]

GIB: Final = 1024**3

_DECIMAL: Final = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}
_BINARY: Final = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4, "Pi": 1024**5}
_PREFIXES: Final = {**_DECIMAL, **_BINARY}
# Micro is written with the micro sign (U+00B5), the Greek letter mu (U+03BC) or a plain u.
_SECONDS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),
    "\u03bcs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
# At most 40 digits and a three-digit exponent: more is a mistake, and slow to compute with.
_NUMBER: Final = (
    r"(?P<number>[+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?)"
)
_BYTES: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP]i?)?B")
_RATE_BYTES: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP]i?)?B(?:/s|ps)")
_RATE_BITS: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP])?(?:b|bit|bits)(?:/s|ps)")
_DURATION: Final = re.compile(rf"{_NUMBER}\s*(?P<unit>ns|us|\u00b5s|\u03bcs|ms|s|min|h|d)")
_COUNT: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP]i?|B)?")
_FLOPS: Final = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMGTP])?(?:FLOP/s|FLOPS|FLOPs|flops)")

_THROUGHPUT: Final = re.compile(
    rf"{_NUMBER}\s*(?P<prefix>[kKMGTP]i?|B)?\s*(?P<what>tokens|steps)/s"
)


def _match(pattern: re.Pattern[str], text: str, kind: str, example: str) -> re.Match[str]:
    found = pattern.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{_shown(text)} is not a {kind}; write it like {example}")
    return found


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."


def _exact(found: re.Match[str], factor: int | Fraction) -> Fraction:
    """The number of a match times `factor`, without rounding."""
    return Fraction(found["number"]) * factor


def _float(value: Fraction, text: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{_shown(text)} is too large; the largest quantity is 1e308") from None


def parse_bytes(text: str) -> int:
    """Bytes from `80GiB`, `80GB` or `512B`. Raises ValueError on a bare number or another unit."""
    found = _match(_BYTES, text, "size", "80GiB or 80GB (a bare number could be either)")
    return round(_exact(found, _PREFIXES[found["prefix"] or ""]))


def parse_rate(text: str) -> float:
    """Bytes per second from `200Gbps` (bits) or `25GB/s` (bytes). Raises ValueError otherwise."""
    bits = _RATE_BITS.fullmatch(text.strip())
    if bits is not None:
        return _float(_exact(bits, _PREFIXES[bits["prefix"] or ""]) / 8, text)
    example = "200Gbps (bits) or 25GB/s (bytes); a bare number could be either"
    found = _match(_RATE_BYTES, text, "rate", example)
    return _float(_exact(found, _PREFIXES[found["prefix"] or ""]), text)


def parse_duration(text: str) -> float:
    """Seconds from `5us`, `3ms`, `10s`, `2min`, `7.9h`, `30d`. Raises ValueError otherwise."""
    found = _match(_DURATION, text, "duration", "5us, 3ms, 10s, 2min, 4h or 30d")
    return _float(_exact(found, _SECONDS[found["unit"]]), text)


def parse_count(text: str) -> int:
    """A whole number from `512`, `128k` (128,000), `4Ki` (4,096), `1.5M` or `300B`.

    Raises ValueError on anything else, also on a fraction.
    """
    example = "512, 4Ki (4,096), 128k (128,000) or 300B"
    found = _match(_COUNT, text, "count", example)
    prefix = found["prefix"] or ""
    value = _exact(found, 10**9 if prefix == "B" else _PREFIXES[prefix])
    if value.denominator != 1:
        raise ValueError(f"{_shown(text)} is not a whole number; write it like {example}")
    return value.numerator


def parse_flops(text: str) -> float:
    """FLOP/s from `312TFLOP/s` or `1.98PFLOPS`. Raises ValueError otherwise."""
    found = _match(_FLOPS, text, "compute rate", "312TFLOP/s")
    return _float(_exact(found, _PREFIXES[found["prefix"] or ""]), text)


def parse_throughput(text: str) -> tuple[float, Literal["tokens", "steps"]]:
    """Tokens or optimizer steps a second, and which: `400k tokens/s` or `0.2 steps/s`.

    Raises ValueError on a bare number: it could be either.
    """
    example = "400k tokens/s or 0.2 steps/s"
    found = _match(_THROUGHPUT, text, "throughput", example)
    prefix = found["prefix"] or ""
    value = _float(_exact(found, 10**9 if prefix == "B" else _PREFIXES[prefix]), text)
    return value, "tokens" if found["what"] == "tokens" else "steps"


def _significant(value: float) -> float:
    """The value rounded to three significant digits: what decides the unit, as it is printed."""
    return float(f"{value:.2e}")


def _trim(value: float) -> str:
    """Three significant digits, without a trailing zero after the point."""
    if value == 0:
        return "0"
    rounded = _significant(value)
    decimals = max(0, 2 - floor(log10(abs(rounded))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, prefixes: tuple[str, ...], unit: str) -> str:
    """The value with the largest decimal prefix that leaves at least one before the point."""
    size, space = abs(_significant(value)), " " if unit else ""
    for prefix in prefixes:
        factor = 10**9 if prefix == "B" else _DECIMAL[prefix]
        if size >= factor:
            return f"{_trim(value / factor)}{space}{prefix}{unit}"
    return f"{_trim(value)}{space}{unit}"


def format_bytes(value: float) -> str:
    """`78.2 GiB`: binary units, three significant digits."""
    sign, size, prefix = ("-" if value < 0 else ""), abs(float(value)), ""
    for larger in _BINARY:
        # 1023.5 would be printed as 1,024 of this unit, which is one of the next.
        if size < 1023.5 or prefix == "Ti":
            break
        size, prefix = size / 1024, larger
    return f"{sign}{_trim(size)} {prefix}B"


def format_bytes_exact(value: int) -> str:
    """A spelling that `parse_bytes` reads back to the same number of bytes."""
    for prefix, factor in reversed(_BINARY.items()):
        if value and value % factor == 0:
            return f"{value // factor}{prefix}B"
    return f"{value}B"


def format_rate(value: float) -> str:
    """`25 GB/s`: decimal units, as network and memory rates are quoted."""
    return _scaled(value, ("T", "G", "M", "k"), "B/s")


def format_rate_exact(value: float) -> str:
    """A spelling that `parse_rate` reads back to the same rate: `12.5GB/s` where that is exact."""
    for prefix in ("T", "G", "M", "k"):
        text = f"{value / _DECIMAL[prefix]:.12g}{prefix}B/s"
        if value >= _DECIMAL[prefix] and parse_rate(text) == value:
            return text
    return f"{value!r}B/s"


def format_duration(value: float) -> str:
    """`12.3 s`, `4.5 ms`, `2.1 h`: three significant digits; minutes and more from two on."""
    size = abs(_significant(value))
    for unit, least in (("d", 2), ("h", 2), ("min", 2), ("s", 1), ("ms", 1), ("us", 1)):
        if size >= _SECONDS[unit] * least:
            return f"{_trim(float(value / _SECONDS[unit]))} {unit}"
    return f"{_trim(float(value / _SECONDS['ns']))} ns" if value else "0 s"


def format_duration_exact(value: float) -> str:
    """A spelling that `parse_duration` reads back to the same duration: `5us` where it is exact."""
    for unit in ("s", "ms", "us"):
        text = f"{float(value / _SECONDS[unit]):.12g}{unit}"
        if value >= _SECONDS[unit] and parse_duration(text) == value:
            return text
    return f"{value!r}s"


def format_flop(value: float) -> str:
    """`312 TFLOP`: an amount of work, decimal units, three significant digits."""
    return _scaled(value, ("E", "P", "T", "G"), "FLOP")


def format_flops(value: float) -> str:
    """`312 TFLOP/s`: a rate of work."""
    return _scaled(value, ("P", "T", "G"), "FLOP/s")


def format_count(value: float) -> str:
    """`6.74B`, `32.8k`: three significant digits with a decimal prefix."""
    return _scaled(value, ("T", "B", "M", "k"), "")


def format_money(value: float) -> str:
    """`$0.278`: three significant digits below one dollar, cents from there on."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    return f"{sign}${_trim(size)}" if _significant(size) < 1 else f"{sign}${size:,.2f}"
