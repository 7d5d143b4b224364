"""A node behind a stream of lines: what an agent on another machine does for us.

The same lines travel through ssh's standard streams and through a TCP connection. The stream's end
is the other side's death: an agent whose profiler is gone ends itself and its processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from typing import Any, Final, Protocol

from hetcli import __version__
from hetcli.errors import EnvironmentFailure
from hetcli.probe.supervise import JobError, OnRow, ignore_row
from hetcli.probe.wire import (
    Job,
    NodeFacts,
    ProtocolError,
    Reply,
    Request,
    reply_from_line,
    request_from_line,
)

__all__ = ["Node", "RemoteNode", "serve"]

# What the agent's own limits add to a job's: it answers by itself unless its machine is gone.
_GRACE_S: Final = 30.0
FACTS_LIMIT_S: Final = 120.0


class Node(Protocol):
    """A node that can be asked and told to measure, here or elsewhere."""

    name: str

    async def facts(self) -> NodeFacts:
        """What the node is. Raises EnvironmentFailure."""

    async def run(
        self, rank: int, job: Job, *, limit_s: float, on_row: OnRow = ignore_row
    ) -> dict[str, Any]:
        """Do a job on one rank. Raises JobError."""

    async def close(self) -> None:
        """Leave nothing behind."""


class RemoteNode:
    """The near side of a stream to an agent."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name = name
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[Reply | None]] = {}
        self._gone = ""
        self._facts: NodeFacts | None = None
        self._task = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                reply = reply_from_line(line)
                if reply.id in self._waiting:
                    self._waiting[reply.id].put_nowait(reply)
            self._gone = "its agent ended"
        except (ProtocolError, OSError, ValueError) as error:
            self._gone = f"its agent said something else than replies: {error}"
        finally:
            for queue in self._waiting.values():
                queue.put_nowait(None)

    async def _ask(self, request: Request, on_row: OnRow, limit_s: float) -> dict[str, Any]:
        if self._gone:
            raise JobError(f"{self.name} is gone: {self._gone}")
        queue = self._waiting[request.id] = asyncio.Queue()
        try:
            async with asyncio.timeout(limit_s):
                await self._send(request)
                while True:
                    reply = await queue.get()
                    if reply is None:
                        raise JobError(f"{self.name} is gone: {self._gone}")
                    if reply.event == "row":
                        on_row(*reply.measurement())
                    elif reply.event == "failed":
                        raise JobError(reply.why)
                    else:
                        return dict(reply.facts)
        except TimeoutError:
            raise JobError(f"{self.name} did not answer within {limit_s:g} s") from None
        except ProtocolError as error:
            raise JobError(f"{self.name} answered with {error}") from error
        except asyncio.CancelledError:
            with contextlib.suppress(JobError):
                await self._send(Request(id=request.id, what="cancel"))
            raise
        finally:
            del self._waiting[request.id]

    async def _send(self, request: Request) -> None:
        try:
            self._writer.write(request.model_dump_json().encode() + b"\n")
            await self._writer.drain()
        except OSError as error:
            raise JobError(f"{self.name} is gone: {error}") from error

    async def facts(self) -> NodeFacts:
        """What the node is; asked for once."""
        if self._facts is None:
            try:
                answer = await self._ask(
                    Request(id=next(self._numbers), what="facts"), ignore_row, FACTS_LIMIT_S
                )
            except JobError as failed:
                raise EnvironmentFailure(
                    f"node {self.name}",
                    why=failed.why,
                    fix=f"does `ssh {self.name} hetcli doctor` work?",
                ) from None
            _same_version(self.name, str(answer.get("hetcli_version")))
            self._facts = NodeFacts.model_validate_json(str(answer["node"]))
        return self._facts

    async def run(
        self, rank: int, job: Job, *, limit_s: float, on_row: OnRow = ignore_row
    ) -> dict[str, Any]:
        """Do a job on one rank of the node. Raises JobError."""
        request = Request(id=next(self._numbers), job=job, rank=rank, limit_s=limit_s)
        return await self._ask(request, on_row, limit_s + _GRACE_S)

    async def close(self) -> None:
        """End the stream, which ends the agent."""
        self._task.cancel()
        with contextlib.suppress(JobError):
            await self._send(Request(id=0, what="finished"))
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._writer.wait_closed()
        await asyncio.gather(self._task, return_exceptions=True)


def _same_version(name: str, theirs: str) -> None:
    if theirs != __version__:
        raise EnvironmentFailure(
            f"node {name} runs hetcli {theirs}",
            why=f"this is hetcli {__version__}, and the two must understand each other",
            fix=f"pip install hetcli=={__version__} on {name}",
        )


async def serve(node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """The far side: do what the requests ask until the stream ends, then close the node.

    Returns whether the near side said that it had finished.
    """
    running: dict[int, asyncio.Task[None]] = {}
    try:
        while line := await reader.readline():
            request = request_from_line(line)
            if request.what == "finished":
                return True
            if request.what == "cancel":
                if request.id in running:
                    running[request.id].cancel()
                continue
            task = asyncio.create_task(_answer(node, request, writer))
            running[request.id] = task
            task.add_done_callback(functools.partial(_forget, running, request.id))
    except ConnectionError:
        # The near side's machine is gone: the same as the stream's end.
        pass
    finally:
        for task in list(running.values()):
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
        await node.close()
    return False


def _forget(running: dict[int, asyncio.Task[None]], number: int, _task: asyncio.Task[None]) -> None:
    running.pop(number, None)


async def _answer(node: Node, request: Request, writer: asyncio.StreamWriter) -> None:
    def say(reply: Reply) -> None:
        line = reply.model_copy(update={"id": request.id}).model_dump_json()
        writer.write(line.encode() + b"\n")

    def on_row(field: str, record: Any) -> None:
        say(Reply(event="row", field=field, record=record.model_dump(mode="json")))

    try:
        if request.what == "facts":
            facts = await node.facts()
            say(
                Reply(
                    event="done",
                    facts={"hetcli_version": __version__, "node": facts.model_dump_json()},
                )
            )
        elif request.job is not None:
            answer = await node.run(
                request.rank, request.job, limit_s=request.limit_s, on_row=on_row
            )
            say(Reply(event="done", facts=answer))
    except JobError as failed:
        say(Reply(event="failed", why=failed.why))
    except EnvironmentFailure as failure:
        say(Reply(event="failed", why=str(failure)))
    await writer.drain()
