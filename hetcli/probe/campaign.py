"""Profile a set of nodes: each by itself, then every pair, then growing groups.

Nothing here measures. Nodes do (`Node.run`), each job within a time limit; a job that fails costs
its own rows, a node that dies costs the rows it takes part in, and all other rows are kept.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from hetcli.probe.draft import Draft
from hetcli.probe.remote import Node
from hetcli.probe.steps import (
    Effort,
    GroupStep,
    Level,
    Step,
    compute_steps,
    intra_steps,
    is_measured,
)
from hetcli.probe.supervise import JobError
from hetcli.probe.tournament import group_sizes, rounds
from hetcli.probe.wire import DescribeJob, LinkJob, NodeFacts, StoreJob
from hetcli.spec.model.architecture import Model
from hetcli.spec.profile import LinkScope, Measurement, Profile

__all__ = ["PARTS", "Campaign", "Part", "Settings"]

# What a job may take beyond the time it measures for: allocating, compiling kernels, joining.
GRACE_S: Final = 30.0
LINK_GRACE_S: Final = 20.0
DESCRIBE_LIMIT_S: Final = 120.0
# A node that so many others could not reach, and none could, is not waited for any more.
UNREACHED: Final = 2


Part = Literal["compute", "inside", "between"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(frozen=True)
class Settings:
    """Which parts to measure: devices, links inside nodes, links between them.

    `compute_s` overrides the level's time for a node's compute probes.
    """

    level: Level = "normal"
    model: Model | None = None
    parts: frozenset[Part] = frozenset(PARTS)
    compute_s: float | None = None


@dataclass
class Campaign:
    """The nodes, what they are, and what has been measured of them.

    `save` gets a node's profile after every step; `progress` gets a label and the share of the
    whole that is done.
    """

    nodes: Sequence[Node]
    settings: Settings
    save: Callable[[Profile], None]
    progress: Callable[[str, float], None]
    previous: Mapping[str, Profile] = field(default_factory=dict)
    facts: dict[str, NodeFacts] = field(default_factory=dict)
    drafts: dict[str, Draft] = field(default_factory=dict)
    _counter: itertools.count[int] = field(default_factory=itertools.count)
    _reached: set[str] = field(default_factory=set)
    _unreached: dict[str, set[str]] = field(default_factory=dict)
    _done: float = 0.0
    _whole: float = 1.0

    async def run(self) -> tuple[Profile, ...]:
        """Measure everything; returns the profiles in the order of the nodes.

        `describe` comes before.
        """
        measured = [node for node in self.nodes if self.facts[node.name].measurable]
        self._whole = max(self.estimate_s(), 1e-9)
        if "compute" in self.settings.parts:
            await self._machine_by_machine(measured, self._compute)
        if "inside" in self.settings.parts:
            await self._machine_by_machine(measured, self._inside)
        if "between" in self.settings.parts:
            await self._pairs(measured)
            await self._groups(measured)
        return tuple(self.drafts[node.name].finish() for node in self.nodes)

    async def describe(self) -> None:
        """Ask every node what it is, and start its draft. Raises EnvironmentFailure."""
        for node in self.nodes:
            facts = await node.facts()
            self.facts[node.name] = facts
            draft = self.drafts[node.name] = Draft(
                node.name, facts, previous=self.previous.get(node.name), save=self.save
            )
            if not self.settings.parts:
                draft.note("only the inventory was asked for")
            elif not facts.torch:
                draft.note("torch is not installed (pip install 'hetcli[profile]'): inventory only")
            elif not facts.measurable:
                draft.note("only NVIDIA GPUs and processors are measured: inventory only")
            elif facts.ranks == 0 and not any(device.usable for device in facts.devices):
                draft.miss("everything", "no device of this node can be used")

    def estimate_s(self) -> float:
        """About how many seconds the measuring takes, by the time that each step is given."""
        seconds = 0.0
        names = [node.name for node in self.nodes if self.facts[node.name].measurable]
        machines = self._machines(names)
        for members in machines:
            for name in members:
                facts = self.facts[name]
                if "compute" in self.settings.parts:
                    seconds += self._compute_s(facts) / len(machines)
                if "inside" in self.settings.parts:
                    inside = len(intra_steps(facts, self.settings.level))
                    seconds += inside * self._effort(facts).link_s / len(machines)
        if "between" in self.settings.parts and len(names) > 1:
            effort = self._effort(self.facts[names[0]])
            seconds += 2 * len(rounds(names)) * effort.link_s
            seconds += len(group_sizes(len(names))) * effort.link_s
        return seconds

    def _effort(self, facts: NodeFacts) -> Effort:
        return Effort.of(self.settings.level, processor=facts.backend == "gloo")

    def _compute_s(self, facts: NodeFacts) -> float:
        return self.settings.compute_s or self._effort(facts).compute_s

    def _machines(self, names: Iterable[str]) -> list[list[str]]:
        """Node names by the machine they run on: nodes of one machine disturb each other."""
        machines: dict[str, list[str]] = {}
        for name in names:
            machines.setdefault(self.facts[name].host.machine or name, []).append(name)
        return list(machines.values())

    async def _machine_by_machine(
        self, nodes: Sequence[Node], measure: Callable[[Node], Any]
    ) -> None:
        """Machines at the same time, the nodes of one machine one after the other."""
        by_name = {node.name: node for node in nodes}

        async def machine(names: Sequence[str]) -> None:
            for name in names:
                await measure(by_name[name])

        async with asyncio.TaskGroup() as group:
            for names in self._machines(by_name):
                group.create_task(machine(names))

    def _advance(self, label: str, seconds: float) -> None:
        self._done += seconds
        self.progress(label, min(self._done / self._whole, 1.0))

    async def _compute(self, node: Node) -> None:
        facts, draft = self.facts[node.name], self.drafts[node.name]
        steps = compute_steps(facts, self.settings.level, self.settings.model)
        whole = sum(step.weight for step in steps)
        seconds = self._compute_s(facts)
        described: set[int] = set()
        broken: dict[int, str] = {}
        for step in steps:
            share = seconds * step.weight / whole
            if is_measured(step.job, step.device, draft.profile):
                continue
            if step.device in broken:
                draft.miss(step.label, broken[step.device])
                continue
            if step.rank not in described:
                described.add(step.rank)
                why = await self._describe(node, step, draft)
                if why:
                    broken[step.device] = why
                    draft.miss(step.label, why)
                    continue
            self._advance(f"{node.name}: {step.label}", 0.0)
            await self._one(node, step, share, draft)
            self._advance(f"{node.name}: {step.label}", share)
            draft.save()

    async def _describe(self, node: Node, step: Step, draft: Draft) -> str:
        """Learn what torch knows of the device; why it cannot be measured, or nothing."""
        try:
            seen = await node.run(step.rank, DescribeJob(), limit_s=DESCRIBE_LIMIT_S)
        except JobError as failed:
            return failed.why
        draft.update_host(
            **{name: seen[name] for name in ("torch", "cuda", "nccl") if seen.get(name)}
        )
        unified = draft.profile.devices[step.device].unified_memory
        if "memory_total_bytes" in seen and (unified or seen["integrated"]):
            # NVML knows no memory of such a part, or the host's; CUDA knows what it may use of it.
            memory = {name: seen[name] for name in ("memory_total_bytes", "memory_free_bytes")}
            draft.update_device(step.device, unified_memory=True, **memory)
        return ""

    async def _one(self, node: Node, step: Step, seconds: float, draft: Draft) -> None:
        job = step.job.model_copy(update={"seconds": seconds})
        try:
            await node.run(step.rank, job, limit_s=3 * seconds + GRACE_S, on_row=draft.add)
        except JobError as failed:
            draft.miss(step.label, failed.why)

    async def _inside(self, node: Node) -> None:
        facts = self.facts[node.name]
        for step in intra_steps(facts, self.settings.level):
            await self._group([node], step)

    async def _pairs(self, nodes: Sequence[Node]) -> None:
        """All pairs of nodes in rounds; the pairs of a round measure at the same time."""
        ready = [node for node in nodes if self.facts[node.name].ranks]
        for number, pairs in enumerate(rounds(ready) if len(ready) > 1 else (), 1):
            label = f"pairs, round {number}"
            for backwards in (False, True):
                async with asyncio.TaskGroup() as group:
                    for pair in pairs:
                        one, other = reversed(pair) if backwards else pair
                        step = GroupStep("send_recv", ((0, 0), (1, 0)), label)
                        group.create_task(self._group([one, other], step))
            if self.settings.level != "quick":
                await self._all_at_once(pairs, label)

    async def _all_at_once(self, pairs: Iterable[tuple[Node, Node]], label: str) -> None:
        """Every rank of one node sends to its counterpart, so that sharing the NICs shows."""
        async with asyncio.TaskGroup() as group:
            for one, other in pairs:
                ranks = min(self.facts[one.name].ranks, self.facts[other.name].ranks)
                if ranks < 2:
                    continue
                members = tuple((end, rank) for end in (0, 1) for rank in range(ranks))
                step = GroupStep("send_recv", members, f"{label}, {ranks} ranks at once")
                group.create_task(self._group([one, other], step))

    async def _groups(self, nodes: Sequence[Node]) -> None:
        """All-reduce over more and more nodes, one rank each, then over all ranks of all."""
        lost = self._unreached.keys() - self._reached
        ready = [node for node in nodes if self.facts[node.name].ranks and node.name not in lost]
        if len(ready) < 2:
            return
        for size in group_sizes(len(ready)):
            members = tuple((position, 0) for position in range(size))
            step = GroupStep("all_reduce", members, f"all-reduce over {size} nodes")
            await self._group(ready[:size], step)
        every = tuple(
            (position, rank)
            for position, node in enumerate(ready)
            for rank in range(self.facts[node.name].ranks)
        )
        if len(every) > len(ready) and self.settings.level != "quick":
            step = GroupStep("all_reduce", every, f"all-reduce over {len(every)} ranks")
            await self._group(ready, step)

    async def _group(self, nodes: Sequence[Node], step: GroupStep) -> None:
        """One operation over ranks of `nodes`; rows and failures belong to the first of them."""
        draft = self.drafts[nodes[0].name]
        names = tuple(node.name for node in nodes)
        effort = self._effort(self.facts[nodes[0].name])
        facts = self.facts[nodes[0].name]
        own = _devices(facts, step) if len(nodes) == 1 else ()
        backends = {self.facts[name].backend for name in names}
        label = f"{step.operation} ({step.label})"
        if not self._wanted(draft, step, names, own, label):
            return
        self._advance(f"{', '.join(names[:2])}: {step.label}", effort.link_s)
        if why := self._hopeless(names):
            draft.miss(label, why, names)
            return
        key = f"group-{next(self._counter)}"
        scope: LinkScope = "intra_node" if len(nodes) == 1 else "inter_node"
        limit = 3 * effort.link_s + LINK_GRACE_S
        try:
            first = nodes[step.members[0][0]]
            opened = await first.run(
                step.members[0][1], StoreJob(key=key, scope=scope), limit_s=LINK_GRACE_S
            )
            jobs = [
                LinkJob(
                    key=key,
                    operation=step.operation,
                    backend="nccl" if backends == {"nccl"} else "gloo",
                    scope=scope,
                    nodes=names,
                    devices=own,
                    rank=rank,
                    ranks=len(step.members),
                    addresses=("127.0.0.1",)
                    if len(nodes) == 1
                    else self.facts[first.name].addresses,
                    port=int(opened["port"]),
                    sizes=effort.sizes,
                    seconds=effort.link_s,
                    limit_s=limit,
                )
                for rank in range(len(step.members))
            ]
            await self._together(
                [
                    nodes[position].run(local, job, limit_s=limit, on_row=self._checked(draft))
                    for (position, local), job in zip(step.members, jobs, strict=True)
                ]
            )
        except JobError as failed:
            draft.miss(label, failed.why, names)
            if len(names) == 2:
                for one, other in (names, reversed(names)):
                    self._unreached.setdefault(one, set()).add(other)
        else:
            self._reached.update(names if len(names) > 1 else ())
        draft.save()

    def _hopeless(self, names: tuple[str, ...]) -> str:
        """Why a group of these nodes will not come together, as far as earlier ones tell."""
        if len(names) < 2:
            return ""
        for name in names:
            failed = len(self._unreached.get(name, ()))
            if failed >= UNREACHED and name not in self._reached:
                return f"{name} was not reached by {failed} other nodes"
        return ""

    def _wanted(
        self,
        draft: Draft,
        step: GroupStep,
        names: tuple[str, ...],
        devices: tuple[int, ...],
        label: str,
    ) -> bool:
        """Whether the step is still to do; rows that an interrupted one left make room for new."""
        before = self.previous.get(names[0])
        rows = [
            row
            for row in draft.profile.links
            if (row.operation, row.nodes, row.ranks, row.devices)
            == (step.operation, names, len(step.members), devices)
        ]
        failed = {(each.step, each.nodes) for each in (before.missing if before else ())}
        if rows and (label, names) not in failed:
            return False
        draft.drop_links(rows)
        return True

    @staticmethod
    async def _together(runs: Sequence[Any]) -> None:
        """Wait for all ranks; the first that fails ends the others' waiting for it."""
        tasks = [asyncio.ensure_future(run) for run in runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    def _checked(draft: Draft) -> Callable[[str, Measurement], None]:
        def add(name: str, record: Measurement) -> None:
            draft.add(name, record)
            if not getattr(record, "verified", True):
                wrong = getattr(record, "operation", name)
                draft.miss(f"{wrong}", "the values that arrived are wrong; its time is not used")

        return add


def _devices(facts: NodeFacts, step: GroupStep) -> tuple[int, ...]:
    """The inventory indices of the ranks of one node; a processor has several ranks."""
    usable = [device.index for device in facts.devices if device.usable]
    processor = facts.devices[0].kind == "cpu"
    return tuple(usable[0 if processor else rank] for _, rank in step.members)
