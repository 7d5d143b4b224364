"""Nodes as network namespaces of this machine, joined by a bridge over links of a given rate.

Needs root and iproute2 (`available` tells). Payload reaches 95 to 97 % of the configured rate
(headers). A token bucket lets its first burst through unshaped, so bursts are kept near 0.25 ms of
the line rate: smaller ones the kernel's timer cannot serve, larger ones make short messages look
too fast. That holds up to some 200 Mbit/s.
"""

from __future__ import annotations

import atexit
import itertools
import os
import subprocess
from collections.abc import Mapping
from types import TracebackType

from hetcli.trial.launch import Placement

__all__ = ["Network", "available", "realtime"]

_INTERFACE = "het0"
_BURST_S = 0.25e-3
_LEAST_BURST_BYTES = 4096
# Longer than any queue of these tests: the bucket must not drop.
_QUEUE = "400ms"
_numbers = itertools.count()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _quietly(*command: str) -> None:
    subprocess.run(command, capture_output=True, timeout=30, check=False)


def available() -> str | None:
    """Why no namespaces can be made here, or None when they can."""
    if os.geteuid() != 0:
        return "not root"
    try:
        with Network({"a": 1e6}):
            return None
    except OSError as error:
        return str(error)


def realtime() -> tuple[str, ...]:
    """A prefix that gives a command SCHED_FIFO priority, empty where that is not allowed.

    For processes that mostly sleep: the kernel stalls a real-time process that always computes.
    """
    prefix = ("chrt", "-f", "1")
    try:
        _run(*prefix, "true")
    except OSError:
        return ()
    return prefix


class Network:
    """Nodes by name with the bytes per second that each can send and receive.

    A context manager; whatever happens, the interfaces and namespaces are removed.
    """

    def __init__(self, rates: Mapping[str, float]) -> None:
        self._rates = dict(rates)
        # Interface names have at most 15 characters.
        self._name = f"ht{os.getpid() % 100000}x{next(_numbers)}"
        self._address = {name: f"10.77.0.{number}" for number, name in enumerate(rates, start=1)}

    def _namespace(self, node: str) -> str:
        return f"{self._name}-{node}"

    def _port(self, node: str) -> str:
        return f"{self._name}v{list(self._rates).index(node)}"

    def __enter__(self) -> Network:
        atexit.register(self._remove)
        try:
            _run("ip", "link", "add", self._name, "type", "bridge")
            _run("ip", "link", "set", self._name, "up")
            for node, rate in self._rates.items():
                self._add(node, rate)
        except BaseException:
            self._remove()
            raise
        return self

    def _add(self, node: str, rate: float) -> None:
        space, port = self._namespace(node), self._port(node)
        inside = ("ip", "netns", "exec", space)
        _run("ip", "netns", "add", space)
        _run(*inside, "ip", "link", "set", "lo", "up")
        peer = ("peer", "name", _INTERFACE, "netns", space)
        _run("ip", "link", "add", port, "type", "veth", *peer)
        _run("ip", "link", "set", port, "master", self._name, "up")
        _run(*inside, "ip", "addr", "add", f"{self._address[node]}/24", "dev", _INTERFACE)
        _run(*inside, "ip", "link", "set", _INTERFACE, "up")
        burst = max(_LEAST_BURST_BYTES, round(rate * _BURST_S))
        shape = ("root", "tbf", "rate", f"{round(rate * 8)}bit", "burst", str(burst))
        for where, device in ((inside, _INTERFACE), ((), port)):
            _run(*where, "tc", "qdisc", "replace", "dev", device, *shape, "latency", _QUEUE)

    def placements(self, prefix: tuple[str, ...] = ()) -> dict[str, Placement]:
        """How to start processes on the nodes, with a command in front of theirs."""
        return {
            node: Placement(
                ("ip", "netns", "exec", self._namespace(node), *prefix),
                {"GLOO_SOCKET_IFNAME": _INTERFACE},
                self._address[node],
            )
            for node in self._rates
        }

    def cut(self, node: str) -> None:
        """Take a node's cable away."""
        _run("ip", "link", "set", self._port(node), "down")

    def _remove(self) -> None:
        for node in self._rates:
            _quietly("ip", "link", "del", self._port(node))
            _quietly("ip", "netns", "del", self._namespace(node))
        _quietly("ip", "link", "del", self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()
        atexit.unregister(self._remove)
