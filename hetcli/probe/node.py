"""This node: what it is, and the processes that measure its devices."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any, Final, Literal

from hetcli.probe.amd import amd_inventory
from hetcli.probe.ascend import npu_inventory
from hetcli.probe.host import host_facts, network_interfaces, nvidia_on_bus
from hetcli.probe.inventory import cpu_inventory, gpu_inventory
from hetcli.probe.limit import within
from hetcli.probe.load import watch_load
from hetcli.probe.nvml import NvmlUnavailable, open_nvml
from hetcli.probe.supervise import OnRow, Worker, ignore_row
from hetcli.probe.topology import device_links, nic_distances
from hetcli.probe.visible import cuda_environment, restrict
from hetcli.probe.wire import Job, LinkJob, NodeFacts, StoreJob
from hetcli.spec.profile import DeviceInventory, DeviceLink, LinkScope

__all__ = ["DeviceChoice", "LocalNode", "describe_node"]

DeviceChoice = Literal["auto", "gpu", "cpu"]

# NVML answers within milliseconds; a first call may wake the driver up (seconds).
INVENTORY_LIMIT_S: Final = 60.0
# Processes of a node without GPUs that measure links: two show how they share the interface.
_CPU_RANKS: Final = 2


def describe_node(
    choice: DeviceChoice = "auto", *, nvml_module: Any = None, limit_s: float = INVENTORY_LIMIT_S
) -> NodeFacts:
    """The devices, interfaces and paths of this node.

    Without an NVIDIA card and its library, AMD and Ascend devices are listed. With `auto`, a
    machine that has none of these is profiled by its processor. Raises EnvironmentFailure when GPUs
    are there (or asked for) but their driver cannot be used, or does not answer in time.
    """
    return within(limit_s, lambda: _describe(choice, nvml_module), what="the inventory")


def _describe(choice: DeviceChoice, module: Any) -> NodeFacts:
    devices: tuple[DeviceInventory, ...] = ()
    paths: tuple[DeviceLink, ...] = ()
    notes: list[str] = []
    driver = cuda = None
    if choice != "cpu":
        try:
            with open_nvml(module) as nvml:
                devices = gpu_inventory(nvml)
                paths = device_links(nvml, devices)
                driver, cuda = nvml.driver_version(), nvml.cuda_version()
        except NvmlUnavailable as error:
            if not error.absent or nvidia_on_bus():
                raise
            devices = amd_inventory() or npu_inventory()
            if not devices:
                if choice == "gpu":
                    raise
                notes.append(f"{error.what}: the processor is profiled")
        else:
            if not devices:
                if choice == "gpu":
                    raise NvmlUnavailable(
                        "the NVIDIA driver sees no GPU",
                        why="it is loaded, and lists no device",
                        fix="is the card seated and powered? or use --device cpu",
                        absent=False,
                    )
                notes.append("the NVIDIA driver sees no GPU: the processor is profiled")
    host = host_facts(driver=driver, cuda=cuda)
    hidden: tuple[str, ...] = ()
    if not devices:
        devices = cpu_inventory(host)
    elif devices[0].vendor == "nvidia":
        devices, hidden = restrict(devices, os.environ)
    nics = network_interfaces()
    gpus = sum(device.kind == "gpu" and device.usable for device in devices)
    processor = devices[0].kind == "cpu"
    return NodeFacts(
        host=host,
        devices=devices,
        nics=nics,
        device_links=paths,
        nic_distances=nic_distances(devices, nics),
        addresses=_addresses(),
        backend="gloo" if processor else "nccl",
        ranks=_CPU_RANKS if processor else gpus,
        torch=importlib.util.find_spec("torch") is not None,
        notes=(*notes, *hidden),
    )


def _addresses() -> tuple[str, ...]:
    """Where peers may find this node: IPv4 addresses first, loopback never."""
    import socket

    import psutil

    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for entries in psutil.net_if_addrs().values():
            for entry in entries:
                local = entry.address.startswith(("127.", "::1", "fe80:"))
                if entry.family == family and not local:
                    found.append(entry.address)
    return tuple(found)


def usable_indices(devices: Sequence[DeviceInventory]) -> tuple[int, ...]:
    """The inventory indices of the devices that may be measured, in order."""
    return tuple(device.index for device in devices if device.usable)


class LocalNode:
    """The devices of this machine. A rank is the n-th usable device, or process of a processor."""

    def __init__(
        self, name: str, choice: DeviceChoice = "auto", *, nvml_module: Any = None
    ) -> None:
        self.name = name
        self._choice: DeviceChoice = choice
        self._nvml = nvml_module
        self._facts: NodeFacts | None = None
        self._workers: dict[int, Worker] = {}
        self._scopes: dict[int, LinkScope] = {}

    async def facts(self) -> NodeFacts:
        """What the node is; asked for once."""
        if self._facts is None:
            self._facts = await asyncio.to_thread(
                describe_node, self._choice, nvml_module=self._nvml
            )
        return self._facts

    async def run(
        self, rank: int, job: Job, *, limit_s: float, on_row: OnRow = ignore_row
    ) -> dict[str, Any]:
        """Do a job on the rank's device. Raises JobError."""
        facts = await self.facts()
        worker = self._worker(rank, facts)
        if isinstance(job, LinkJob | StoreJob) and facts.backend == "nccl":
            await self._choose_network(rank, worker, job.scope)
        index = self._index(rank, facts)
        watched = facts.devices[index].kind == "gpu" and not isinstance(job, LinkJob | StoreJob)
        device = facts.devices[index] if watched else None
        with watch_load(device, job.kind, on_row, self._nvml):
            return await worker.run(job, limit_s=limit_s, on_row=on_row)

    async def _choose_network(self, rank: int, worker: Worker, scope: LinkScope) -> None:
        """Give the rank a new process when its links now leave the node, or no longer do.

        NCCL chooses its interface with the first group of a process (bootstrapNetInit in NCCL's
        src/bootstrap.cc); after loopback it would look for the other nodes there.
        """
        if self._scopes.get(rank, scope) != scope:
            await worker.close()
        self._scopes[rank] = scope

    def _index(self, rank: int, facts: NodeFacts) -> int:
        indices = usable_indices(facts.devices)
        return indices[0] if facts.devices[0].kind == "cpu" else indices[rank]

    def _worker(self, rank: int, facts: NodeFacts) -> Worker:
        if rank not in self._workers:
            index = self._index(rank, facts)
            environment, ordinal = cuda_environment(facts.devices, index)
            self._workers[rank] = Worker(index=index, ordinal=ordinal, environment=environment)
        return self._workers[rank]

    async def close(self) -> None:
        """End every measuring process."""
        workers, self._workers = self._workers, {}
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(worker.close() for worker in workers.values()))
