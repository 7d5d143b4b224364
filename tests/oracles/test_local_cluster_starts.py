"""What is planned and exported for CPUs of this machine really starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from plans import cluster, group, make_plan, tiny
from training import train, train_megatron

from hetcli.catalog.inputs import read_cluster
from hetcli.export import LaunchDirectory, render
from hetcli.search import PlanOptions, plan
from hetcli.spec.plan import Target
from hetcli.spec.workload import Pretrain

pytestmark = pytest.mark.oracle


def planned(target: Target) -> LaunchDirectory:
    """The best plan of two of the sample cluster's processes."""
    return render(
        plan(
            cluster=read_cluster("sample:local-cpu"),
            model=tiny(),
            # Of the 2 GiB of a process most is the framework itself.
            workload=Pretrain.model_validate(
                {
                    "global_batch": 8,
                    "sequence": 32,
                    "precision": "fp32",
                    "memory_margin": "128MiB",
                }
            ),
            options=PlanOptions(target=target, quotas=(("cpu", 2),), compare=False, top=1),
        )
    )


def test_the_sample_cluster_trains_with_deepspeed(deepspeed_folder: Path, tmp_path: Path) -> None:
    losses = train(planned("deepspeed"), tmp_path, deepspeed_folder, TRAIN_STEPS="1")
    assert losses == [pytest.approx(4.56, abs=1)]  # The logarithm of 96 words.


def test_the_sample_cluster_trains_with_megatron(megatron_folder: Path, tmp_path: Path) -> None:
    losses, _ = train_megatron(planned("megatron"), tmp_path, megatron_folder, 1)
    assert losses == [pytest.approx(4.56, abs=1)]


def test_the_deepspeed_launcher_starts_two_nodes_of_unequal_size(
    deepspeed_folder: Path, tmp_path: Path
) -> None:
    where = cluster(group("node-0", "cpu", gpus=2), group("node-1", "cpu", gpus=1))
    made = make_plan(
        *(where, tiny(), [3, 2, 1]),
        sequence=32,
        precision="fp32",
        target="deepspeed",
        overlap_param_gather=False,
    )
    launch = render(made, launcher="deepspeed")
    losses = train(launch, tmp_path, deepspeed_folder, TRAIN_STEPS="1")
    assert losses == [pytest.approx(4.56, abs=1)]
