"""Where a profile starts: one node, hosts over ssh, or nodes that a launcher started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetcli.errors import EnvironmentFailure, ExitCode
from hetcli.probe.campaign import Campaign, Settings
from hetcli.probe.launched import Placement, placement
from hetcli.probe.meeting import follow, lead
from hetcli.probe.node import DeviceChoice, LocalNode
from hetcli.probe.remote import Node
from hetcli.probe.ssh import connect
from hetcli.spec.profile import Profile

__all__ = ["Listener", "Outcome", "Targets", "profile"]


@dataclass(frozen=True)
class Listener:
    """Who hears of a profile while it grows. `start` gets the estimated seconds."""

    save: Callable[[Profile], None]
    start: Callable[[float], None]
    progress: Callable[[str, float], None]


@dataclass(frozen=True)
class Targets:
    """What to profile: this node (`name`, default its host name), the `hosts`, or a job's nodes."""

    choice: DeviceChoice = "auto"
    name: str | None = None
    hosts: tuple[str, ...] = ()
    remote_command: tuple[str, ...] = ("hetcli",)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def placement(self) -> Placement | None:
        """The place of this process in a launcher's job; None with `hosts` or without a job."""
        return None if self.hosts else placement(self.environment)

    @property
    def several(self) -> bool:
        """Whether there may be more than one node."""
        return bool(self.hosts) or self.placement is not None


@dataclass(frozen=True)
class Outcome:
    """The profiles that there are, and the nodes that there are none of."""

    profiles: tuple[Profile, ...]
    failures: tuple[EnvironmentFailure, ...] = ()

    def verdict(self) -> ExitCode:
        """YES when every node gave every result it was asked for. Raises EnvironmentFailure."""
        missing = [(profile.node, each) for profile in self.profiles for each in profile.missing]
        if not missing and not self.failures:
            return ExitCode.YES
        reasons = [f"{failure.what}: {failure.why}" for failure in self.failures]
        reasons += [f"{node}: {each.step}: {each.why}" for node, each in missing]
        more = f" (and {len(reasons) - 3} more, see `missing`)" if len(reasons) > 3 else ""
        raise EnvironmentFailure(
            f"{len(self.failures)} nodes and {len(missing)} steps gave no result",
            why="; ".join(reasons[:3]) + more,
            fix="correct the cause and run again with --resume: what was measured is kept",
        )


async def _campaign(
    nodes: Sequence[Node],
    settings: Settings,
    listener: Listener,
    previous: Mapping[str, Profile],
) -> tuple[Profile, ...]:
    campaign = Campaign(nodes, settings, listener.save, listener.progress, previous)
    await campaign.describe()
    listener.start(campaign.estimate_s())
    return await campaign.run()


@contextlib.asynccontextmanager
async def _closing(*nodes: Node) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.shield(asyncio.gather(*(node.close() for node in nodes)))


def profile(
    targets: Targets,
    settings: Settings,
    listener: Listener,
    *,
    previous: Mapping[str, Profile] | None = None,
    nvml_module: Any = None,
) -> Outcome | None:
    """Profile the targets; what `previous` holds of a node is not measured again.

    None on a process that only served another one's profile. Raises EnvironmentFailure when this
    node's driver cannot be used, or no node is left.
    """
    before = previous or {}
    if targets.hosts:
        return asyncio.run(_over_ssh(targets, settings, listener, before))
    own = LocalNode(targets.name or socket.gethostname(), targets.choice, nvml_module=nvml_module)
    job = targets.placement
    if job is None:
        return asyncio.run(_alone(own, settings, listener, before))
    # A launcher may start several processes a node: the first one measures all its devices.
    return asyncio.run(_launched(job, own, settings, listener, before)) if job.first else None


async def _alone(
    node: Node, settings: Settings, listener: Listener, previous: Mapping[str, Profile]
) -> Outcome:
    async with _closing(node):
        return Outcome(await _campaign([node], settings, listener, previous))


async def _over_ssh(
    targets: Targets, settings: Settings, listener: Listener, previous: Mapping[str, Profile]
) -> Outcome:
    nodes, failures = await connect(
        targets.hosts, targets.choice, remote_command=targets.remote_command
    )
    async with _closing(*nodes):
        if not nodes:
            return Outcome((), failures)
        return Outcome(await _campaign(nodes, settings, listener, previous), failures)


async def _launched(
    job: Placement,
    own: LocalNode,
    settings: Settings,
    listener: Listener,
    previous: Mapping[str, Profile],
) -> Outcome | None:
    async with _closing(own):
        if job.node:
            await follow(job, own)
            return None
        async with lead(job) as (others, failures):
            nodes = _renamed([own, *(others[number] for number in sorted(others))])
            return Outcome(await _campaign(nodes, settings, listener, previous), failures)


def _renamed(nodes: Sequence[Node]) -> Sequence[Node]:
    """Containers of one host may share its name: the later ones get their number behind it."""
    seen: set[str] = set()
    for number, node in enumerate(nodes):
        if node.name in seen:
            node.name = f"{node.name}-{number}"
        seen.add(node.name)
    return nodes
