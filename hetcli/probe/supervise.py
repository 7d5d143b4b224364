"""Start a measuring process, give it jobs with a time limit, and be sure that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import hetcli
from hetcli.probe.wire import Job, LinkJob, ProtocolError, Reply, reply_from_line
from hetcli.spec.profile import Measurement

__all__ = ["JobError", "OnRow", "Worker", "ignore_row", "tail"]

OnRow = Callable[[str, Measurement], None]

# Importing torch from a cold network file system takes up to a minute.
START_LIMIT_S: Final = 180.0
_LINE_BYTES: Final = 2**20
_KEPT_STDERR: Final = 4000


class JobError(Exception):
    """A job that gave no result: `why`, in words for the profile. Rows before it were delivered."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def ignore_row(_field: str, _row: Measurement) -> None:
    """A listener that does not listen."""


class Worker:
    """One measuring process. It starts with its first job and again after it had to be killed."""

    def __init__(
        self, *, index: int, ordinal: int | None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._arguments = ["--index", str(index)]
        if ordinal is not None:
            self._arguments += ["--ordinal", str(ordinal)]
        self._environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: asyncio.Task[str] | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return None if self._process is None else self._process.pid

    async def run(self, job: Job, *, limit_s: float, on_row: OnRow = ignore_row) -> dict[str, Any]:
        """Do one job; rows go to `on_row` as they come. Returns the facts of the answer.

        Raises JobError when the job fails, the process dies, or `limit_s` passes; the process is
        killed unless it failed in good order. A cancelled job kills its process too.
        """
        async with self._lock:
            if self._process is None:
                await self._start()
            try:
                async with asyncio.timeout(limit_s):
                    return await self._answer(job, on_row)
            except TimeoutError:
                await self.close()
                raise JobError(f"timed out after {limit_s:g} s") from None
            except (ProtocolError, asyncio.CancelledError):
                await self.close()
                raise
            except JobError:
                # What is left of a broken group would disturb the next one.
                if isinstance(job, LinkJob):
                    await self.close()
                raise

    async def _answer(self, job: Job, on_row: OnRow) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(job.model_dump_json().encode() + b"\n")
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise JobError(await self._cause_of_death()) from None
        while True:
            reply = await self._reply()
            if reply.event == "row":
                on_row(*reply.measurement())
            elif reply.event == "failed":
                raise JobError(reply.why)
            else:
                return dict(reply.facts)

    async def _start(self) -> None:
        # The package that is running, and never what lies in the current folder by chance.
        package = str(Path(hetcli.__file__).resolve().parents[1])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, **self._environment}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "hetcli.probe.worker",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            limit=_LINE_BYTES,
            # Ctrl-C reaches the terminal's foreground group: this process decides what follows.
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self._stderr = asyncio.create_task(tail(self._process.stderr))
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await self._reply()
        except TimeoutError:
            await self.close()
            raise JobError(f"torch did not load within {START_LIMIT_S:g} s") from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def _reply(self) -> Reply:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise JobError(await self._cause_of_death())
        return reply_from_line(line)

    async def _cause_of_death(self) -> str:
        assert self._process is not None
        assert self._stderr is not None
        code = await self._process.wait()
        said = await self._stderr
        await self.close()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        return f"the measuring process {how}: {last[0][:500]}"

    async def close(self) -> None:
        """Kill the process if it lives and wait until it is gone."""
        process, self._process = self._process, None
        stderr, self._stderr = self._stderr, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())
        if process.stdin is not None:
            process.stdin.close()
        if stderr is not None:
            stderr.cancel()
            await asyncio.gather(stderr, return_exceptions=True)


async def tail(stream: asyncio.StreamReader) -> str:
    """Read to the end and keep the last characters."""
    kept = b""
    while chunk := await stream.read(4096):
        kept = (kept + chunk)[-_KEPT_STDERR:]
    return kept.decode(errors="replace")
