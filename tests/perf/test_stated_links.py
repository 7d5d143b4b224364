"""Links that a cluster file states itself: rate, latency, origin, and who shares them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetcli.catalog.hardware import find_link
from hetcli.perf.hardware import Hardware, LinkCurve
from hetcli.perf.resolve import resolve
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster


def resolved(intra_link: object = None, **more: Any) -> Hardware:
    nodes = [
        {"name": "t", "count": 1, "gpu": "T4", "gpus": 4, "intra_link": intra_link},
        {"name": "m", "count": 1, "gpu": "MI250X", "gpus": 4},
    ]
    document = {"schema_version": 1, "name": "c", "nodes": nodes, **more}
    return resolve(Cluster.model_validate_json(json.dumps(document)))


@pytest.mark.parametrize(("kind", "shared"), [("pcie3", True), ("nvlink3", False)])
def test_a_stated_rate_of_a_catalogue_kind_is_shared_as_the_kind_is(
    kind: str, *, shared: bool
) -> None:
    link = resolved({"kind": kind, "rate": "5GB/s"}).nodes[0].intra
    assert link.bytes_per_s == 5e9
    assert link.latency_s == find_link(kind).latency_s
    assert (link.seconds(1e9, senders=2) > 1.9 * link.seconds(1e9)) is shared


def test_a_kind_of_its_own_is_not_shared() -> None:
    link = resolved({"kind": "measured-with-all", "rate": "5GB/s"}).nodes[0].intra
    assert link.seconds(1e9, senders=2) == link.seconds(1e9)


def across(**backend: Any) -> LinkCurve:
    found = resolved(cross_vendor_backend={"name": "gloo", **backend}).cross_vendor
    assert found is not None
    return found


def test_the_rate_between_vendors_keeps_its_origin() -> None:
    assert across(rate="1GB/s", origin="measured").origin is Origin.MEASURED
    assert across(rate="1GB/s").origin is Origin.DATASHEET


def test_a_rate_between_vendors_that_is_not_stated_is_assumed() -> None:
    assert across(origin="measured").origin is Origin.ASSUMED
