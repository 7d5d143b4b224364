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
from hetcli.spec.base import Origin
from hetcli.spec.cluster import Cluster
from hetcli.spec.observation import Correction, Observation, ObservedLog
from hetcli.spec.plan import Plan
from hetcli.spec.profile import (
    Host,
    LinkMeasurement,
    MatmulMeasurement,
    MemoryBandwidthMeasurement,
    Profile,
    Spread,
)
from hetcli.spec.trial import Compared, Trial, TrialStage

SPREAD = Spread(median=1e-3, p95=1.1e-3, minimum=0.9e-3, repeats=5)
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


def profile() -> Profile:
    def pair(one: int, other: int, rate: float, message: int) -> LinkMeasurement:
        return LinkMeasurement(
            operation="send_recv",
            backend="nccl",
            scope="intra_node",
            nodes=("n0",),
            devices=(one, other),
            ranks=2,
            message_bytes=message,
            seconds=SPREAD,
            algbw_bytes_per_s=rate,
            busbw_bytes_per_s=rate,
            verified=True,
        )

    return Profile(
        hetcli_version="0",
        created="2026-01-01T00:00:00Z",
        node="<i>n0",
        complete=True,
        host=Host(
            hostname="n0",
            cores=8,
            memory_bytes=10**11,
            cpu=None,
            cpu_vendor=None,
            os=None,
            python=None,
            torch=None,
            driver=None,
            cuda=None,
            nccl=None,
        ),
        devices=(),
        matmul=tuple(
            MatmulMeasurement(
                device=0, dtype="bf16", m=n, n=n, k=n, seconds=SPREAD, flop_per_s=rate
            )
            for n, rate in ((512, 40e12), (4096, 200e12))
        ),
        memory_bandwidth=(
            MemoryBandwidthMeasurement(
                device=0, transferred_bytes=10**9, seconds=SPREAD, bytes_per_s=1.5e12
            ),
        ),
        links=(pair(0, 1, 50e9, 2**20), pair(0, 1, 80e9, 2**26), pair(1, 0, 78e9, 2**26)),
    )


def compared(predicted: float | None, measured: float | None) -> Compared:
    known = predicted is not None and measured
    return Compared(
        predicted=predicted,
        measured=measured,
        error=predicted / measured - 1 if known and predicted is not None else None,
    )


def drifted() -> Observation:
    """A run that took longer than its plan promised."""
    return Observation(
        hetcli_version="0",
        logs=(
            ObservedLog(
                source="<u>train.log",
                format="megatron",
                iterations=20,
                first_iteration=1,
                last_iteration=20,
                skipped=0,
                step_time_s=2.5,
                step_p95_s=2.6,
                step_minimum_s=2.4,
                slow_iterations=(),
                peak_memory_bytes=None,
            ),
        ),
        step_time_s=compared(2.0, 2.5),
        tokens_per_s=compared(1000.0, 800.0),
        peak_memory_bytes=compared(None, None),
        drift=True,
        tolerance=0.1,
        corrections=(
            Correction(device="A100-SXM4-80GB", factor=1.25, origin=Origin.MEASURED, rows=20),
        ),
    )


def tried() -> Trial:
    """A stage of a trial."""
    times = compared(0.5, 0.4)
    return Trial(
        hetcli_version="0",
        model="m",
        cluster="c",
        processor="cpu",
        steps=3,
        warm_up=1,
        step_time_s=compared(2.0, 2.5),
        step_p95_s=2.6,
        step_minimum_s=2.4,
        stages=(
            TrialStage(
                stage=0,
                layers=4,
                forward_s=times,
                backward_s=times,
                sending_s=times,
                waiting_s=compared(None, 0.1),
                synchronisation_s=times,
                optimizer_s=times,
            ),
        ),
        devices=(),
        losses=(),
    )
