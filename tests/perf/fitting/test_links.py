"""Links come out as they were put in: per pair, in the slower direction, never averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hetcli.perf.fitting.links import fit_groups, fit_links
from hetcli.spec.hardware import LinkRates
from hetcli.spec.profile import Host, LinkMeasurement, NicInventory, Profile, Spread

SIZES = tuple(4**power * 1024 for power in range(8))


def spread(seconds: float) -> Spread:
    return Spread(median=seconds, p95=seconds, minimum=seconds, repeats=5)


def sent(
    one: str, other: str, latency: float, rate: float, **changes: Any
) -> list[LinkMeasurement]:
    senders = changes.pop("senders", 1)
    made = []
    for size in changes.pop("sizes", SIZES):
        seconds = latency + size * senders / rate
        made.append(
            LinkMeasurement(
                operation="send_recv",
                backend="gloo",
                scope="inter_node",
                nodes=(one, other),
                ranks=2 * senders,
                message_bytes=size,
                seconds=spread(seconds),
                algbw_bytes_per_s=senders * size / seconds,
                busbw_bytes_per_s=senders * size / seconds,
                verified=changes.get("verified", True),
            )
        )
    return made


def reduced(nodes: Sequence[str], ranks: int, rate: float, scope: Any) -> list[LinkMeasurement]:
    """All-reduce at a bus bandwidth of `rate`."""
    factor = 2 * (ranks - 1) / ranks
    return [
        LinkMeasurement(
            operation="all_reduce",
            backend="nccl",
            scope=scope,
            nodes=tuple(nodes),
            devices=tuple(range(ranks)) if scope == "intra_node" else (),
            ranks=ranks,
            message_bytes=size,
            seconds=spread(20e-6 + factor * size / rate),
            algbw_bytes_per_s=1.0,
            busbw_bytes_per_s=rate,
            verified=True,
        )
        for size in SIZES
    ]


def profile(
    node: str, links: Sequence[LinkMeasurement], nics: Sequence[float | None] = ()
) -> Profile:
    return Profile(
        hetcli_version="0",
        created="now",
        complete=True,
        node=node,
        host=Host.model_construct(hostname=node, environment={}),
        devices=(),
        nics=tuple(
            NicInventory(interface=f"ib{place}", kind="infiniband", rate_bytes_per_s=rate)
            for place, rate in enumerate(nics)
        ),
        links=tuple(links),
    )


def by_pair(profiles: Sequence[Profile]) -> dict[tuple[str, str], LinkRates]:
    return {link.between: link for link in fit_links(profiles)}


def test_latency_and_rate_are_found() -> None:
    profiles = [
        profile("a", sent("a", "b", 50e-6, 12e9)),
        profile("b", sent("b", "a", 50e-6, 12e9)),
    ]
    (link,) = fit_links(profiles)
    assert link.between == ("a", "b")
    assert link.bytes_per_s == pytest.approx(12e9, rel=1e-3)
    assert link.flow_bytes_per_s == pytest.approx(12e9, rel=1e-3)
    assert link.latency_s == pytest.approx(50e-6, rel=1e-3)
    assert link.residual == pytest.approx(0, abs=1e-4)
    assert link.rows == 16


def test_the_slower_direction_and_the_larger_latency_count() -> None:
    profiles = [
        profile("a", sent("a", "b", 80e-6, 12e9)),
        profile("b", sent("b", "a", 50e-6, 6e9)),
    ]
    (link,) = fit_links(profiles)
    assert link.bytes_per_s == pytest.approx(6e9, rel=1e-3)
    assert link.latency_s == pytest.approx(80e-6, rel=1e-3)


def test_every_pair_keeps_its_own_rate() -> None:
    profiles = [
        profile("n0", sent("n0", "n1", 5e-6, 80e9)),
        profile("n2", sent("n2", "n3", 5e-6, 40e9)),
    ]
    found = by_pair(profiles)
    assert found["n0", "n1"].bytes_per_s == pytest.approx(80e9, rel=1e-2)
    assert found["n2", "n3"].bytes_per_s == pytest.approx(40e9, rel=1e-2)


def test_ranks_that_send_at_once_show_what_the_node_can_send() -> None:
    # One rank reaches one interface of four.
    rows = sent("a", "b", 10e-6, 20e9) + sent("a", "b", 10e-6, 78e9, senders=4)
    (link,) = fit_links([profile("a", rows, [25e9] * 4), profile("b", [], [25e9] * 4)])
    assert link.flow_bytes_per_s == pytest.approx(20e9, rel=1e-3)
    assert link.bytes_per_s == pytest.approx(78e9, rel=1e-2)
    assert link.versus_nominal == pytest.approx(0.78, rel=1e-2)


def test_an_interface_without_a_rate_gives_no_share() -> None:
    profiles = [profile("a", sent("a", "b", 1e-5, 1e9), [25e9]), profile("b", [], [None])]
    (link,) = fit_links(profiles)
    assert link.versus_nominal is None


def test_wrong_values_are_not_fitted() -> None:
    rows = sent("a", "b", 1e-5, 1e9) + sent("a", "c", 1e-5, 1e9, verified=False)
    assert set(by_pair([profile("a", rows)])) == {("a", "b")}


def test_a_link_without_a_law_takes_its_largest_message() -> None:
    rows = [
        row.model_copy(update={"seconds": spread(seconds)})
        for row, seconds in zip(
            sent("a", "b", 0.0, 1e9, sizes=SIZES[:4]), (1e-3, 1e-5, 8e-4, 2e-4), strict=True
        )
    ]
    (link,) = fit_links([profile("a", rows)])
    assert link.residual is not None
    assert link.residual > 0.2
    assert link.bytes_per_s == pytest.approx(SIZES[3] / 2e-4)


def test_messages_of_one_size_give_a_rate_and_no_latency() -> None:
    # nvbandwidth copies one size: the time of its copies is not to be counted twice.
    inside = [
        row.model_copy(update={"scope": "intra_node", "nodes": ("a",), "devices": (0, 1)})
        for row in sent("a", "b", 0.0, 20e9, sizes=SIZES[-1:])
    ]
    links = by_pair([profile("a", [*sent("a", "b", 0.0, 80e9, sizes=SIZES[-1:]), *inside])])
    for pair, rate in ((("a", "a"), 20e9), (("a", "b"), 80e9)):
        assert links[pair].bytes_per_s == pytest.approx(rate)
        assert links[pair].latency_s is None
        assert links[pair].residual is None
        assert links[pair].curve == ()


def test_a_collective_of_one_size_gives_no_latency_either() -> None:
    rows = reduced(["n0", "n1"], 16, 10e9, "inter_node")[-1:]
    (link,) = fit_links([profile("n0", rows)])
    assert link.latency_s is None
    assert rows[0].seconds.median == pytest.approx(
        2 * 15 / 16 * rows[0].message_bytes / link.bytes_per_s
    )


def test_inside_a_node_a_ring_over_all_ranks_decides() -> None:
    rows = reduced(["a"], 2, 200e9, "intra_node") + reduced(["a"], 8, 230e9, "intra_node")
    (link,) = fit_links([profile("a", rows)])
    assert link.between == ("a", "a")
    assert link.bytes_per_s == pytest.approx(230e9, rel=1e-3)
    # 14 steps of a ring of 8 share the 20 us of its smallest message.
    assert link.latency_s == pytest.approx(20e-6 / 14, rel=1e-2)


def test_imported_collectives_of_two_nodes_describe_their_link() -> None:
    (link,) = fit_links([profile("n0", reduced(["n0", "n1"], 16, 9.84e9, "inter_node"))])
    assert link.bytes_per_s == pytest.approx(9.84e9, rel=1e-3)
    assert link.flow_bytes_per_s is None


def test_groups_are_compared_with_their_slowest_pair() -> None:
    rows = (
        sent("a", "b", 1e-5, 10e9)
        + sent("a", "c", 1e-5, 5e9)
        + sent("b", "c", 1e-5, 10e9)
        + reduced(["a", "b", "c"], 3, 4e9, "inter_node")
    )
    profiles = [profile("a", rows)]
    (group,) = fit_groups(profiles, fit_links(profiles))
    assert (group.nodes, group.ranks, group.message_bytes) == (("a", "b", "c"), 3, SIZES[-1])
    assert group.bus_bytes_per_s == 4e9
    assert group.versus_slowest_pair == pytest.approx(0.8, rel=1e-2)
