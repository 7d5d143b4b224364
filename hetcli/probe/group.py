"""Link probes of one process: join a group of ranks, time an operation over sizes, check values.

torch.distributed does the work: NCCL between GPUs, gloo between processors. Every wait has the
job's time limit; what happens after it is the supervisor's business (it kills this process).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import psutil

from hetcli.probe.bus import bus_factor
from hetcli.probe.compute import WrongResultError
from hetcli.probe.timing import MINIMUM_REPEATS, REPEATS, Deadline, spread
from hetcli.probe.torch_device import Target
from hetcli.probe.wire import LinkJob
from hetcli.spec.profile import LinkMeasurement

if TYPE_CHECKING:
    import torch
    import torch.distributed

__all__ = ["UnreachableError", "links", "open_store"]

_CONNECT_S: Final = 3.0
# Elements cycle through so many values; small, so that sums over ranks stay exact in fp32.
_CYCLE: Final = 251
_LATENCY_REPEATS: Final = 30


class UnreachableError(Exception):
    """No address of the group's first rank answers."""


def open_store(limit_s: float) -> torch.distributed.TCPStore:
    """A meeting point on a free port of every interface."""
    import torch.distributed as dist

    return dist.TCPStore(
        # Peers come in over whichever interface reaches them.
        "0.0.0.0",
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=limit_s),
    )


def _find(addresses: tuple[str, ...], port: int) -> tuple[str, str]:
    """The first address that answers, and the own address that reaches it."""
    tried = []
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=_CONNECT_S) as connection:
                return address, connection.getsockname()[0]
        except OSError as error:
            tried.append(f"{address}: {error.strerror or error}")
    raise UnreachableError(f"port {port} of the first rank does not answer ({'; '.join(tried)})")


def _interface(address: str) -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None


def _use_interface(address: str) -> None:
    """Send over the interface that has `address`, unless the user chose one."""
    interface = _interface(address)
    if interface is None:
        return
    # NCCL takes a name for the beginning of names, unless an equals sign stands before it.
    exact = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    for variable, value in exact.items():
        if variable not in _CHOSEN:
            os.environ[variable] = value


# What the user's environment already decided before this module touched it.
_CHOSEN: Final = frozenset(os.environ)


