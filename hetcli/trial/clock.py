"""Moments of a device: of the host's clock, or of the GPU's stream."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

__all__ = ["Clock", "DeviceClock", "HostClock", "clock_for"]


class Clock(Protocol):
    """Marks moments cheaply, and reads them later."""

    def mark(self) -> Any:
        """The moment at which everything that was asked for so far is done."""

    def between(self, start: Any, end: Any) -> float:
        """Seconds from one mark to another; waits for both."""


class HostClock:
    """For devices that work when they are called."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def between(self, start: float, end: float) -> float:
        """Seconds between two moments."""
        return end - start


class DeviceClock:
    """For devices with a queue of their own (CUDA): events on the compute stream."""

    def mark(self) -> Any:
        """An event behind everything queued."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Seconds between two events."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return DeviceClock() if device.type == "cuda" else HostClock()
