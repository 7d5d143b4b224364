"""What a trial computes is what one process computes: losses and gradients, however it is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import (
    EXPERTS,
    GROUPED,
    LATENT,
    cluster,
    configuration,
    devices,
    model,
    plan,
    plan_devices,
    stage,
)

from hetcli.perf.configuration import Configuration, Recompute
from hetcli.spec.model.architecture import Model, Positions
from hetcli.spec.plan import PlanDevice
from hetcli.trial.job import Job, RankReport
from hetcli.trial.launch import launch

torch = pytest.importorskip("torch")

BATCH = 8
ONE, TWO = devices(0, 1), devices(0, 2)
Sums = dict[tuple[str, int], list[Any]]


def alone(**more: Any) -> Configuration:
    return configuration([stage([(0, 4)], [(ONE, BATCH)])], batch=BATCH, zero_stage=0, **more)


def each(first: int, count: int, batches: int) -> list[tuple[Any, int]]:
    """Replicas of one device each."""
    return [(devices(at, 1), batches) for at in range(first, first + count)]


def pipeline(*layers: int, schedule: str = "1f1b", **more: Any) -> Configuration:
    stages, first = [], 0
    for at, count in enumerate(layers):
        stages.append(stage([(first, count)], [(devices(at, 1), BATCH)]))
        first += count
    return configuration(stages, batch=BATCH, schedule=schedule, **more)


def virtual(schedule: str, *chunks: tuple[int, ...], **more: Any) -> Configuration:
    """One tuple of layer counts a stage; where they begin follows from the schedule's route."""
    stages = [
        stage([(0, count) for count in counts], [(devices(at, 1), BATCH)])
        for at, counts in enumerate(chunks)
    ]
    return configuration(stages, batch=BATCH, schedule=schedule, **more)


LAYOUTS: dict[str, Configuration] = {
    "three unequal stages": pipeline(1, 2, 1),
    "gpipe": pipeline(3, 1, schedule="gpipe", zero_stage=0),
    "a stage without layers": pipeline(0, 4),
    "interleaved": virtual("interleaved", (1, 1), (1, 1)),
    "zero bubble": pipeline(1, 1, 2, schedule="zb-h1"),
    "zero bubble in a V": virtual("zb-v", (1, 1), (1, 1)),
    "waves": virtual("wave", (1, 1), (1, 1)),
    "both directions": virtual("bidirectional", (2, 2), (2, 2)),
    "data parallel, ZeRO 0": configuration(
        [stage([(0, 4)], [*each(0, 3, 2), (devices(3, 1), 2)])], batch=BATCH, zero_stage=0
    ),
    "data parallel, ZeRO 1": configuration([stage([(0, 4)], each(0, 4, 2))], batch=BATCH),
    "data parallel, no overlap": configuration(
        [stage([(0, 4)], each(0, 2, 4))],
        batch=BATCH,
        overlap_grad_reduce=False,
        overlap_param_gather=False,
    ),
    "unequal micro-batches": configuration(
        [
            stage([(0, 3)], [(devices(0, 1), 5), (devices(1, 1), 3)]),
            stage([(3, 1)], [(devices(2, 1), 5), (devices(3, 1), 3)]),
        ],
        batch=BATCH,
    ),
    "unlike numbers of replicas": configuration(
        [stage([(0, 2)], each(0, 1, 8)), stage([(2, 2)], each(1, 2, 4))], batch=BATCH
    ),
    "unlike micro-batch sizes": configuration(
        [stage([(0, 2)], each(0, 1, 4), size=2), stage([(2, 2)], each(1, 2, 4))],
        batch=BATCH,
        micro_batch_size=2,
    ),
    "pipelines of unlike shape": configuration(
        [stage([(0, 4)], [(devices(0, 1), 3)])],
        [stage([(0, 1)], [(devices(1, 1), 5)]), stage([(1, 3)], [(devices(2, 1), 5)])],
        batch=BATCH,
    ),
    "tensor parallel": configuration([stage([(0, 4)], [(TWO, BATCH)], tp=2)], batch=BATCH),
    "sequence parallel": configuration(
        [stage([(0, 4)], [(TWO, BATCH)], tp=2)], batch=BATCH, sequence_parallel=True
    ),
    "context parallel": configuration(
        [stage([(0, 4)], [(TWO, BATCH)])], batch=BATCH, context_parallel=2
    ),
    "tensor, then pipeline": configuration(
        [stage([(0, 2)], [(TWO, 8)], tp=2), stage([(2, 2)], [(devices(2, 1), 8)])], batch=BATCH
    ),
    "tensor and sequence, then pipeline": configuration(
        [stage([(0, 2)], [(devices(0, 1), 8)]), stage([(2, 2)], [(devices(1, 2), 8)], tp=2)],
        batch=BATCH,
        sequence_parallel=True,
    ),
    "unlike tensor degrees of the same layers": configuration(
        [stage([(0, 4)], [(TWO, 6)], tp=2)],
        [stage([(0, 4)], [(devices(2, 1), 2)])],
        batch=BATCH,
    ),
    "tensor and context parallel": configuration(
        [stage([(0, 4)], [(devices(0, 4), BATCH)], tp=2)],
        batch=BATCH,
        context_parallel=2,
        sequence_parallel=True,
    ),
    "recompute all": configuration(
        [stage([(0, 4)], [(ONE, BATCH)], recompute=Recompute("full", 3))], batch=BATCH
    ),
    "recompute attention": configuration(
        [stage([(0, 4)], [(ONE, BATCH)], recompute=Recompute("selective"))], batch=BATCH
    ),
}
TENSOR = ("tensor parallel", "sequence parallel", "unlike tensor degrees of the same layers")
FAMILIES: dict[str, tuple[Model, dict[str, Configuration]]] = {
    "dense": (model(), LAYOUTS),
    "grouped, tied": (
        model(
            layer=GROUPED,
            tied_embeddings=True,
            embedding_norm=True,
            positions=Positions(kind="learned", table_size=16),
        ),
        {
            name: LAYOUTS[name]
            for name in (*TENSOR, "three unequal stages", "zero bubble", "context parallel")
        },
    ),
    "latent": (
        model(layer=LATENT),
        {name: LAYOUTS[name] for name in (*TENSOR, "context parallel", "zero bubble")},
    ),
    "experts": (
        model(layer=EXPERTS),
        {
            **{name: LAYOUTS[name] for name in (*TENSOR, "three unequal stages")},
            "expert parallel": configuration(
                [stage([(0, 4)], each(0, 4, 2))], batch=BATCH, expert_parallel=2
            ),
            "expert and tensor parallel": configuration(
                [stage([(0, 4)], [(devices(0, 4), BATCH)], tp=4)], batch=BATCH, expert_parallel=2
            ),
            "cut experts": configuration(
                [stage([(0, 4)], [(TWO, BATCH)], tp=2)], batch=BATCH, expert_tensor_parallel=2
            ),
        },
    ),
}


