"""What differs between a GPU and the processor when torch measures: waiting, timing, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hetcli.probe.timing import Timer, wall_clock

if TYPE_CHECKING:
    import torch

__all__ = ["Target", "torch_dtype"]

# More than the last-level cache of any GPU (MI300X: 256 MiB), so that writing it evicts everything.
_FLUSH_BYTES: Final = 512 * 2**20


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name such as bf16."""
    import torch

    return {
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
    }[name]


@dataclass(frozen=True)
class Target:
    """One device that torch measures. `index` is its place in the inventory.

    `ordinal` is its place among the devices that CUDA shows to this process; None: the processor.
    """

    index: int
    ordinal: int | None

    @property
    def device(self) -> torch.device:
        """The device as torch names it."""
        import torch

        return torch.device("cpu" if self.ordinal is None else f"cuda:{self.ordinal}")

    def synchronize(self) -> None:
        """Wait until the device has done everything it was told."""
        import torch

        if self.ordinal is not None:
            torch.cuda.synchronize(self.device)

    def timer(self, *, flush: bool = True) -> Timer:
        """A timer for operations of this device.

        On a GPU it lies between two events, after the last-level cache was overwritten (`flush`),
        so that an operation finds its data where training would: in memory.
        """
        if self.ordinal is None:
            return wall_clock
        return self._event_timer(flush=flush)

    def _event_timer(self, *, flush: bool) -> Timer:
        import torch

        scratch = torch.empty(_FLUSH_BYTES if flush else 1, dtype=torch.int8, device=self.device)
        started = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)

        def time(operation: Callable[[], object]) -> float:
            if flush:
                scratch.zero_()
            started.record()
            operation()
            ended.record()
            ended.synchronize()
            return float(started.elapsed_time(ended)) / 1000

        return time

    def waiting_timer(self) -> Timer:
        """Wall-clock seconds until the device is done: for what also runs on the host."""

        def time(operation: Callable[[], object]) -> float:
            self.synchronize()

            def whole() -> None:
                operation()
                self.synchronize()

            return wall_clock(whole)

        return time

    def peak_memory(self, operation: Callable[[], object]) -> int | None:
        """Bytes that torch allocated at most while `operation` ran, beyond those before it.

        None on the processor, where torch does not count.
        """
        import torch

        if self.ordinal is None:
            return None
        self.synchronize()
        before = int(torch.cuda.memory_allocated(self.device))
        torch.cuda.reset_peak_memory_stats(self.device)
        operation()
        self.synchronize()
        return max(0, int(torch.cuda.max_memory_allocated(self.device)) - before)
