"""Start agents on other hosts through the user's own ssh: config, keys and jump hosts included."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Sequence
from typing import Final

from hetcli.errors import EnvironmentFailure
from hetcli.probe.node import DeviceChoice
from hetcli.probe.remote import RemoteNode
from hetcli.probe.supervise import tail
from hetcli.spec.hosts import check_host

__all__ = ["SshNode", "connect"]

_CONNECT_S: Final = 20
_LINE_BYTES: Final = 2**22
# sshd drops connections beyond its MaxStartups (10 by default) while they authenticate.
FAN_OUT: Final = 8


class SshNode(RemoteNode):
    """A node behind an ssh process of this machine."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        super().__init__(name, process.stdout, process.stdin)
        self._process = process
        self._stderr = asyncio.create_task(tail(process.stderr))

    async def close(self) -> None:
        """End the agent by ending its input; the ssh process is killed if it stays."""
        await super().close()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._stderr.cancel()
        await asyncio.gather(self._stderr, return_exceptions=True)

    async def last_words(self) -> str:
        """What ssh said when it ended; nothing while it lives."""
        done, _ = await asyncio.wait([self._stderr], timeout=2)
        return " ".join(self._stderr.result().split())[-500:] if done else ""


def _command(host: str, remote: Sequence[str]) -> list[str]:
    return [
        "ssh",
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={_CONNECT_S}",
        "-o",
        "ServerAliveInterval=15",
        # Behind `--` a host cannot be an option, whatever its name.
        "--",
        host,
        shlex.join(remote),
    ]


async def connect(
    hosts: Sequence[str], choice: DeviceChoice, *, remote_command: Sequence[str] = ("hetcli",)
) -> tuple[tuple[SshNode, ...], tuple[EnvironmentFailure, ...]]:
    """Agents on all hosts that answer, in their order, and a failure for each that does not."""
    gate = asyncio.Semaphore(FAN_OUT)

    async def one(host: str) -> SshNode:
        async with gate:
            return await _connect(host, choice, remote_command)

    results = await asyncio.gather(*(one(host) for host in hosts), return_exceptions=True)
    nodes = tuple(result for result in results if isinstance(result, SshNode))
    failures = tuple(result for result in results if isinstance(result, EnvironmentFailure))
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, EnvironmentFailure):
            await asyncio.gather(*(node.close() for node in nodes))
            raise result
    return nodes, failures


async def _connect(host: str, choice: DeviceChoice, remote: Sequence[str]) -> SshNode:
    check_host(host)
    command = _command(host, [*remote, "profile", "agent", "--device", choice])
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise EnvironmentFailure(
            "no ssh on this machine",
            why="--hosts starts an agent on every host through it",
            fix="install an ssh client, or run hetcli profile under Slurm or torchrun",
        ) from None
    node = SshNode(host, process)
    try:
        await node.facts()
    except EnvironmentFailure as failure:
        said = await node.last_words()
        await node.close()
        raise EnvironmentFailure(
            f"host {host} cannot be profiled",
            why=said or failure.why,
            fix=f"does `ssh {shlex.quote(host)} {shlex.join(remote)} doctor` work?",
        ) from None
    except BaseException:
        await node.close()
        raise
    return node
