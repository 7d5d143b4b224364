"""Collectives: the closed forms of their algorithms, limits, and what must not get cheaper."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.perf.communication import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    group_all_reduce_s,
    p2p_s,
    reduce_scatter_s,
)
from hetcli.perf.hardware import LinkCurve
from hetcli.spec.base import Origin

FAST = LinkCurve("nvlink", 0.0, 100e9, Origin.ASSUMED)
NIC = LinkCurve("nic", 0.0, 10e9, Origin.ASSUMED, shared=True)
SIZES = st.floats(1e3, 1e10)


@given(nbytes=SIZES, ranks=st.integers(2, 64))
def test_a_ring_moves_its_share_around(nbytes: float, ranks: int) -> None:
    # Thakur, Rabenseifner, Gropp 2005: (n - 1) / n of the data, twice for an all-reduce.
    share = (ranks - 1) / ranks * nbytes / FAST.bytes_per_s
    assert all_gather_s(nbytes, ranks, FAST) == pytest.approx(share)
    assert reduce_scatter_s(nbytes, ranks, FAST) == pytest.approx(share)
    assert all_reduce_s(nbytes, ranks, FAST) == pytest.approx(2 * share)
    assert all_to_all_s(nbytes, ranks, FAST) == pytest.approx(share)


@given(nbytes=SIZES)
def test_one_rank_has_nobody_to_talk_to(nbytes: float) -> None:
    for collective in (all_gather_s, reduce_scatter_s, all_reduce_s, all_to_all_s, broadcast_s):
        assert collective(nbytes, 1, NIC) == 0


@given(nbytes=SIZES, ranks=st.integers(2, 64), senders=st.integers(1, 8))
def test_sharing_a_link_and_more_bytes_never_help(nbytes: float, ranks: int, senders: int) -> None:
    alone = all_reduce_s(nbytes, ranks, NIC)
    assert all_reduce_s(nbytes, ranks, NIC, senders) >= alone
    assert all_reduce_s(2 * nbytes, ranks, NIC) >= alone
    assert p2p_s(nbytes, NIC, senders) == pytest.approx(senders * p2p_s(nbytes, NIC))
    # A switched link gives every device its whole rate.
    assert p2p_s(nbytes, FAST, senders) == p2p_s(nbytes, FAST)


@given(nbytes=SIZES, nodes=st.integers(2, 16), per_node=st.integers(1, 8))
def test_a_ring_over_nodes_is_as_fast_as_its_slowest_edge(
    nbytes: float, nodes: int, per_node: int
) -> None:
    ranks = nodes * per_node
    group = Group(ranks, per_node, FAST, NIC)
    expected = 2 * (ranks - 1) / ranks * nbytes / NIC.bytes_per_s
    assert group_all_reduce_s(nbytes, group) == pytest.approx(expected)


@given(ranks=st.integers(2, 1024))
def test_small_messages_pay_the_better_of_ring_and_tree(ranks: int) -> None:
    slow = LinkCurve("nic", 10e-6, 1e15, Origin.ASSUMED, shared=True)
    group = Group(ranks, 1, slow, slow)
    hops = min(ranks - 1, math.ceil(math.log2(ranks)))
    assert group_all_reduce_s(1, group) == pytest.approx(2 * hops * 10e-6, rel=1e-3)


def test_a_message_pays_latency_and_the_bandwidth_of_its_size() -> None:
    curve = LinkCurve("wire", 5e-6, 10e9, Origin.MEASURED, points=((1e4, 1e9), (1e6, 10e9)))
    assert p2p_s(1e4, curve) == pytest.approx(5e-6 + 1e4 / 1e9)
    assert p2p_s(1e9, curve) == pytest.approx(5e-6 + 1e9 / 10e9)
    assert 1e9 < curve.bandwidth(1e5) < 10e9