def gradients(folder: Path, number: int, expected: Sums | None = None) -> Sums:
    """The whole gradient of every content: regions put together again."""
    regions: dict[tuple[str, int], dict[int, list[Any]]] = {}
    for file in sorted(folder.glob(f"gradients-{number}-*.pt")):
        for (kind, layer, region, _), sums in torch.load(file).items():
            regions.setdefault((kind, layer), {})[region] = sums
    whole = {}
    for (kind, layer), found in regions.items():
        parts = [found[region] for region in sorted(found)]
        if expected and len(parts) * len(parts[0]) == len(expected[kind, layer]) > len(parts[0]):
            # Each rank has some of the experts.
            whole[kind, layer] = [tensor for part in parts for _, tensor in part]
            continue
        whole[kind, layer] = [
            column[0][1]
            if column[0][0] is None
            else torch.cat([x for _, x in column], column[0][0])
            for column in zip(*parts, strict=True)
        ]
    return whole


def losses(reports: list[RankReport]) -> list[float]:
    return [step.loss for step in reports[0].steps]


def test_losses_and_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    where = cluster(devices=4)
    runs = [
        (f"{family}: {name}", family, given, made)
        for family, (made, layouts) in FAMILIES.items()
        for name, given in {"alone": alone(), **layouts}.items()
    ]
    job = Job(
        # Adam would turn rounding errors of tiny gradients into steps of full size.
        plans=tuple(plan(given, made, where, optimizer="sgd") for _, _, given, made in runs),
        devices=tuple(PlanDevice(node="n0", index=index) for index in range(4)),
        steps=2,
        warm_up=0,
        keep_gradients=True,
        stall_s=60,
    )
    reports = launch(job, time_limit_s=400, keep=tmp_path)
    expected: dict[str, tuple[list[float], Sums]] = {}
    for number, (name, family, _, _) in enumerate(runs):
        if family not in expected:
            expected[family] = losses(reports[number]), gradients(tmp_path, number)
        loss, sums = expected[family]
        assert losses(reports[number]) == pytest.approx(loss, rel=1e-5), name
        found = gradients(tmp_path, number, sums)
        assert found.keys() == sums.keys(), name
        for content, wanted in sums.items():
            for at, (want, got) in enumerate(zip(wanted, found[content], strict=True)):
                close = torch.allclose(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
                assert close, (name, content, at, float((got - want).abs().max()))


def test_devices_of_a_job_are_those_of_its_plan() -> None:
    assert plan_devices(LAYOUTS["three unequal stages"]) == tuple(
        PlanDevice(node="n0", index=index) for index in range(3)
    )
