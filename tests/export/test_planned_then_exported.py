"""What the planner finds within a target, the target's exporter accepts."""

from __future__ import annotations

from typing import Any

import pytest
from plans import cluster, group, llama, make_plan

from hetcli.catalog.inputs import read_cluster, read_model
from hetcli.errors import UnsupportedByTargetError
from hetcli.export import render
from hetcli.search import EstimateRequest, PlanOptions, estimate, plan
from hetcli.spec.plan import Target
from hetcli.spec.workload import Pretrain

# Two vendors whose cards a library of the cluster's joins.
VENDORS = cluster(
    group("n", "H100-SXM5-80GB", nics=[{"kind": "roce", "rate": "400Gbps"}]),
    group("a", "MI300X", nics=[{"kind": "roce", "rate": "400Gbps"}]),
    cross_vendor_backend={"name": "hetccl"},
)
# Clusters that are planned in seconds; each has something of its own: old cards, uneven nodes,
# nodes of one card. A model that fits, and a batch.
ASKED = {
    "dgx-h100": ("llama-2-7b", 512),
    "dgx-a100-v100": ("llama-2-7b", 64),
    "flashflex": ("llama-2-7b", 64),
    "zorse-one-node": ("gpt2-xl", 64),
}


@pytest.mark.parametrize("target", ["megatron", "deepspeed"])
@pytest.mark.parametrize("name", ASKED)
def test_what_is_planned_is_accepted(name: str, target: Target) -> None:
    preset, batch = ASKED[name]
    model = read_model(preset)
    found = plan(
        cluster=read_cluster(f"sample:{name}"),
        model=model,
        workload=Pretrain(global_batch=batch, sequence=min(2048, model.max_sequence)),
        options=PlanOptions(target=target, compare=False, top=1),
    )
    assert render(found).target == target


@pytest.mark.parametrize("target", ["megatron", "deepspeed"])
def test_two_vendors_start_where_a_library_joins_them(target: Target) -> None:
    found = plan(
        cluster=VENDORS,
        model=read_model("llama-2-13b"),
        workload=Pretrain(global_batch=64, sequence=2048),
        options=PlanOptions(target=target, compare=False, top=1, must_use=("MI300X",)),
    )
    launch = render(found)
    assert {"VENDOR=nvidia", "VENDOR=amd"} == {
        line for file in launch for line in file.content.splitlines() if line.startswith("VENDOR=")
    }
    assert any("hetccl" in note for note in launch.notes)


OLD = cluster(group("a-[0-1]", "A100-SXM4-80GB"), group("v", "V100-SXM2-32GB"))
TIGHT: dict[str, tuple[Target, Any, dict[str, Any]]] = {
    # Transformer Engine's attention of Volta needs whole sequences.
    "long sequences with Volta": (
        "megatron",
        llama(8, max_sequence=16384),
        {"context_parallel": 2, "workload": {"precision": "fp16", "sequence": 16384}},
    ),
    # 8200 / 2 tokens do not divide by 8.
    "a sequence that sequence parallelism cannot split": (
        "megatron",
        llama(8, max_sequence=16384),
        {"context_parallel": 2, "tensor_parallel": 8, "workload": {"sequence": 8200}},
    ),
    "experts of a tensor-parallel trainer": (
        "deepspeed",
        read_model("mixtral-8x7b"),
        {"tensor_parallel": 2, "expert_tensor_parallel": 2, "workload": {"precision": "fp16"}},
    ),
}


@pytest.mark.parametrize("name", TIGHT)
def test_the_planner_stays_within_the_narrower_rules_of_a_target(name: str) -> None:
    target, model, asked = TIGHT[name]
    workload = {"global_batch": 32, "sequence": 2048, **asked.pop("workload")}
    found = plan(
        cluster=OLD,
        model=model,
        workload=Pretrain(**workload),
        options=PlanOptions(target=target, compare=False, top=1, **asked),
    )
    assert render(found).target == target


UNBUILT = {
    ("megatron", "opt-1.3b"): "relu activation",
    ("megatron", "opt-350m"): "missing final norm",
    ("megatron", "falcon-40b"): "parallel attention and feed-forward",
    ("megatron", "gpt-neox-20b"): "parallel attention and feed-forward",
    ("megatron", "gemma-2-9b"): "scaled embedding",
    ("deepspeed", "deepseek-v3"): "prediction layers",
}


@pytest.mark.parametrize(("target", "preset"), UNBUILT)
def test_a_model_that_the_target_cannot_build_is_refused_before_the_search(
    target: Target, preset: str
) -> None:
    where, model = read_cluster("sample:dgx-h100"), read_model(preset)
    workload = Pretrain(global_batch=64, sequence=1024)
    other = "megatron" if target == "deepspeed" else "deepspeed"
    refused = []
    for ask in (
        lambda: plan(
            cluster=where, model=model, workload=workload, options=PlanOptions(target=target)
        ),
        lambda: estimate(
            cluster=where, model=model, workload=workload, request=EstimateRequest(target=target)
        ),
        lambda: render(
            make_plan(where, model, [model.layer_count], data=8, target=target, sequence=1024)
        ),
    ):
        with pytest.raises(UnsupportedByTargetError, match=UNBUILT[target, preset]) as caught:
            ask()
        refused.append((caught.value.what, caught.value.why, caught.value.fix))
    assert len(set(refused)) == 1
    assert f"hetcli plan --target {other}" in refused[0][2]


def test_a_learned_table_is_not_outgrown() -> None:
    with pytest.raises(UnsupportedByTargetError, match="1024 rows") as caught:
        plan(
            cluster=OLD,
            model=read_model("gpt2"),
            workload=Pretrain(global_batch=64, sequence=2048),
            options=PlanOptions(target="deepspeed"),
        )
    assert caught.value.fix == "hetcli plan --seq-len 1024"
