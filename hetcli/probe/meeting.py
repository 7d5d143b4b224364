"""Bring nodes together that a launcher started: node 0 leads, the others come to it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
from collections.abc import AsyncIterator
from typing import Final

from hetcli.errors import EnvironmentFailure
from hetcli.probe.launched import Placement
from hetcli.probe.remote import Node, RemoteNode, serve

__all__ = ["follow", "lead"]

_LINE_BYTES: Final = 2**22
_RETRY_S: Final = 0.5
# Nodes of one job start within minutes of each other.
MEETING_LIMIT_S: Final = 300.0


@contextlib.asynccontextmanager
async def lead(
    placement: Placement, *, limit_s: float = MEETING_LIMIT_S
) -> AsyncIterator[tuple[dict[int, RemoteNode], tuple[EnvironmentFailure, ...]]]:
    """On node 0: the other nodes by their numbers, and a failure for each that did not come."""
    nodes: dict[int, RemoteNode] = {}
    complete = asyncio.Event()

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, name = await _introduced(reader, placement.token)
        if number is None or number in nodes or not 0 < number < placement.nodes:
            writer.close()
            return
        nodes[number] = RemoteNode(name, reader, writer)
        if len(nodes) == placement.nodes - 1:
            complete.set()

    server = await asyncio.start_server(welcome, None, placement.port, limit=_LINE_BYTES)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await complete.wait()
        absent = sorted(set(range(1, placement.nodes)) - set(nodes))
        yield (
            nodes,
            tuple(
                EnvironmentFailure(
                    f"node {number} of {placement.nodes} did not come",
                    why=f"nothing was heard of it on port {placement.port} for {limit_s:g} s",
                    fix="is hetcli installed there, and does the network let it reach node 0?",
                )
                for number in absent
            ),
        )
    finally:
        server.close()
        await asyncio.gather(*(node.close() for node in nodes.values()))
        await server.wait_closed()


async def _introduced(reader: asyncio.StreamReader, token: str) -> tuple[int | None, str]:
    """The number and name that a newcomer states, or None when it is none of ours."""
    try:
        async with asyncio.timeout(10):
            said = json.loads(await reader.readline())
        if hmac.compare_digest(str(said["token"]), token):
            return int(said["node"]), str(said["name"])[:200]
    except (TimeoutError, ValueError, KeyError, TypeError, OSError):
        pass
    return None, ""


def _notice_death(writer: asyncio.StreamWriter) -> None:
    """Let the kernel ask whether the other machine lives: one without power closes nothing."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        # The names are those of Linux.
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def follow(placement: Placement, node: Node, *, limit_s: float = MEETING_LIMIT_S) -> None:
    """On the other nodes: find node 0 and measure what it asks for, until it is done.

    Raises EnvironmentFailure when node 0 is not found in time, or goes away.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while True:
        try:
            reader, writer = await asyncio.open_connection(
                placement.leader, placement.port, limit=_LINE_BYTES
            )
            break
        except OSError as error:
            if loop.time() > end:
                raise EnvironmentFailure(
                    f"node 0 ({placement.leader}:{placement.port}) does not answer",
                    why=str(error),
                    fix="did it start? does a firewall close that port between the nodes?",
                ) from None
            await asyncio.sleep(_RETRY_S)
    _notice_death(writer)
    introduction = {"token": placement.token, "node": placement.node, "name": node.name}
    writer.write(json.dumps(introduction).encode() + b"\n")
    await writer.drain()
    finished = await serve(node, reader, writer)
    writer.close()
    if not finished:
        raise EnvironmentFailure(
            f"node 0 ({placement.leader}) went away",
            why="the connection ended before it had finished",
            fix="what it had measured is in its output; start again with --resume",
        )
