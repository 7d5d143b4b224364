"""The far end of a profile over several nodes: measures here what a profiler elsewhere asks for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from hetcli.probe.node import DeviceChoice, LocalNode
from hetcli.probe.remote import serve

__all__ = ["serve_standard_streams"]

_LINE_BYTES = 2**22


def serve_standard_streams(choice: DeviceChoice) -> None:
    """Answer the requests on standard input until it ends. What libraries print goes to stderr."""
    # Under ssh with a terminal, Ctrl-C would reach this process before the profiler decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(_serve(choice, answers))


async def _serve(choice: DeviceChoice, answers: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(answers, "wb")
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    await serve(LocalNode("agent", choice), reader, writer)
