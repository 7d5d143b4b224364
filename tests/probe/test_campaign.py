"""Who measures with whom and what is kept when something dies, over nodes that only pretend."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hetcli.errors import EnvironmentFailure, ExitCode
from hetcli.probe.campaign import Campaign, Settings
from hetcli.probe.inventory import gpu_inventory
from hetcli.probe.node import describe_node
from hetcli.probe.nvml import open_nvml
from hetcli.probe.profiler import Outcome
from hetcli.probe.supervise import JobError, OnRow, ignore_row
from hetcli.probe.wire import (
    DescribeJob,
    Job,
    LayerJob,
    LinkJob,
    MatmulJob,
    MemoryJob,
    OptimizerJob,
    StoreJob,
)
from hetcli.spec.profile import (
    LayerMeasurement,
    LinkMeasurement,
    MatmulMeasurement,
    MemoryBandwidthMeasurement,
    OptimizerMeasurement,
    Profile,
    Spread,
)

SECOND = Spread(median=1.0, p95=1.0, minimum=1.0, repeats=3)


class PretendNode:
    """Answers every job at once. `fails` says why a job fails, or nothing."""

    def __init__(self, name: str, machine: str, fails: Callable[[Job], str] = lambda _: "") -> None:
        self.name = name
        self.fails = fails
        self.jobs: list[tuple[int, Job]] = []
        self.torch_says: dict[str, Any] = {}
        facts = describe_node("cpu")
        host = facts.host.model_copy(update={"machine": machine})
        self._facts = facts.model_copy(update={"host": host, "torch": True})

    async def facts(self) -> Any:
        return self._facts

    async def close(self) -> None:
        pass

    async def run(
        self, rank: int, job: Job, *, limit_s: float, on_row: OnRow = ignore_row
    ) -> dict[str, Any]:
        assert limit_s > 0
        self.jobs.append((rank, job))
        await asyncio.sleep(0)
        if why := self.fails(job):
            raise JobError(why)
        if isinstance(job, LinkJob):
            # No rank has a result before all ranks took part.
            await asyncio.sleep(0.002)
        for field, row in rows_of(job):
            on_row(field, row)
        return {"port": 1234, "torch": "2.13", **self.torch_says}


def rows_of(job: Job) -> list[tuple[str, Any]]:
    if isinstance(job, MatmulJob):
        made = MatmulMeasurement(
            device=0, dtype=job.dtype, m=job.m, n=job.n, k=job.k, seconds=SECOND, flop_per_s=1.0
        )
        return [("matmul", made)]
    if isinstance(job, MemoryJob):
        copied = MemoryBandwidthMeasurement(
            device=0, transferred_bytes=job.nbytes, seconds=SECOND, bytes_per_s=1.0
        )
        return [("memory_bandwidth", copied)]
    if isinstance(job, OptimizerJob):
        step = OptimizerMeasurement(
            device=0, optimizer="adam", parameters=job.parameters, seconds=SECOND
        )
        return [("optimizer", step)]
    if isinstance(job, LayerJob):
        shape = job.model_dump(exclude={"kind", "seconds"})
        layer = LayerMeasurement(
            device=0, **shape, forward_s=SECOND, backward_s=SECOND, peak_memory_bytes=None
        )
        return [("layers", layer)]
    if isinstance(job, LinkJob) and job.rank == 0:
        link = LinkMeasurement(
            operation=job.operation,
            backend=job.backend,
            scope=job.scope,
            nodes=job.nodes,
            devices=job.devices,
            ranks=job.ranks,
            message_bytes=job.sizes[0],
            seconds=SECOND,
            algbw_bytes_per_s=1.0,
            busbw_bytes_per_s=1.0,
            verified=True,
        )
        return [("links", link)]
    return []


def measured(
    nodes: list[PretendNode], settings: Settings | None = None, **more: Any
) -> tuple[tuple[Profile, ...], list[Profile]]:
    saved: list[Profile] = []

    async def run() -> tuple[Profile, ...]:
        campaign = Campaign(
            nodes, settings or Settings(level="quick"), saved.append, lambda *_: None, **more
        )
        await campaign.describe()
        return await campaign.run()

    return asyncio.run(run()), saved


def pairs(profiles: tuple[Profile, ...]) -> set[tuple[str, ...]]:
    return {
        row.nodes
        for profile in profiles
        for row in profile.links
        if row.operation == "send_recv" and row.scope == "inter_node"
    }


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def test_every_pair_is_measured_both_ways_and_groups_grow() -> None:
    nodes = [PretendNode(name, name) for name in names(4)]
    profiles, _ = measured(nodes)
    assert pairs(profiles) == set(itertools.permutations(names(4), 2))
    groups = [row.nodes for row in profiles[0].links if row.operation == "all_reduce"]
    assert groups == [("n0",), ("n0", "n1"), ("n0", "n1", "n2", "n3")]
    assert all(profile.complete for profile in profiles)
    assert Outcome(profiles).verdict() is ExitCode.YES
    # A row belongs to the sender, so that the profiles of a cluster hold every row once.
    for profile in profiles:
        assert {row.nodes[0] for row in profile.links} == {profile.node}


@pytest.mark.parametrize("integrated", [True, False])
def test_cuda_says_how_much_of_the_hosts_memory_a_unified_part_may_use(
    recorded: Callable[..., Any], integrated: bool
) -> None:
    # Case gb10-memory (https://github.com/wookayin/gpustat/pull/179): before torch is asked, the
    # host's own numbers stand. Older versions of torch do not know that a part is integrated.
    node = PretendNode("spark", "spark")
    with open_nvml(recorded("gb10")) as nvml:
        node._facts = node._facts.model_copy(update={"devices": gpu_inventory(nvml)})
    node.torch_says = {
        "integrated": integrated,
        "memory_total_bytes": 130663165952,
        "memory_free_bytes": 121411960832,
    }
    settings = Settings(level="quick", parts=frozenset({"compute"}))
    ((profile,), _) = measured([node], settings)
    (device,) = profile.devices
    assert device.unified_memory
    assert (device.memory_total_bytes, device.memory_free_bytes) == (130663165952, 121411960832)
    assert round(130663165952 / 2**30, 2) == 121.69


@pytest.mark.parametrize("recording", ["dgx_a100", "mixed_3090_4090"])
def test_memory_of_a_card_of_its_own_is_what_the_driver_says(
    recorded: Callable[..., Any], recording: str
) -> None:
    node = PretendNode("n0", "n0")
    with open_nvml(recorded(recording)) as nvml:
        devices = gpu_inventory(nvml)
    node._facts = node._facts.model_copy(update={"devices": devices})
    node.torch_says = {"integrated": False, "memory_total_bytes": 1, "memory_free_bytes": 1}
    ((profile,), _) = measured([node], Settings(level="quick", parts=frozenset({"compute"})))
    assert [device.memory_total_bytes for device in profile.devices] == [
        device.memory_total_bytes for device in devices
    ]


def test_the_profile_is_saved_after_every_step() -> None:
    (profile,), saved = measured([PretendNode("n0", "m")])
    rows = [len(each.matmul) for each in saved]
    assert rows == sorted(rows)
    assert set(rows) == set(range(len(profile.matmul) + 1))
    assert [each.complete for each in saved] == [False] * (len(saved) - 1) + [True]


def test_a_job_that_fails_costs_its_own_row() -> None:
    def fails(job: Job) -> str:
        return "out of memory" if isinstance(job, LayerJob) and job.sequence == 256 else ""

    (profile,), _ = measured([PretendNode("n0", "m", fails)])
    assert {row.sequence for row in profile.layers} == {128}
    assert {(each.step, each.why) for each in profile.missing} == {
        ("layer fp32 tp 1, mbs 1, seq 256", "out of memory"),
        ("layer fp32 tp 2, mbs 1, seq 256", "out of memory"),
    }
    assert profile.optimizer
    assert not profile.complete


def test_a_node_that_dies_costs_the_rows_it_takes_part_in() -> None:
    # n2 measures itself and then goes away.
    def dead(job: Job) -> str:
        links = isinstance(job, LinkJob | StoreJob)
        return "n2 is gone" if links and "inter" in getattr(job, "scope", "inter") else ""

    nodes = [PretendNode(name, name, dead if name == "n2" else lambda _: "") for name in names(4)]
    profiles, _ = measured(nodes)
    alive = [name for name in names(4) if name != "n2"]
    assert pairs(profiles) == set(itertools.permutations(alive, 2))
    missing = [each for profile in profiles for each in profile.missing]
    assert missing
    assert all("n2" in each.nodes for each in missing)
    assert {each.why for each in missing} == {"n2 is gone", "n2 was not reached by 2 other nodes"}
    assert [row.nodes for row in profiles[0].links if row.operation == "all_reduce"][1:] == [
        ("n0", "n1"),
        ("n0", "n1", "n3"),
    ]
    assert profiles[2].matmul
    with pytest.raises(EnvironmentFailure, match="steps gave no result") as caught:
        Outcome(profiles).verdict()
    assert "n2 is gone" in caught.value.why
    assert "--resume" in caught.value.fix


def test_a_device_that_cannot_be_described_is_not_tried_again() -> None:
    def fails(job: Job) -> str:
        return "no CUDA device" if isinstance(job, DescribeJob) else ""

    node = PretendNode("n0", "m", fails)
    (profile,), _ = measured([node], Settings(level="quick", parts=frozenset({"compute"})))
    assert [type(job) for _, job in node.jobs] == [DescribeJob]
    assert {each.why for each in profile.missing} == {"no CUDA device"}


def test_resuming_measures_only_what_is_missing() -> None:
    def fails(job: Job) -> str:
        return "cold" if isinstance(job, OptimizerJob) or getattr(job, "rank", 0) else ""

    (first,), _ = measured([PretendNode("n0", "m", fails)])
    assert not first.complete
    again = PretendNode("n0", "m")
    (second,), saved = measured([again], previous={"n0": first})
    kinds = {type(job) for _, job in again.jobs}
    assert kinds == {DescribeJob, OptimizerJob, StoreJob, LinkJob}
    assert second.complete
    assert second.matmul == first.matmul
    assert saved[0].matmul == first.matmul  # nothing is lost if this run is stopped at once


def test_nodes_of_one_machine_measure_one_after_the_other() -> None:
    running = 0
    most = {"one machine": 0, "two machines": 0}

    async def both(kind: str) -> None:
        nonlocal running

        class Slow(PretendNode):
            async def run(self, rank: int, job: Job, **more: Any) -> dict[str, Any]:
                nonlocal running
                running += 1
                most[kind] = max(most[kind], running)
                await asyncio.sleep(0.001)
                running -= 1
                return await super().run(rank, job, **more)

        machines = ["m", "m"] if kind == "one machine" else ["m0", "m1"]
        nodes = [Slow(f"n{i}", machine) for i, machine in enumerate(machines)]
        settings = Settings(level="quick", parts=frozenset({"compute"}))
        campaign = Campaign(nodes, settings, lambda _: None, lambda *_: None)
        await campaign.describe()
        await campaign.run()

    asyncio.run(both("one machine"))
    asyncio.run(both("two machines"))
    assert most == {"one machine": 1, "two machines": 2}


def test_without_torch_there_is_an_inventory_and_a_note() -> None:
    node = PretendNode("n0", "m")
    node._facts = node._facts.model_copy(update={"torch": False})
    (profile,), _ = measured([node])
    assert node.jobs == []
    assert "torch is not installed (pip install 'hetcli[profile]'): inventory only" in profile.notes
    assert profile.devices


def test_wrong_values_are_kept_apart_from_results() -> None:
    class Wrong(PretendNode):
        async def run(
            self, rank: int, job: Job, *, limit_s: float, on_row: OnRow = ignore_row
        ) -> dict[str, Any]:
            def spoiled(field: str, row: Any) -> None:
                bad = field == "links" and row.operation == "all_reduce"
                on_row(field, row.model_copy(update={"verified": False}) if bad else row)

            return await super().run(rank, job, limit_s=limit_s, on_row=spoiled)

    (profile,), _ = measured([Wrong("n0", "m")])
    assert [row.operation for row in profile.links if not row.verified] == ["all_reduce"]
    assert [each.why for each in profile.missing] == [
        "the values that arrived are wrong; its time is not used"
    ]


def test_the_estimate_is_the_time_that_the_steps_are_given() -> None:
    async def estimate(count: int, machine: str | None) -> float:
        nodes = [PretendNode(name, machine or name) for name in names(count)]
        settings = Settings(level="quick", compute_s=10.0)
        campaign = Campaign(nodes, settings, lambda _: None, lambda *_: None)
        await campaign.describe()
        return campaign.estimate_s()

    # One node: 10 s of compute and two operations over its two ranks, 2 s each.
    assert asyncio.run(estimate(1, None)) == 10 + 2 * 2
    # Four machines at once, then 3 rounds both ways, then groups of 2 and 4.
    assert asyncio.run(estimate(4, None)) == 14 + 3 * 2 * 2 + 2 * 2
    assert asyncio.run(estimate(4, "one")) == 4 * 14 + 3 * 2 * 2 + 2 * 2


def test_a_node_that_no_peer_reaches_is_not_waited_for_again_and_again() -> None:
    # Its agent answers, but the network between the nodes does not.
    def cut(job: Job) -> str:
        return "timed out after 26 s" if getattr(job, "scope", "") == "inter_node" else ""

    nodes = [PretendNode(name, name, cut if name == "n5" else lambda _: "") for name in names(6)]
    profiles, _ = measured(nodes)
    assert pairs(profiles) == set(itertools.permutations(names(5), 2))
    tried = [job for _, job in nodes[5].jobs if getattr(job, "scope", "") == "inter_node"]
    assert len(tried) <= 3
    missing = [each for profile in profiles for each in profile.missing if "n5" in each.nodes]
    assert len(missing) == 2 * 5  # every pair both ways
    assert "n5 was not reached by 2 other nodes" in {each.why for each in missing}
