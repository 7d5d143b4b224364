"""The process that measures: reads jobs from standard input, answers on standard output.

One process a device. It holds torch, so that a driver that hangs or a library that crashes takes
this process and not the profiler. It ends when its parent does.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final

from hetcli.probe.torch_device import Target
from hetcli.probe.wire import (
    DescribeJob,
    HostCopyJob,
    Job,
    LayerJob,
    LinkJob,
    MatmulJob,
    MemoryJob,
    OptimizerJob,
    ProtocolError,
    Reply,
    StoreJob,
    job_from_line,
    row,
)
from hetcli.spec.profile import Measurement

if TYPE_CHECKING:
    import torch.distributed

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_STORE_LIMIT_S: Final = 600.0


def main() -> None:
    """Serve jobs until standard input ends."""
    parser = argparse.ArgumentParser(prog="hetcli-probe-worker")
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--ordinal", type=int, default=None)
    arguments = parser.parse_args()
    _die_with_parent()
    replies = _take_stdout()
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    worker = _Worker(Target(arguments.index, arguments.ordinal))
    warnings.simplefilter("ignore")
    import torch  # noqa: F401 (its import is the slow part: done before `ready`)

    _say(replies, Reply(event="ready"))
    while True:
        _say_all(replies, worker, jobs.get())


def _die_with_parent() -> None:
    """Ctrl-C is for the parent to handle; its death, however it comes, is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _take_stdout() -> IO[str]:
    """Keep standard output for replies; what libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _read(jobs: queue.Queue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    # The parent is gone. A probe may be stuck in a driver, so nothing is cleaned up.
    os._exit(0)


def _say(replies: IO[str], reply: Reply) -> None:
    replies.write(reply.model_dump_json() + "\n")
    replies.flush()


def _say_all(replies: IO[str], worker: _Worker, line: str) -> None:
    try:
        facts = {}
        for reply in worker.run(job_from_line(line)):
            if reply.event == "done":
                facts = reply.facts
            else:
                _say(replies, reply)
    except ProtocolError:
        raise
    except Exception as error:
        # torch raises anything; the parent decides what follows.
        reason = " ".join(str(error).split())
        _say(replies, Reply(event="failed", why=f"{type(error).__name__}: {reason}"[:2000]))
    else:
        _say(replies, Reply(event="done", facts=facts))


class _Worker:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.stores: dict[str, torch.distributed.TCPStore] = {}

    def run(self, job: Job) -> Iterator[Reply]:
        """Rows, and for jobs that ask something a `done` with facts."""
        if isinstance(job, DescribeJob):
            yield Reply(event="done", facts=self._describe())
        elif isinstance(job, StoreJob):
            from hetcli.probe.group import open_store

            # One group at a time: what an earlier one left is closed.
            self.stores = {job.key: open_store(_STORE_LIMIT_S)}
            yield Reply(event="done", facts={"port": self.stores[job.key].port})
        elif isinstance(job, LinkJob):
            from hetcli.probe.group import links

            yield from map(row, links(self.target, job, self.stores.pop(job.key, None)))
        else:
            yield row(self._compute(job))

    def _compute(self, job: Any) -> Measurement:
        from hetcli.probe import compute
        from hetcli.probe.layer import layer

        runs: dict[type, Callable[[], Measurement]] = {
            MatmulJob: lambda: compute.matmul(
                self.target, dtype=job.dtype, m=job.m, n=job.n, k=job.k, seconds=job.seconds
            ),
            MemoryJob: lambda: compute.memory_bandwidth(
                self.target, nbytes=job.nbytes, seconds=job.seconds
            ),
            HostCopyJob: lambda: compute.host_copy(
                self.target, direction=job.direction, nbytes=job.nbytes, seconds=job.seconds
            ),
            OptimizerJob: lambda: compute.adam_step(
                self.target, parameters=job.parameters, seconds=job.seconds
            ),
            LayerJob: lambda: layer(self.target, job),
        }
        return runs[type(job)]()

    def _describe(self) -> dict[str, Any]:
        import torch

        facts: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if self.target.ordinal is None:
            return facts
        free, total = torch.cuda.mem_get_info(self.target.device)
        properties = torch.cuda.get_device_properties(self.target.device)
        return facts | {
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "name": properties.name,
            "integrated": bool(getattr(properties, "is_integrated", False)),
            "memory_total_bytes": total,
            "memory_free_bytes": free,
        }


if __name__ == "__main__":
    main()
