"""The shipped trainer under real DeepSpeed: every split of a model trains to the same losses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plans import cluster, group, make_plan, tiny
from training import train

from hetcli.export import LaunchDirectory, LaunchFile, render
from hetcli.perf.configuration import Recompute
from hetcli.spec.model.architecture import Adapters
from hetcli.spec.plan import Plan

pytestmark = pytest.mark.oracle

# Sums in another order: single precision over a few hundred terms.
TOLERANCE = 2e-6
STEPS = "3"


def nodes(*gpus: int) -> Any:
    return cluster(*(group(f"node-{n}", "cpu", gpus=count) for n, count in enumerate(gpus)))


def small(where: Any, layers: Any, **more: Any) -> Plan:
    more = {"sequence": 32, "precision": "fp32", "overlap_param_gather": False, **more}
    return make_plan(where, more.pop("model", tiny()), layers, target="deepspeed", **more)


def with_optimizer(launch: LaunchDirectory, **parameters: float) -> LaunchDirectory:
    """The directory with other settings of the optimizer."""
    config = json.loads(launch["ds_config.json"])
    config["optimizer"]["params"].update(parameters)
    text = json.dumps(config)
    files = {**launch.files, "ds_config.json": LaunchFile("ds_config.json", text)}
    return replace(launch, files=files)


def steady(plan: Plan) -> LaunchDirectory:
    """A plan's directory whose training does not magnify rounding.

    Adam moves a weight whose gradient is nothing but rounding, as that of a key's bias, by a whole
    step in the direction of the rounding, unless epsilon is larger than it.
    """
    return with_optimizer(render(plan), eps=1e-4)


ADAPTED_MODEL = tiny(adapters=Adapters(rank=4))
REFERENCE = small(nodes(1), [6], micro_batches=8)
SPLITS = {
    "zero 1": small(nodes(2), [6], data=2, micro_batches=4, zero_stage=1),
    "zero 2, two nodes": small(nodes(1, 1), [6], data=2, micro_batches=4, zero_stage=2),
    "zero 3": small(nodes(2), [6], data=2, micro_batches=2, micro_batch_size=2, zero_stage=3),
    "tensor": small(nodes(2), [6], tensor=2, micro_batches=8),
    "unequal stages on unequal nodes": small(nodes(2, 1), [3, 2, 1], micro_batches=8),
    "the head alone on the last stage": small(nodes(2), [6, 0], micro_batches=8),
    "tensor and pipeline": small(nodes(4), [4, 2], tensor=2, micro_batches=8),
    "recompute": small(
        nodes(2), [4, 2], micro_batches=8, recompute=[Recompute("full", 2), Recompute("selective")]
    ),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, deepspeed_folder: Path) -> list[float]:
    root = tmp_path_factory.mktemp("reference")
    losses = train(steady(REFERENCE), root, deepspeed_folder, TRAIN_STEPS=STEPS)
    assert len(losses) == int(STEPS)
    return losses


@pytest.mark.parametrize("name", SPLITS)
def test_losses_do_not_depend_on_the_split(
    name: str, reference: list[float], deepspeed_folder: Path, tmp_path: Path
) -> None:
    losses = train(steady(SPLITS[name]), tmp_path, deepspeed_folder, TRAIN_STEPS=STEPS)
    assert losses == pytest.approx(reference, abs=TOLERANCE)


ADAPTED = {
    "zero 3": small(nodes(2), [6], model=ADAPTED_MODEL, data=2, micro_batches=4, zero_stage=3),
    "tensor and pipeline": small(nodes(4), [4, 2], model=ADAPTED_MODEL, tensor=2, micro_batches=8),
}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, deepspeed_folder: Path) -> list[float]:
    """The losses of one process that trains adapters, which those of the frozen model are not."""
    plan = small(nodes(1), [6], model=ADAPTED_MODEL, micro_batches=8)
    root = tmp_path_factory.mktemp("adapted")
    frozen, trained = (
        train(
            with_optimizer(render(plan), eps=1e-4, lr=rate),
            root / str(rate),
            deepspeed_folder,
            TRAIN_STEPS=STEPS,
        )
        for rate in (0.0, 1e-2)
    )
    assert trained[0] == pytest.approx(frozen[0], abs=TOLERANCE)
    assert trained[-1] != pytest.approx(frozen[-1], abs=100 * TOLERANCE)
    return trained


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_train_to_the_same_losses_however_they_are_split(
    name: str, adapted: list[float], deepspeed_folder: Path, tmp_path: Path
) -> None:
    launch = with_optimizer(render(ADAPTED[name]), eps=1e-4, lr=1e-2)
    losses = train(launch, tmp_path, deepspeed_folder, TRAIN_STEPS=STEPS)
    assert losses == pytest.approx(adapted, abs=TOLERANCE)


def unequal(stage: int, *sizes: int) -> Plan:
    """Replicas that read micro-batches of the given sizes, four in a step."""
    plan = small(nodes(len(sizes)), [6], data=len(sizes), micro_batches=4, zero_stage=stage)
    [only] = plan.stages
    replicas = tuple(
        replica.model_copy(update={"micro_batch_size": size})
        for replica, size in zip(only.replicas, sizes, strict=True)
    )
    batch = 4 * sum(sizes)
    workload = plan.inputs.workload.model_copy(update={"global_batch": batch, "optimizer": "sgd"})
    return plan.model_copy(
        update={
            "stages": (only.model_copy(update={"replicas": replicas}),),
            "inputs": plan.inputs.model_copy(update={"workload": workload}),
            "parallelism": plan.parallelism.model_copy(update={"global_batch": batch}),
        }
    )


def weights(plan: Plan, root: Path, packages: Path) -> dict[str, Any]:
    """The weights after two steps of plain gradient descent with a rate of one."""
    import torch

    launch = with_optimizer(render(plan), lr=1.0)
    saved = root / "saved"
    settings = {"TRAIN_STEPS": "2", "SAVE_INTERVAL": "2", "CHECKPOINT_DIR": str(saved)}
    train(launch, root, packages, **settings)
    [path] = saved.glob("global_step*/mp_rank_00_model_states.pt")
    return dict(torch.load(path, weights_only=False)["module"])


@pytest.mark.parametrize("stage", [1, 2])
def test_unequal_micro_batches_give_the_update_of_the_whole_batch(
    stage: int, deepspeed_folder: Path, tmp_path: Path
) -> None:
    one = weights(unequal(0, 4), tmp_path / "one", deepspeed_folder)
    both = weights(unequal(stage, 3, 1), tmp_path / "both", deepspeed_folder)
    assert one.keys() == both.keys()
    assert max(float((one[name] - both[name]).abs().max()) for name in one) < 1e-6


def test_training_goes_on_from_a_checkpoint(
    reference: list[float], deepspeed_folder: Path, tmp_path: Path
) -> None:
    saved = {"CHECKPOINT_DIR": str(tmp_path / "saved"), "SAVE_INTERVAL": "1"}
    parts = [
        train(steady(REFERENCE), tmp_path / part, deepspeed_folder, TRAIN_STEPS=steps, **saved)
        for part, steps in (("one", "1"), ("two", STEPS))
    ]
    assert parts[0] + parts[1] == pytest.approx(reference, abs=TOLERANCE)
