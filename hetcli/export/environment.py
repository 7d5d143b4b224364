"""The environment of a node, one line a plan fact.

NCCL's variables are described in its user guide, "Environment Variables"; what must be equal on all
ranks (network, algorithm, protocol) is decided from all nodes of the plan, what may differ (the
interface) from the node itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from hetcli.export.placement import Host, Placement
from hetcli.export.planned import Planned
from hetcli.export.program import Variable

__all__ = ["node_environment", "socket_interface"]

# The variable that restricts a process to some devices, by vendor.
_VISIBLE: Final[Mapping[str, str]] = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "HIP_VISIBLE_DEVICES",
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
}
# Fabrics that NCCL reaches through libfabric, and libfabric's provider for each.
_LIBFABRIC: Final[Mapping[str, str]] = {"efa": "efa", "slingshot": "cxi"}
_VERBS: Final = frozenset({"infiniband", "roce"})


def node_environment(
    planned: Planned, placement: Placement, host: Host, *, launcher_sets_devices: bool
) -> tuple[Variable, ...]:
    """The variables of one node, in the order in which they are exported.

    `launcher_sets_devices` leaves the visible devices to a launcher that sets them itself.
    """
    vendor = planned.gpus_of(host)[0].vendor
    lines = [*_devices(host, vendor, launcher_sets_devices)]
    if len(placement.hosts) > 1:
        lines += _interface(planned, host)
    if vendor in ("nvidia", "amd"):
        lines += _collectives(planned, len(placement.hosts) > 1)
    lines += _threads(planned, placement, host)
    return tuple(lines)


def socket_interface(planned: Planned, host: Host) -> str | None:
    """The fastest named interface of a node; None where the cluster file names none."""
    named = [nic for nic in planned.groups[host.name].nics if nic.interface is not None]
    return max(named, key=lambda nic: nic.rate).interface if named else None


def _devices(host: Host, vendor: str, launcher_sets_devices: bool) -> Iterator[Variable]:
    if vendor == "nvidia":
        yield Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "the plan counts devices by PCI bus")
    if vendor in _VISIBLE and not launcher_sets_devices:
        yield Variable(
            _VISIBLE[vendor],
            ",".join(map(str, host.devices)),
            "the plan's devices of this node, in rank order",
        )


def _interface(planned: Planned, host: Host) -> Iterator[Variable]:
    interface = socket_interface(planned, host)
    if interface is None:
        why = "the cluster file names no interface: all but loopback and containers"
        yield Variable("NCCL_SOCKET_IFNAME", "^lo,docker", why)
        return
    why = f"the fastest named interface of {host.name}"
    # NCCL reads a bare name as a prefix; `=` asks for exactly this one.
    yield Variable("NCCL_SOCKET_IFNAME", f"={interface}", why)
    yield Variable("GLOO_SOCKET_IFNAME", interface, why)


def _collectives(planned: Planned, several_nodes: bool) -> Iterator[Variable]:
    yield Variable("NCCL_DEBUG", "WARN", "NCCL says when ranks run unlike versions")
    if several_nodes:
        yield from _network(planned)
    mixes = _mixes(planned)
    if mixes:
        why = f"ranks that choose by themselves can hang: {' and '.join(mixes)}"
        yield Variable("NCCL_ALGO", "Ring", why)
        yield Variable("NCCL_PROTO", "Simple", why)


def _network(planned: Planned) -> Iterator[Variable]:
    """One network that all ranks share; it must be equal on every node."""
    kinds = sorted({node.nic_kind for node in planned.nodes})
    named = " and ".join(kinds)
    if len(kinds) > 1:
        why = f"{named} do not reach each other; TCP does"
        yield Variable("NCCL_NET", "Socket", why)
        yield Variable("NCCL_IB_DISABLE", "1", why)
        return
    kind = kinds[0]
    if kind in _VERBS:
        yield Variable("NCCL_IB_DISABLE", "0", f"the nodes are joined by {named}")
    elif kind in _LIBFABRIC:
        yield Variable("FI_PROVIDER", _LIBFABRIC[kind], f"the nodes are joined by {named}")
    else:
        yield Variable("NCCL_IB_DISABLE", "1", f"the nodes are joined by {named}")


def _mixes(planned: Planned) -> list[str]:
    """What differs between nodes and makes ranks choose unlike algorithms (NCCL issue 1110)."""
    generations = {gpu.compute_capability or gpu.architecture for gpu in planned.gpus}
    cpus = {
        vendor
        for node in planned.nodes
        if (vendor := planned.groups[node.name].cpu_vendor) is not None
    }
    mixes = []
    if len(generations) > 1:
        mixes.append(f"GPU generations {', '.join(sorted(generations))}")
    if len({vendor.casefold() for vendor in cpus}) > 1:
        mixes.append(f"CPU vendors {', '.join(sorted(cpus))}")
    return mixes


def _threads(planned: Planned, placement: Placement, host: Host) -> Iterator[Variable]:
    cores = planned.groups[host.name].cores
    if cores is None:
        yield Variable("OMP_NUM_THREADS", "1", "the cluster file names no number of cores")
        return
    processes = sum(each.processes for each in placement.hosts if each.name == host.name)
    share = max(1, cores // processes)
    yield Variable("OMP_NUM_THREADS", str(share), f"{cores} cores over {processes} processes")
