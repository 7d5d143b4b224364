"""What a process is doing right now, readable from outside, also when it hangs or is dead."""

from __future__ import annotations

import mmap
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BEAT_S", "Doing", "Status", "read_status"]

# Monotonic seconds of the last sign of life; of the last word, its step, its length, itself.
_ALIVE = struct.Struct("<d")
_WORD = struct.Struct("<dqH")
_TEXT = _ALIVE.size + _WORD.size
_SIZE = 512
# How often a process gives a sign of life, whatever it waits for.
BEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class Doing:
    """A process's last word: what it began `age_s` ago, in which step (-1: before the first).

    `silent_s` is the time since its last sign of life: long for a stopped process, short for one
    that waits.
    """

    text: str
    step: int
    age_s: float
    silent_s: float

    def __str__(self) -> str:
        place = f" in step {self.step}" if self.step >= 0 else ""
        return f"last {self.text}{place}, {self.age_s:.1f} s ago"


class Status:
    """Writes a process's status into a file of fixed size; a word costs about a microsecond.

    Without a path only the process itself can read it.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._memory = mmap.mmap(-1, _SIZE)
        else:
            path.write_bytes(bytes(_SIZE))
            with path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), _SIZE)
        self.step = -1
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            _ALIVE.pack_into(self._memory, 0, time.monotonic())
            time.sleep(BEAT_S)

    def say(self, text: str) -> None:
        """The process begins something."""
        encoded = text.encode()[: _SIZE - _TEXT]
        word = _WORD.pack(time.monotonic(), self.step, len(encoded))
        self._memory[_ALIVE.size : _TEXT + len(encoded)] = word + encoded

    @property
    def doing(self) -> Doing | None:
        """The last word."""
        return _doing(self._memory[:])


def read_status(path: Path) -> Doing | None:
    """What the process of a status file does, or None when it has said nothing yet."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return _doing(content)


def _doing(content: bytes) -> Doing | None:
    if len(content) < _SIZE:
        return None
    [alive] = _ALIVE.unpack_from(content)
    since, step, length = _WORD.unpack_from(content, _ALIVE.size)
    if not length:
        return None
    text = content[_TEXT : _TEXT + length].decode(errors="replace")
    now = time.monotonic()
    return Doing(text, step, now - since, now - alive)
