"""Layer times that the planners Metis and Sailor were fed with.

Metis (SamsungLabs/Metis, README and data_loader.py): a file a device type, tensor parallel degree
and batch size, `DeviceType.A100_tp1_bs1.json`, with milliseconds of forward and backward together.
Sailor (eth-easl/sailor, profiles/MODEL/GPU/profile.json): seconds of forward, backward and update
by micro-batch size, tensor parallel degree and layer. Layer 0 is the embedding, the last the head.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from hetcli.errors import SpecError, UsageError
from hetcli.probe.imports.foreign import Known, foreign_profile, listed_device, once, unreadable
from hetcli.spec.model.architecture import DenseFeedForward, GroupedQueryAttention, Layer
from hetcli.spec.profile import LayerMeasurement, Profile

__all__ = ["from_metis", "from_sailor", "looks_like_metis", "looks_like_sailor"]

_METIS_NAME: Final = re.compile(r"DeviceType\.(?P<device>\w+?)_tp(?P<tp>\d+)_bs(?P<bs>\d+)\.json$")
# Two products backward for each forward one: how Metis' single time is split.
_BACKWARD_SHARE: Final = 2 / 3


def looks_like_metis(data: Mapping[str, Any]) -> bool:
    """Whether this is a profile of Metis."""
    times = data.get("execution_time")
    return isinstance(times, dict) and "layer_compute_total_ms" in times


def looks_like_sailor(data: Mapping[str, Any]) -> bool:
    """Whether this is a profile of Sailor: numbers, numbers, layers, three times."""
    try:
        inner = next(iter(next(iter(data.values())).values()))
        times = next(iter(inner.values()))
    except (AttributeError, StopIteration):
        return False
    return str(next(iter(data))).isdigit() and isinstance(times, list) and len(times) == 3


def from_metis(data: Mapping[str, Any], known: Known) -> tuple[Profile, ...]:
    """A profile with one layer. The device, tp and batch stand in the file's name only."""
    named = _METIS_NAME.search(known.label)
    if named is None:
        raise unreadable(
            known.label,
            "a profile of Metis under another name",
            why="device, tensor parallel degree and batch size stand in the name only",
            fix="call it DeviceType.A100_tp1_bs1.json",
        )
    times = data["execution_time"]["layer_compute_total_ms"]
    layers = _numbers(times, known)
    if len(layers) < 3:
        raise _too_few(known)
    total = statistics.median(layers[1:-1]) / 1000
    row = _row(
        known,
        tensor_parallel=int(named["tp"]),
        micro_batch_size=int(named["bs"]),
        forward_s=total * (1 - _BACKWARD_SHARE),
        backward_s=total * _BACKWARD_SHARE,
    )
    note = "Metis measures forward and backward together; split 1 : 2 (assumed)"
    return (_profile(known, "Metis", known.device or named["device"], [row], (note,)),)


def from_sailor(data: Mapping[str, Any], known: Known) -> tuple[Profile, ...]:
    """A profile with a layer for each micro-batch size and tensor parallel degree."""
    rows = []
    for batch, degrees in data.items():
        for degree, layers in degrees.items():
            if len(layers) < 3:
                raise _too_few(known)
            inner = [
                _numbers(times, known)
                for position, times in sorted(layers.items(), key=lambda item: int(item[0]))
            ][1:-1]
            rows.append(
                _row(
                    known,
                    tensor_parallel=int(degree),
                    micro_batch_size=int(batch),
                    forward_s=statistics.median(times[0] for times in inner),
                    backward_s=statistics.median(times[1] for times in inner),
                )
            )
    rows.sort(key=lambda row: (row.micro_batch_size, row.tensor_parallel))
    device = known.device or PurePath(known.label).parent.name
    return (_profile(known, "Sailor", device, rows, ()),)


def _numbers(values: Any, known: Known) -> Sequence[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise unreadable(
            known.label, "times that are no numbers", why="a layer has numbers", fix="see the file"
        ) from None


def _too_few(known: Known) -> SpecError:
    return unreadable(
        known.label,
        "fewer than three layers",
        why="the first is the embedding and the last the head, so none is left",
        fix="profile the whole model",
    )


def _profile(
    known: Known,
    source: str,
    device: str,
    rows: Sequence[LayerMeasurement],
    notes: tuple[str, ...],
) -> Profile:
    if not device:
        raise UsageError(
            f"{known.label}: no word on the device",
            why="Sailor names it by the folder of the file",
            fix="--device-name A100-SXM4-80GB",
        )
    # Times of one device type are no node's: without a name the type stands for it.
    return foreign_profile(
        known.name or device,
        source,
        devices=[listed_device(0, device)],
        layers=tuple(rows),
        notes=notes,
    )


def _row(
    known: Known,
    *,
    tensor_parallel: int,
    micro_batch_size: int,
    forward_s: float,
    backward_s: float,
) -> LayerMeasurement:
    model, sequence, dtype = known.model, known.sequence, known.dtype
    if model is None or sequence is None or dtype is None or dtype == "tf32":
        raise UsageError(
            f"{known.label}: times of layers of unknown size",
            why="the file tells neither the model's dimensions nor sequence length and precision",
            fix="--model gpt-neo-2.7b --seq-len 2048 --precision fp16",
        )
    layer = _plain_layer(model.layers[0].layer, known)
    attention, feed_forward = layer
    return LayerMeasurement(
        device=0,
        model=model.name,
        dtype=dtype,
        hidden_size=model.hidden_size,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        ffn_size=feed_forward.size,
        gated=feed_forward.gated,
        tensor_parallel=tensor_parallel,
        micro_batch_size=micro_batch_size,
        sequence=sequence,
        forward_s=once(forward_s),
        backward_s=once(backward_s),
        peak_memory_bytes=None,
    )


def _plain_layer(layer: Layer, known: Known) -> tuple[GroupedQueryAttention, DenseFeedForward]:
    attention, feed_forward = layer.attention, layer.feed_forward
    if isinstance(attention, GroupedQueryAttention) and isinstance(feed_forward, DenseFeedForward):
        return attention, feed_forward
    raise UsageError(
        f"{known.label}: layers of {known.model.name if known.model else 'this model'}",
        why="only layers of plain attention and a dense feed-forward can be imported",
        fix="name the model that was measured",
    )
