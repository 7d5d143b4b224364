"""Options that limit what a plan may cost and use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from hetcli.errors import UsageError
from hetcli.units import parse_count, parse_throughput

__all__ = [
    "MaxCost",
    "MaxNodes",
    "MinThroughput",
    "QuotaOption",
    "Tokens",
    "given_limits",
    "tokens_of",
]

MaxCost = Annotated[
    float | None,
    typer.Option(
        "--max-cost-per-step", min=0, metavar="DOLLARS", help="Dearer plans are left out."
    ),
]
MinThroughput = Annotated[
    str | None,
    typer.Option("--min-throughput", metavar="RATE", help="400k tokens/s, or 0.2 steps/s."),
]
MaxNodes = Annotated[
    int | None, typer.Option("--max-nodes", min=1, metavar="N", help="Use at most N nodes.")
]
QuotaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--quota",
        metavar="NAME=N",
        help="At most N devices of a GPU type, fabric, zone or region; may be repeated.",
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens", metavar="COUNT", help="The token budget of the whole run: 1T."),
]


def given_limits(
    *, min_throughput: str | None, quota: Sequence[str] | None, **limits: float | None
) -> dict[str, Any]:
    """The limits as the planner takes them. Raises UsageError on what is no rate or quota."""
    if min_throughput is not None:
        try:
            value, what = parse_throughput(min_throughput)
        except ValueError as error:
            raise UsageError("--min-throughput", why=str(error)) from None
        limits[f"min_{what}_per_s"] = value
    return {**limits, "quotas": tuple(_quota(text) for text in quota or ())}


def _quota(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdecimal():
        raise UsageError(
            f"--quota {text}",
            why="a quota is a name and a number of devices",
            fix="--quota V100-SXM2-32GB=16, or --quota us-west1-b=64",
        )
    return name, int(number)


def tokens_of(text: str | None) -> int | None:
    """The tokens of `300B`. Raises UsageError on anything else."""
    if text is None:
        return None
    try:
        return parse_count(text)
    except ValueError as error:
        raise UsageError("--tokens", why=str(error)) from None
