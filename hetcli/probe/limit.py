"""Run a function that may never return."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from hetcli.errors import EnvironmentFailure

__all__ = ["within"]

Result = TypeVar("Result")


def within(seconds: float, function: Callable[[], Result], *, what: str) -> Result:
    """The result of `function`, or EnvironmentFailure when it takes longer.

    A driver that is stuck cannot be interrupted; the thread that waits for it is left behind and
    does not keep the process alive.
    """
    results: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def run() -> None:
        try:
            results.put((True, function()))
        except BaseException as error:
            results.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        good, value = results.get(timeout=seconds)
    except queue.Empty:
        raise EnvironmentFailure(
            f"{what} did not answer within {seconds:g} s",
            why="the driver is stuck",
            fix="does `nvidia-smi` answer? see dmesg for an Xid error; reset the card or reboot",
        ) from None
    if good:
        result: Result = value
        return result
    raise value
