"""Nodes on one machine: network namespaces joined by a bridge, with shaped links.

A node's rate limits what it sends (a token bucket in its namespace) and what it receives (one on
the bridge's side). The bucket holds a quarter of a millisecond of the rate: large enough for the
kernel's timer, small enough that a message's time stays affine in its size.

`ssh` is a script in front of PATH that runs the command inside the host's namespace: everything
behind the ssh client is the real thing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Lab", "lab", "reason_why_not"]

_ROOT = Path(__file__).parents[2]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def reason_why_not() -> str | None:
    """Why no lab can be built here; None where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"het{secrets.token_hex(3)}"
    try:
        _run("ip", "netns", "add", name)
        try:
            _run("ip", "netns", "exec", name, "ip", "link", "set", "lo", "up")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf",
                 "rate", "1mbit", "burst", "4kb", "latency", "400ms")  # fmt: skip
        finally:
            _run("ip", "netns", "del", name)
    except (RuntimeError, FileNotFoundError) as error:
        return f"no network namespaces with shaped links: {error}"
    return None


@dataclass(frozen=True)
class Lab:
    """A running lab: the names of its hosts, and an environment whose ssh reaches them."""

    hosts: tuple[str, ...]
    environment: Mapping[str, str]
    prefix: str

    def namespace(self, host: str) -> str:
        """The namespace of a host."""
        return f"{self.prefix}-{host}"

    def processes(self, host: str) -> list[int]:
        """The processes that live in a host's namespace."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.namespace(host)).split()]

    def cut(self, host: str) -> None:
        """Take the host's cable out."""
        place = self.hosts.index(host)
        _run("ip", "link", "set", f"{self.prefix}v{place}", "down")


@contextlib.contextmanager
def lab(rates_mbit: Mapping[str, float], folder: Path) -> Iterator[Lab]:
    """Build the hosts, and take everything down at the end, processes included."""
    # Interface names have at most 15 characters.
    prefix = f"h{secrets.token_hex(3)}"
    made = Lab(tuple(rates_mbit), _environment(prefix, folder), prefix)
    try:
        _build(made, rates_mbit)
        yield made
    finally:
        _take_down(made)


def _environment(prefix: str, folder: Path) -> dict[str, str]:
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    ssh = programs / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        "# Options up to `--`, then the host and the command, as the remote shell would get it.\n"
        'while [ "$1" != "--" ]; do shift; done\n'
        'host="$2"; shift 2\n'
        f'if [ ! -e "/var/run/netns/{prefix}-$host" ]; then\n'
        '  echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255\n'
        "fi\n"
        f'exec ip netns exec "{prefix}-$host" sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    hetcli = programs / "hetcli"
    hetcli.write_text(f'#!/bin/sh\nexec {sys.executable} -m hetcli "$@"\n')
    hetcli.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(_ROOT),
    }


def _build(made: Lab, rates_mbit: Mapping[str, float]) -> None:
    bridge = f"{made.prefix}b"
    _run("ip", "link", "add", bridge, "type", "bridge")
    _run("ip", "link", "set", bridge, "up")
    for place, (host, rate) in enumerate(rates_mbit.items()):
        namespace, outer = made.namespace(host), f"{made.prefix}v{place}"
        inside = ("ip", "netns", "exec", namespace)
        _run("ip", "netns", "add", namespace)
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "het0", "netns", namespace)
        _run("ip", "link", "set", outer, "master", bridge, "up")
        _run(*inside, "ip", "addr", "add", f"10.77.0.{place + 1}/24", "dev", "het0")
        _run(*inside, "ip", "link", "set", "het0", "up")
        burst = max(4, int(rate * 1e6 / 8 * 0.00025 / 1024))
        shape = ("root", "tbf", "rate", f"{rate}mbit", "burst", f"{burst}kb", "latency", "400ms")
        _run(*inside, "tc", "qdisc", "replace", "dev", "het0", *shape)
        _run("tc", "qdisc", "replace", "dev", outer, *shape)


def _take_down(made: Lab) -> None:
    for place, host in enumerate(made.hosts):
        with contextlib.suppress(RuntimeError):
            for pid in made.processes(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
        for command in (
            ("ip", "link", "del", f"{made.prefix}v{place}"),
            ("ip", "netns", "del", made.namespace(host)),
        ):
            with contextlib.suppress(RuntimeError):
                _run(*command)
    with contextlib.suppress(RuntimeError):
        _run("ip", "link", "del", f"{made.prefix}b")
