"""Iterations, memory and timers in the logs of training frameworks.

Each format is known by a phrase that nothing else prints; what a launcher writes in front of a line
does not matter. Where several ranks print the same iteration, the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

__all__ = ["Format", "Iteration", "Log", "read_log"]

Format = Literal["megatron", "deepspeed", "torchtitan", "nemo"]

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER: Final = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_UNITS: Final[Mapping[str, float]] = {
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    # DeepSpeed divides by 1024**3 and writes GB (deepspeed/utils/timer.py).
    "GB": 2.0**30,
}


@dataclass(frozen=True, slots=True)
class Iteration:
    """One logged iteration, or the mean of those since the last one logged; None is not printed.

    `samples_per_s` are of the whole job, `tokens_per_s` of one device. `memory_bytes` is the peak
    of the printing device.
    """

    number: int
    line: int
    seconds: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    flop_per_s: float | None = None
    global_batch: int | None = None
    loss: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """What a log holds. `timers` are seconds by (name, rank), one number for each time printed.

    `memory_bytes` is the largest peak that any rank reported.
    """

    format: Format
    iterations: tuple[Iteration, ...]
    memory_bytes: float | None = None
    timers: Mapping[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)


def read_log(lines: Iterable[str]) -> Log | None:
    """The log, or None when no line is an iteration of a known format."""
    reader = _Reader()
    for number, line in enumerate(lines, start=1):
        reader.take(number, _ANSI.sub("", line.rstrip("\n")))
    return reader.log()


class _Reader:
    """Line by line; timers of Megatron-LM stretch over several lines."""

    def __init__(self) -> None:
        self._found: dict[Format, list[Iteration]] = {name: [] for name in _FORMATS}
        self._peak: float | None = None
        self._timers: dict[tuple[str, int], list[float]] = {}
        self._timer: str | None = None
        self._in_timers = False

    def take(self, number: int, line: str) -> None:
        """Look at one line."""
        for name, read in _FORMATS.items():
            iteration = read(line)
            if iteration is not None:
                self._add(name, replace(iteration, line=number))
                self._in_timers, self._timer = False, None
                return
        self._memory(line)
        self._timer_line(line)

    def _add(self, name: Format, iteration: Iteration) -> None:
        rows = self._found[name]
        if rows and rows[-1].number == iteration.number:
            rows[-1] = _merged(rows[-1], iteration)
        else:
            rows.append(iteration)

    def _memory(self, line: str) -> None:
        found = _MEGATRON_MEMORY.search(line)
        if found:
            self._peak = max(self._peak or 0.0, float(found[1]) * _UNITS["MiB"])

    def _timer_line(self, line: str) -> None:
        if line.rstrip().endswith("times across ranks (ms):"):
            self._in_timers = True
            return
        if not self._in_timers:
            return
        rank = _TIMER_RANK.fullmatch(line)
        name = _TIMER_NAME.fullmatch(line)
        if rank and self._timer is not None:
            key = self._timer, int(rank[1])
            self._timers.setdefault(key, []).append(float(rank[2]) / 1e3)
        elif name:
            self._timer = name[1]
        else:
            self._in_timers, self._timer = False, None

    def log(self) -> Log | None:
        """Everything read; of two formats in one log (DeepSpeed under Megatron) the fuller one."""
        # Megatron-DeepSpeed and GPT-NeoX print both; Megatron's line has the time itself.
        best = max(
            self._found, key=lambda name: (len(_timed(self._found[name])), name != "deepspeed")
        )
        rows = self._found[best]
        if not rows:
            return None
        peaks = [row.memory_bytes for found in self._found.values() for row in found]
        known = [peak for peak in (*peaks, self._peak) if peak is not None]
        return Log(
            best,
            tuple(rows),
            max(known, default=None),
            {key: tuple(values) for key, values in self._timers.items()},
        )


def _timed(rows: list[Iteration]) -> list[Iteration]:
    return [
        row
        for row in rows
        if row.seconds is not None or row.samples_per_s is not None or row.tokens_per_s is not None
    ]


def _merged(one: Iteration, other: Iteration) -> Iteration:
    """The same iteration from two lines: what the first leaves out, the second adds."""
    names = ("seconds", "samples_per_s", "tokens_per_s", "flop_per_s", "global_batch", "loss")
    added = {
        name: getattr(other, name)
        for name in names
        if getattr(one, name) is None and getattr(other, name) is not None
    }
    peaks = [each.memory_bytes for each in (one, other) if each.memory_bytes is not None]
    return replace(one, memory_bytes=max(peaks, default=None), **added)


def _first(pattern: str) -> Callable[[str], float | None]:
    compiled = re.compile(pattern)

    def read(line: str) -> float | None:
        found = compiled.search(line)
        return float(found[1].replace(",", "")) if found else None

    return read


# Megatron-LM, megatron/training/training.py (`training_log`); Megatron-DeepSpeed and GPT-NeoX put
# other cells around the same ones, and some print seconds.
_MEGATRON: Final = re.compile(
    rf"\biteration +(\d+)/ *\d+ \|.*\belapsed time per iteration \((ms|s)\): *({_NUMBER})"
)
_MEGATRON_TFLOPS: Final = _first(
    rf"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs|approx flops per GPU): *({_NUMBER})"
)
_MEGATRON_BATCH: Final = _first(r"global batch size: *(\d+)")
_MEGATRON_LOSS: Final = _first(rf"\blm[ _]loss: *({_NUMBER})")
_MEGATRON_SAMPLES: Final = _first(rf"samples(?: per second|/sec): *({_NUMBER})")
# megatron/training/utils (`report_memory`): MB are MiB there.
_MEGATRON_MEMORY: Final = re.compile(
    rf"memory \(MB\) \| allocated: *{_NUMBER} \| max allocated: *({_NUMBER})"
)
# megatron/core/timers.py, --timing-log-option all.
_TIMER_NAME: Final = re.compile(r"  ([A-Za-z][\w-]*):")
_TIMER_RANK: Final = re.compile(rf" +rank +(\d+): *({_NUMBER})")


def _megatron(line: str) -> Iteration | None:
    found = _MEGATRON.search(line)
    if not found:
        return None
    tflops, batch = _MEGATRON_TFLOPS(line), _MEGATRON_BATCH(line)
    return Iteration(
        int(found[1]),
        0,
        seconds=float(found[3]) / (1e3 if found[2] == "ms" else 1.0),
        samples_per_s=_MEGATRON_SAMPLES(line),
        flop_per_s=None if tflops is None else tflops * 1e12,
        global_batch=None if batch is None else int(batch),
        loss=_MEGATRON_LOSS(line),
    )


# DeepSpeed: utils/timer.py (`ThroughputTimer.stop`, old and new wording) and runtime/pipe/engine.py
# (`train_batch`).
_SPEED: Final = re.compile(
    r"\] (?:epoch=\d+/micro_step=\d+/global_step=|\d+/)(\d+), "
    rf"(?:RunningAvg)?SamplesPerSec={_NUMBER}"
)
_CURRENT: Final = _first(rf"CurrSamplesPerSec=({_NUMBER})")
_AVERAGE: Final = _first(rf"SamplesPerSec=({_NUMBER})")
_SPEED_MEMORY: Final = _first(rf"MaxMemAllocated=({_NUMBER})GB")
_PIPE: Final = re.compile(
    rf"\bsteps: (\d+) loss: *({_NUMBER}) iter time \(s\): *({_NUMBER}) samples/sec: *({_NUMBER})"
)


def _deepspeed(line: str) -> Iteration | None:
    found = _PIPE.search(line)
    if found:
        return Iteration(
            int(found[1]),
            0,
            seconds=float(found[3]),
            samples_per_s=float(found[4]),
            loss=float(found[2]),
        )
    found = _SPEED.search(line)
    if not found:
        return None
    memory = _SPEED_MEMORY(line)
    current = _CURRENT(line)
    return Iteration(
        int(found[1]),
        0,
        samples_per_s=_AVERAGE(line) if current is None else current,
        memory_bytes=None if memory is None else memory * _UNITS["GB"],
    )


# torchtitan, components/metrics.py: tps are tokens per second of one device.
_TITAN: Final = re.compile(
    rf"\bstep: *(\d+) +loss: *({_NUMBER}) .*\bmemory: *({_NUMBER})([KMGT]?i?B)\S* +tps: *([\d,]+)"
)
_TITAN_TFLOPS: Final = _first(r"\btflops: *([\d,]+(?:\.\d*)?)")


def _torchtitan(line: str) -> Iteration | None:
    found = _TITAN.search(line)
    if not found or found[4] not in _UNITS:
        return None
    tflops = _TITAN_TFLOPS(line)
    return Iteration(
        int(found[1]),
        0,
        tokens_per_s=float(found[5].replace(",", "")),
        flop_per_s=None if tflops is None else tflops * 1e12,
        loss=float(found[2]),
        memory_bytes=float(found[3]) * _UNITS[found[4]],
    )


# NeMo 2: nemo/lightning/callbacks (`ProgressPrinter`).
_NEMO: Final = re.compile(
    rf"\bTraining epoch \d+, iteration (\d+)/\d+ \|.*\btrain_step_timing in s: *({_NUMBER})"
)
_NEMO_BATCH: Final = _first(r"\bglobal_batch_size: *(\d+)")
_NEMO_LOSS: Final = _first(rf"\breduced_train_loss: *({_NUMBER})")


def _nemo(line: str) -> Iteration | None:
    found = _NEMO.search(line)
    if not found:
        return None
    batch = _NEMO_BATCH(line)
    return Iteration(
        int(found[1]),
        0,
        seconds=float(found[2]),
        global_batch=None if batch is None else int(batch),
        loss=_NEMO_LOSS(line),
    )


_FORMATS: Final[Mapping[Format, Callable[[str], Iteration | None]]] = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "torchtitan": _torchtitan,
    "nemo": _nemo,
}