@contextlib.contextmanager
def _group(
    job: LinkJob, target: Target, store: torch.distributed.TCPStore | None
) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    limit = datetime.timedelta(seconds=job.limit_s)
    if store is None:
        theirs, own = _find(job.addresses, job.port)
        store = dist.TCPStore(theirs, job.port, is_master=False, timeout=limit)
        store.set(f"{job.key}/address", theirs)
    else:
        store.set_timeout(limit)
        own = store.get(f"{job.key}/address").decode()
    _use_interface(own)
    if target.ordinal is not None:
        torch.cuda.set_device(target.device)
    dist.init_process_group(
        job.backend,
        store=dist.PrefixStore(job.key, store),
        rank=job.rank,
        world_size=job.ranks,
        timeout=limit,
        device_id=target.device if job.backend == "nccl" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def links(
    target: Target, job: LinkJob, store: torch.distributed.TCPStore | None
) -> Iterator[LinkMeasurement]:
    """Take part in the job's group; on rank 0 yields one measurement for each size that fits."""
    with _group(job, target, store):
        probe = _Probe(target, job)
        deadline = Deadline(job.seconds)
        for position, size in enumerate(job.sizes):
            samples = probe.samples(size, deadline.left / (len(job.sizes) - position))
            if samples is None:
                return
            if job.rank == 0:
                yield _row(job, size, samples, verified=probe.verified)
            if not probe.verified:
                return


def _row(job: LinkJob, size: int, samples: list[float], *, verified: bool) -> LinkMeasurement:
    seconds = spread(samples)
    senders = job.ranks // 2 if job.operation == "send_recv" else 1
    algbw = senders * size / seconds.median
    return LinkMeasurement(
        operation=job.operation,
        backend=job.backend,
        scope=job.scope,
        nodes=job.nodes,
        devices=job.devices,
        ranks=job.ranks,
        message_bytes=size,
        seconds=seconds,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * bus_factor(job.operation, job.ranks),
        verified=verified,
    )


class _Probe:
    """One rank's side of an operation."""

    def __init__(self, target: Target, job: LinkJob) -> None:
        self.target = target
        self.job = job
        self.verified = True
        self.half_round_trip = self._half_round_trip() if job.operation == "send_recv" else 0.0

    def samples(self, size: int, seconds: float) -> list[float] | None:
        """Seconds of every repeat, the slowest rank's; None when they do not fit into `seconds`.

        Rank 0 decides how many repeats there are, so that all ranks agree.
        """
        run, check = _operation(self.target, self.job, size)
        timer = self.target.waiting_timer()
        run()
        self.target.synchronize()
        self.verified = self._all(check())
        first = self._slowest([timer(run)])[0]
        repeats = int(self._agreed(min(REPEATS, seconds / max(first, 1e-9))))
        if repeats < MINIMUM_REPEATS:
            return None
        own = []
        for _ in range(repeats):
            self._barrier()
            own.append(timer(run))
        if self.job.operation == "send_recv":
            # A receiver's clock starts when it is ready, not when the message leaves. A message
            # and its acknowledgement that were faster than any before show a shorter way back.
            self.half_round_trip = min(self.half_round_trip, min(own) / 2)
            sending = self.job.rank < self.job.ranks // 2
            own = [each - self.half_round_trip if sending else 0.0 for each in own]
        return self._slowest(own)

    def _half_round_trip(self) -> float:
        """Half the fastest round trip of 4 bytes: what the acknowledgement of a message costs."""
        timer = self.target.waiting_timer()
        run, _ = _operation(self.target, self.job, 4)
        run()
        fastest = min(timer(run) for _ in range(_LATENCY_REPEATS))
        return self._agreed(fastest) / 2

    def _tensor(self, values: list[float]) -> torch.Tensor:
        import torch

        return torch.tensor(values, dtype=torch.float64, device=self.target.device)

    def _slowest(self, own: list[float]) -> list[float]:
        import torch.distributed as dist

        values = self._tensor(own)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return [float(value) for value in values]

    def _agreed(self, own: float) -> float:
        """Rank 0's value."""
        import torch.distributed as dist

        value = self._tensor([own])
        dist.broadcast(value, 0)
        return float(value.item())

    def _all(self, own: bool) -> bool:
        import torch.distributed as dist

        value = self._tensor([float(own)])
        dist.all_reduce(value, dist.ReduceOp.MIN)
        return float(value.item()) == 1.0

    def _barrier(self) -> None:
        self._slowest([0.0])


def _pattern(target: Target, elements: int) -> torch.Tensor:
    import torch

    return (torch.arange(elements, device=target.device) % _CYCLE).float()


def _operation(
    target: Target, job: LinkJob, size: int
) -> tuple[Callable[[], object], Callable[[], bool]]:
    """What to time, and the check of the values it leaves behind.

    Rank r holds the pattern times r + 1, so every result tells from which ranks it came.
    """
    import torch
    import torch.distributed as dist

    ranks, rank = job.ranks, job.rank
    part = max(1, size // 4 // ranks)
    pattern = _pattern(target, max(1, size // 4))
    if job.operation == "send_recv":
        return _send(target, job, pattern)
    if job.operation == "all_reduce":
        buffer = pattern * (rank + 1)
        total = ranks * (ranks + 1) // 2

        def is_sum() -> bool:
            right = bool(torch.equal(buffer, pattern * total))
            # The timed repeats reduce in place; only zeros do not grow.
            buffer.zero_()
            return right

        return lambda: dist.all_reduce(buffer), is_sum
    if job.operation == "broadcast":
        received = pattern.clone() if rank == 0 else torch.zeros_like(pattern)
        return lambda: dist.broadcast(received, 0), lambda: torch.equal(received, pattern)
    piece = _pattern(target, part)
    whole = torch.cat([piece * (other + 1) for other in range(ranks)])
    if job.operation == "all_gather":
        gathered = torch.zeros_like(whole)
        own = piece * (rank + 1)
        return (
            lambda: dist.all_gather_into_tensor(gathered, own),
            lambda: torch.equal(gathered, whole),
        )
    if job.operation == "all_to_all":
        exchanged = torch.zeros_like(whole)
        outgoing = (piece * (rank + 1)).repeat(ranks)
        return (
            lambda: dist.all_to_all_single(exchanged, outgoing),
            lambda: torch.equal(exchanged, whole),
        )
    if job.operation == "reduce_scatter":
        scattered = torch.zeros_like(piece)
        total = ranks * (ranks + 1) // 2
        contribution = (piece * (rank + 1)).repeat(ranks)
        return (
            lambda: dist.reduce_scatter_tensor(scattered, contribution),
            lambda: torch.equal(scattered, piece * total),
        )
    raise WrongResultError(f"no probe for {job.operation}")


def _send(
    target: Target, job: LinkJob, pattern: torch.Tensor
) -> tuple[Callable[[], object], Callable[[], bool]]:
    """The message one way and 4 bytes back, between rank r and r + half."""
    import torch
    import torch.distributed as dist

    half = job.ranks // 2
    acknowledgement = torch.zeros(1, device=target.device)
    if job.rank < half:
        message = pattern * (job.rank + 1)

        def send() -> None:
            dist.send(message, job.rank + half)
            dist.recv(acknowledgement, job.rank + half)

        return send, lambda: float(acknowledgement.item()) == job.rank + half

    received = torch.zeros_like(pattern)

    def receive() -> None:
        dist.recv(received, job.rank - half)
        dist.send(acknowledgement.fill_(float(job.rank)), job.rank - half)

    return receive, lambda: torch.equal(received, pattern * (job.rank - half + 1))
