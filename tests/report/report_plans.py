"""How tests make plans to report on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hetcli.catalog.inputs import read_cluster, read_model, read_workload
from hetcli.perf.hardware import Hardware
from hetcli.perf.resolve import resolve
from hetcli.report.forms import Report
from hetcli.search import EstimateRequest, PlanOptions, estimate
from hetcli.search import plan as search
from hetcli.search.replay import replay
from hetcli.spec.cluster import Cluster
from hetcli.spec.plan import Plan

ATTACK = 'x"><img src=x onerror=alert(1)>|`$(id)`'


def make_report(plan: Plan) -> Report:
    hardware: Hardware = resolve(plan.inputs.cluster)
    return Report(plan, replay(plan, hardware), hardware)


def planned(cluster: str | Cluster, model: str, batch: int, **options: Any) -> Plan:
    known = read_model(model)
    return search(
        cluster=read_cluster(cluster) if isinstance(cluster, str) else cluster,
        model=known,
        workload=read_workload(None, model=known, flags={"global_batch": batch, "sequence": 2048}),
        options=replace(PlanOptions(), **options),
    )


def estimated(cluster: str | Cluster, model: str, batch: int, **request: Any) -> Plan:
    known = read_model(model)
    return estimate(
        cluster=read_cluster(cluster) if isinstance(cluster, str) else cluster,
        model=known,
        workload=read_workload(None, model=known, flags={"global_batch": batch, "sequence": 2048}),
        request=EstimateRequest(**request),
    )


def attacking_cluster() -> Cluster:
    """Two groups whose names try to leave every format that they are written in."""
    nodes = [
        {"name": f"{kind}{ATTACK}", "gpu": gpu, "gpus": 4, "zone": "</script><script>alert(2)"}
        for kind, gpu in (("a", "A100-SXM4-80GB"), ("v", "V100-SXM2-32GB"))
    ]
    return Cluster.model_validate({"name": f"<b>{ATTACK}", "nodes": nodes}, strict=False)
