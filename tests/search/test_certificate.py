"""A bound is claimed where the search proves it, and nowhere else."""

from __future__ import annotations

from hetcli.catalog.presets import find_preset
from hetcli.search import PlanOptions, plan
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster
from hetcli.spec.hardware import CurvePoint, HardwareFile, LinkRates
from hetcli.spec.plan import Plan
from hetcli.spec.quick import parse_quick_cluster
from hetcli.spec.workload import Pretrain

PAIR = parse_quick_cluster("A100-SXM4-80GB:8+V100-SXM2-32GB:8")


def planned(cluster: Cluster, **options: int) -> Plan:
    return plan(
        cluster=cluster,
        model=find_preset("llama-3.2-1b"),
        workload=Pretrain(global_batch=32, sequence=1024),
        options=PlanOptions(compare=False, **options),
    )


def joined(*points: CurvePoint, residual: float) -> Cluster:
    nodes = tuple(sorted(PAIR.group_of))
    assert len(nodes) == 2
    link = LinkRates(
        between=(nodes[0], nodes[1]),
        latency_s=1e-5,
        bytes_per_s=1e10,
        flow_bytes_per_s=1e10,
        curve=points,
        origin=Origin.FITTED,
        rows=8,
        residual=residual,
        source="profiles",
    )
    fitted = HardwareFile(name="measured", hetcli_version="0", links=(link,))
    return PAIR.model_copy(update={"hardware": fitted})


def test_straight_links_have_a_bound() -> None:
    for cluster in (PAIR, joined(residual=0.01)):
        certificate = planned(cluster).certificate
        assert certificate.lower_bound_s is not None
        assert certificate.gap is not None


def test_curves_have_none() -> None:
    points = [CurvePoint(message_bytes=1e4 * 10**n, bytes_per_s=1e9 * 2**n) for n in range(4)]
    curved = planned(joined(*points, residual=0.3)).certificate
    assert (curved.lower_bound_s, curved.gap) == (None, None)
    assert "measured as curves" in curved.reason
