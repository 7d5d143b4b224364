"""What is measured: shapes, dtypes and pairs follow the devices and the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetcli.catalog.inputs import read_model
from hetcli.probe.node import describe_node
from hetcli.probe.steps import Effort, Level, compute_steps, dtypes, intra_steps, is_measured
from hetcli.probe.wire import HostCopyJob, LayerJob, MatmulJob, MemoryJob, NodeFacts, OptimizerJob
from hetcli.spec.profile import MatmulMeasurement, Profile, Spread

Recorded = Callable[..., Any]


@pytest.fixture
def facts(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], NodeFacts]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def describe(name: str) -> NodeFacts:
        if name == "cpu":
            return describe_node("cpu")
        return describe_node(nvml_module=recorded(name))

    return describe


def test_a_card_is_measured_in_what_it_computes(facts: Callable[[str], NodeFacts]) -> None:
    assert dtypes(facts("v100_eight").devices[0]) == ("fp32", "fp16")
    assert dtypes(facts("pcie_idle_gen1").devices[0]) == ("fp32", "fp16")
    assert dtypes(facts("dgx_a100").devices[0]) == ("fp32", "fp16", "bf16")
    assert dtypes(facts("cpu").devices[0]) == ("fp32", "bf16")


@pytest.mark.parametrize("level", ["quick", "normal", "full"])
def test_every_usable_device_gets_every_kind_of_probe(
    facts: Callable[[str], NodeFacts], level: Level
) -> None:
    found = facts("display_card")
    steps = compute_steps(found, level)
    assert {step.device for step in steps} == {0, 1, 2, 4}
    assert {(step.rank, step.device) for step in steps} == {(0, 0), (1, 1), (2, 2), (3, 4)}
    for device in (0, 4):
        kinds = {type(step.job) for step in steps if step.device == device}
        assert kinds == {MemoryJob, HostCopyJob, MatmulJob, LayerJob, OptimizerJob}


def test_a_model_brings_its_own_products_and_layers(facts: Callable[[str], NodeFacts]) -> None:
    model = read_model("llama-3-8b")
    steps = compute_steps(facts("mixed_3090_4090"), "normal", model)
    products = {(job.m, job.k, job.n) for job in (s.job for s in steps) if type(job) is MatmulJob}
    # Llama 3 8B: hidden 4096, 32 heads of 128 over 8 key-value heads, feed-forward 14336 gated.
    one = {(8192, 4096, 6144), (8192, 4096, 4096), (8192, 4096, 28672), (8192, 14336, 4096)}
    four = {(4 * m, k, n) for m, k, n in one}
    assert products == one | four | {(8192, 4096, 128256)}
    layers = [job for job in (s.job for s in steps if s.device == 0) if type(job) is LayerJob]
    assert {(j.hidden_size, j.heads, j.kv_heads, j.head_dim, j.ffn_size) for j in layers} == {
        (4096, 32, 8, 128, 14336)
    }
    assert {(j.tensor_parallel, j.micro_batch_size, j.sequence) for j in layers} == {
        (tp, mbs, seq) for tp in (1, 2) for mbs in (1, 4) for seq in (1024, 4096)
    }


def test_a_model_of_unlike_layers_still_has_its_products(
    facts: Callable[[str], NodeFacts],
) -> None:
    steps = compute_steps(facts("mixed_3090_4090"), "quick", read_model("mixtral-8x7b"))
    kinds = {type(step.job) for step in steps}
    assert MatmulJob in kinds
    assert LayerJob not in kinds


def test_one_pair_stands_for_all_that_are_joined_alike(
    facts: Callable[[str], NodeFacts],
) -> None:
    def pairs(name: str, level: Level) -> list[tuple[tuple[int, int], ...]]:
        steps = intra_steps(facts(name), level)
        return [step.members for step in steps if step.operation == "send_recv"]

    assert pairs("dgx_a100", "normal") == [((0, 0), (0, 1))]
    # One NVLink, two NVLinks, and none.
    assert pairs("v100_eight", "normal") == [((0, 0), (0, 1)), ((0, 0), (0, 3)), ((0, 0), (0, 5))]
    assert len(pairs("v100_eight", "full")) == 28
    assert pairs("mig_seven", "full") == []
    assert pairs("gb10", "full") == []


def test_collectives_grow_over_the_ranks(facts: Callable[[str], NodeFacts]) -> None:
    steps = intra_steps(facts("dgx_a100"), "normal")
    reduced = [len(step.members) for step in steps if step.operation == "all_reduce"]
    assert reduced == [2, 4, 8]
    assert {step.operation for step in steps} == {
        "send_recv", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
    }  # fmt: skip


def test_quick_is_shorter_than_normal_than_full() -> None:
    efforts = [Effort.of(level, processor=False) for level in ("quick", "normal", "full")]
    assert efforts[0].compute_s < efforts[1].compute_s < efforts[2].compute_s
    assert efforts[0].sizes[-1] < efforts[1].sizes[-1] < efforts[2].sizes[-1]


def test_what_a_profile_holds_is_not_measured_again(facts: Callable[[str], NodeFacts]) -> None:
    found = facts("cpu")
    row = MatmulMeasurement(
        device=0,
        dtype="fp32",
        m=256,
        n=1024,
        k=256,
        seconds=Spread(median=1.0, p95=1.0, minimum=1.0, repeats=3),
        flop_per_s=1.0,
    )
    profile = Profile(
        hetcli_version="0",
        created="now",
        complete=False,
        node="n0",
        host=found.host,
        devices=found.devices,
        matmul=(row,),
    )
    done = [
        step
        for step in compute_steps(found, "quick")
        if is_measured(step.job, step.device, profile)
    ]
    assert [step.label for step in done] == ["matmul fp32 256 x 256 x 1024"]
    assert not is_measured(done[0].job, 1, profile)
