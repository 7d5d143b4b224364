"""The process that measures: real torch on the processor, values checked, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hetcli.probe.bus import bus_factor
from hetcli.probe.supervise import JobError, Worker
from hetcli.probe.wire import (
    DescribeJob,
    LayerJob,
    LinkJob,
    MatmulJob,
    MemoryJob,
    OptimizerJob,
    StoreJob,
)
from hetcli.spec.profile import LinkOperation

pytest.importorskip("torch")

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}


@contextlib.asynccontextmanager
async def workers(count: int = 1) -> AsyncIterator[list[Worker]]:
    made = [Worker(index=0, ordinal=None, environment=PASSIVE) for _ in range(count)]
    try:
        yield made
    finally:
        await asyncio.gather(*(worker.close() for worker in made))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: int, within: float = 5.0) -> bool:
    end = time.monotonic() + within
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_compute_probes_give_rates_that_follow_from_their_times() -> None:
    async def measure() -> list[tuple[str, Any]]:
        rows: list[tuple[str, Any]] = []
        async with workers() as (worker,):
            for job in (
                MatmulJob(dtype="fp32", m=128, n=256, k=64, seconds=0.5),
                MatmulJob(dtype="bf16", m=128, n=256, k=64, seconds=0.5),
                MemoryJob(nbytes=2**24, seconds=0.5),
                OptimizerJob(parameters=100_000, seconds=0.5),
            ):
                await worker.run(job, limit_s=60, on_row=lambda *row: rows.append(row))
        return rows

    rows = asyncio.run(measure())
    assert [field for field, _ in rows] == ["matmul", "matmul", "memory_bandwidth", "optimizer"]
    for _, row in rows[:2]:
        assert row.flop_per_s == pytest.approx(2 * 128 * 256 * 64 / row.seconds.median)
    copy = rows[2][1]
    assert copy.transferred_bytes == 2 * 2**24
    assert copy.bytes_per_s == pytest.approx(2 * 2**24 / copy.seconds.median)
    assert all(row.seconds.minimum <= row.seconds.median <= row.seconds.p95 for _, row in rows)


@pytest.mark.parametrize(("dtype", "gated"), [("fp32", True), ("bf16", False)])
def test_a_layer_runs_forward_and_backward_with_grouped_heads(dtype: Any, gated: bool) -> None:
    job = LayerJob(
        model="small",
        dtype=dtype,
        hidden_size=128,
        heads=8,
        kv_heads=4,
        head_dim=16,
        ffn_size=256,
        gated=gated,
        tensor_parallel=2,
        micro_batch_size=2,
        sequence=64,
        seconds=0.5,
    )

    async def measure() -> Any:
        rows: list[Any] = []
        async with workers() as (worker,):
            await worker.run(job, limit_s=60, on_row=lambda *row: rows.append(row))
        return rows

    ((field, row),) = asyncio.run(measure())
    assert field == "layers"
    assert (row.heads, row.kv_heads, row.ffn_size, row.tensor_parallel) == (8, 4, 256, 2)
    assert row.attention in {"flash", "math"}
    assert row.forward_s.median > 0
    assert row.backward_s.median > 0
    assert row.peak_memory_bytes is None  # torch does not count on the processor


async def group(
    members: list[Worker], operation: LinkOperation, sizes: tuple[int, ...], **changes: Any
) -> list[Any]:
    rows: list[Any] = []
    opened = await members[0].run(StoreJob(key="g", scope="intra_node"), limit_s=30)
    jobs = [
        LinkJob(
            **{
                "key": "g",
                "operation": operation,
                "backend": "gloo",
                "scope": "intra_node",
                "nodes": ("n0",),
                "devices": (0,) * len(members),
                "rank": rank,
                "ranks": len(members),
                "addresses": ("127.0.0.1",),
                "port": opened["port"],
                "sizes": sizes,
                "seconds": 1.0,
                "limit_s": 20.0,
                **changes,
            }
        )
        for rank in range(len(members))
    ]
    await asyncio.gather(
        *(
            worker.run(job, limit_s=30, on_row=lambda _, row: rows.append(row))
            for worker, job in zip(members, jobs, strict=True)
        )
    )
    return rows


def test_every_operation_is_verified_and_has_the_defined_bus_bandwidth() -> None:
    operations: list[LinkOperation] = [
        "send_recv", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
    ]  # fmt: skip
    sizes = (1024, 65536)

    async def measure() -> dict[str, list[Any]]:
        async with workers(2) as members:
            return {each: await group(members, each, sizes) for each in operations}

    for operation, rows in asyncio.run(measure()).items():
        assert [row.message_bytes for row in rows] == list(sizes), operation
        for row in rows:
            assert row.verified
            assert row.algbw_bytes_per_s == pytest.approx(row.message_bytes / row.seconds.median)
            factor = bus_factor(row.operation, 2)
            assert row.busbw_bytes_per_s == pytest.approx(factor * row.algbw_bytes_per_s)


def test_senders_at_the_same_time_are_added_up() -> None:
    async def measure() -> list[Any]:
        async with workers(4) as members:
            return await group(members, "send_recv", (65536,))

    (row,) = asyncio.run(measure())
    assert row.ranks == 4
    assert row.algbw_bytes_per_s == pytest.approx(2 * 65536 / row.seconds.median)


def test_wrong_values_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A library that sums wrongly on one rank: what a broken NCCL transport looks like.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "def spoil():\n"
        "    while 'torch.distributed' not in sys.modules or "
        "not hasattr(sys.modules['torch.distributed'], 'destroy_process_group'):\n"
        "        time.sleep(0.01)\n"
        "    module = sys.modules['torch.distributed']\n"
        "    real = module.all_reduce\n"
        "    def wrong(tensor, *rest, **more):\n"
        "        real(tensor, *rest, **more)\n"
        "        if tensor.numel() > 100: tensor[7] += 1\n"
        "    module.all_reduce = wrong\n"
        "threading.Thread(target=spoil, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def measure() -> list[Any]:
        async with workers(2) as members:
            return await group(members, "all_reduce", (4096, 65536))

    (row,) = asyncio.run(measure())  # and the larger message is not measured at all
    assert (row.message_bytes, row.verified) == (4096, False)


def test_a_first_rank_that_cannot_be_reached_is_named() -> None:
    async def measure() -> str:
        async with workers(1) as (worker,):
            job = LinkJob(
                key="g",
                operation="all_reduce",
                backend="gloo",
                scope="inter_node",
                nodes=("a", "b"),
                devices=(),
                rank=1,
                ranks=2,
                addresses=("127.0.0.1",),
                port=1,
                sizes=(1024,),
                seconds=1.0,
                limit_s=5.0,
            )
            with pytest.raises(JobError) as caught:
                await worker.run(job, limit_s=30)
            assert worker.pid is None  # a broken group ends its process
            return caught.value.why

    why = asyncio.run(measure())
    assert "port 1 of the first rank does not answer (127.0.0.1: Connection refused)" in why


def test_a_process_that_hangs_is_killed_and_the_next_job_gets_a_new_one() -> None:
    async def measure() -> None:
        async with workers() as (worker,):
            await worker.run(DescribeJob(), limit_s=60)
            first = worker.pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            started = time.monotonic()
            with pytest.raises(JobError, match=r"timed out after 0\.3 s"):
                await worker.run(DescribeJob(), limit_s=0.3)
            assert time.monotonic() - started < 5
            assert gone(first)
            answer = await worker.run(DescribeJob(), limit_s=60)
            assert answer["torch"]
            assert worker.pid != first

    asyncio.run(measure())


def test_a_process_that_dies_says_how() -> None:
    async def measure() -> None:
        async with workers() as (worker,):
            await worker.run(DescribeJob(), limit_s=60)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGSEGV)
            with pytest.raises(JobError, match="was killed by signal 11"):
                await worker.run(DescribeJob(), limit_s=60)

    asyncio.run(measure())


def test_a_job_that_is_cancelled_takes_its_process_along() -> None:
    async def measure() -> None:
        async with workers() as (worker,):
            await worker.run(DescribeJob(), limit_s=60)
            pid = worker.pid
            assert pid is not None
            job = MatmulJob(dtype="fp32", m=2048, n=2048, k=2048, seconds=30)
            task = asyncio.create_task(worker.run(job, limit_s=60))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert gone(pid)

    asyncio.run(measure())


def test_a_parent_that_is_killed_leaves_nothing_behind() -> None:
    script = (
        "import asyncio\n"
        "from hetcli.probe.supervise import Worker\n"
        "from hetcli.probe.wire import DescribeJob, MatmulJob\n"
        "async def main():\n"
        "    worker = Worker(index=0, ordinal=None)\n"
        "    await worker.run(DescribeJob(), limit_s=60)\n"
        "    print(worker.pid, flush=True)\n"
        "    job = MatmulJob(dtype='fp32', m=2048, n=2048, k=2048, seconds=60)\n"
        "    await worker.run(job, limit_s=120)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    assert gone(pid)


def test_what_a_library_prints_does_not_reach_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, threading\n"
        "import time\n"
        "def chatter():\n"
        # Libraries print once they are used: after the worker has put its output aside.
        "    first = os.readlink('/proc/self/fd/1')\n"
        "    while os.readlink('/proc/self/fd/1') == first: time.sleep(0.005)\n"
        "    while True: os.write(1, b'NCCL version 2.21\\n'); time.sleep(0.005)\n"
        "threading.Thread(target=chatter, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def measure() -> dict[str, Any]:
        async with workers() as (worker,):
            await asyncio.sleep(0)
            answer = await worker.run(DescribeJob(), limit_s=60)
            await asyncio.sleep(0.3)
            return answer | await worker.run(DescribeJob(), limit_s=60)

    assert asyncio.run(measure())["threads"] >= 1
