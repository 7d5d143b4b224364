"""Seconds of computing: layers, embedding, head and optimizer on one device type."""

from hetcli.perf.compute.layer import (
    LayerTime,
    embedding_time,
    head_time,
    kernel_of,
    layer_time,
    shape_of,
)
from hetcli.perf.compute.optimizer import optimizer_time

__all__ = [
    "LayerTime",
    "embedding_time",
    "head_time",
    "kernel_of",
    "layer_time",
    "optimizer_time",
    "shape_of",
]
