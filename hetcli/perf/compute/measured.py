"""Layer times that somebody measured on a device type, and how far they carry."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hetcli.perf.configuration import TrainingPrecision

__all__ = ["Interpolated", "LayerKind", "MeasuredLayers", "MeasuredPoint"]

LayerKind = Literal["embedding", "layer", "head"]
Key = tuple[LayerKind, int, TrainingPrecision]


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """Seconds of one pass of one micro-batch, and of the optimizer on the layer's parameters."""

    sequence: int
    micro_batch_size: int
    forward_s: float
    backward_s: float
    update_s: float | None = None


@dataclass(frozen=True, slots=True)
class Interpolated:
    """What the table says of a shape. Where it is outside, what its nearest point says.

    `sequence` and `micro_batch_size` are those that the seconds hold for: the asked ones inside the
    table, those of the nearest point outside.
    """

    sequence: int
    micro_batch_size: int
    forward_s: float
    backward_s: float
    update_s: float | None
    inside: bool


@dataclass(frozen=True)
class MeasuredLayers:
    """A layer table of one model on one device type.

    `points` are by layer kind, tensor-parallel degree and dtype. `includes_tensor_parallel` says
    whether the seconds contain the collectives of the tensor ranks.
    """

    points: Mapping[Key, Sequence[MeasuredPoint]]
    includes_tensor_parallel: bool = True

    def find(
        self,
        kind: LayerKind,
        tensor_parallel: int,
        precision: TrainingPrecision,
        sequence: int,
        micro_batch_size: int,
    ) -> Interpolated | None:
        """Seconds of a shape: linear between micro-batches, then between sequences.

        None when nothing was measured of the layer kind at this degree and dtype.
        """
        rows = self.points.get((kind, tensor_parallel, precision))
        if not rows:
            return None
        lengths = sorted({point.sequence for point in rows})
        at = _around(lengths, sequence)
        found = [_along_batch([p for p in rows if p.sequence == n], micro_batch_size) for n in at]
        if len(found) == 1:
            only = found[0]
            return Interpolated(
                at[0],
                only.micro_batch_size,
                only.forward_s,
                only.backward_s,
                only.update_s,
                only.inside and at[0] == sequence,
            )
        share = (sequence - at[0]) / (at[1] - at[0])
        low, high = found
        return Interpolated(
            sequence,
            micro_batch_size if low.inside and high.inside else low.micro_batch_size,
            low.forward_s + share * (high.forward_s - low.forward_s),
            low.backward_s + share * (high.backward_s - low.backward_s),
            low.update_s,
            low.inside and high.inside,
        )


def _around(values: Sequence[int], wanted: int) -> tuple[int, ...]:
    """The value itself, its two neighbours, or the nearest end."""
    position = bisect.bisect_left(values, wanted)
    if position < len(values) and values[position] == wanted:
        return (wanted,)
    if position in (0, len(values)):
        return (values[min(position, len(values) - 1)],)
    return values[position - 1], values[position]


def _along_batch(rows: Sequence[MeasuredPoint], wanted: int) -> Interpolated:
    by_size = {point.micro_batch_size: point for point in rows}
    around = _around(sorted(by_size), wanted)
    low = by_size[around[0]]
    if len(around) == 1:
        return Interpolated(
            low.sequence,
            around[0],
            low.forward_s,
            low.backward_s,
            low.update_s,
            around[0] == wanted,
        )
    high = by_size[around[1]]
    share = (wanted - around[0]) / (around[1] - around[0])
    return Interpolated(
        low.sequence,
        wanted,
        low.forward_s + share * (high.forward_s - low.forward_s),
        low.backward_s + share * (high.backward_s - low.backward_s),
        low.update_s,
        True,
    )
