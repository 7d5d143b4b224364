"""What users hit, as they met it: small inputs through the command line, with the right outcome.

Each test carries the id of its case and the thread that it comes from. The cases about memory
alone, schedules, exports and profiles stand with the modules that they are about.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hetcli.catalog.presets import find_preset
from hetcli.cli import app
from hetcli.perf.flops import layer_forward_flops
from hetcli.perf.rules import legal_tensor_parallel
from hetcli.spec.hostfile import read_hostfile
from hetcli.spec.model.parameters import active_parameters, total_parameters

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> dict[str, Any]:
    """The plan document of a command that says yes, or that says why the plan does not fit."""
    result = run(*arguments, "--json")
    assert result.stdout, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def llama(folder: Path, layers: int, hidden: int, heads: int, vocab: int, **keys: int) -> Path:
    """A config.json in Hugging Face's format."""
    path = folder / "config.json"
    config = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        **keys,
    }
    path.write_text(json.dumps(config))
    return path


def split(document: dict[str, Any]) -> list[int]:
    return [stage["layers"] for stage in document["stages"]]


def test_split_30_over_4(tmp_path: Path) -> None:
    # github.com/NVIDIA/Megatron-LM/issues/1304: two layers were lost silently.
    inputs = ["--cluster", "A100-SXM4-80GB:4", "--model", llama(tmp_path, 30, 1024, 16, 50257)]
    inputs += ["--pp", 4, "--gbs", 64, "--seq-len", 1024]
    even = answer("estimate", *inputs)
    assert sum(split(even)) == 30
    assert max(split(even)) - min(split(even)) <= 1
    # At this width the vocabulary costs as much as several layers: a plan that differs by more than
    # one layer has to be faster for it.
    best = answer("plan", *inputs)
    assert sum(split(best)) == 30
    if max(split(best)) - min(split(best)) > 1:
        assert best["predicted"]["step_time_s"] < even["predicted"]["step_time_s"]


def test_verl_uneven_nodes(tmp_path: Path) -> None:
    # github.com/verl-project/verl/issues/2596 and 1182: 4 + 2 GPUs were taken for 2 x 3.
    cluster, plan = tmp_path / "cluster.yaml", tmp_path / "plan.json"
    cluster.write_text(
        "name: uneven\nnodes:\n"
        "  - {name: n0, gpu: A800-SXM4-80GB, gpus: 4}\n"
        "  - {name: n1, gpu: A800-SXM4-80GB, gpus: 2}\n"
    )
    made = run("plan", "--cluster", cluster, "--model", "qwen2.5-7b", "--gbs", 64,
               "--seq-len", 2048, "-o", plan)  # fmt: skip
    assert made.exit_code == 0, made.stderr
    refused = run("export", plan, "--target", "verl", "-o", tmp_path / "launch")
    assert refused.exit_code == 1
    assert "2 x 2 devices (2 of n0 idle) or 1 x 4 devices (2 of n1 idle)" in refused.stderr
    assert "tensor_model_parallel_size at most the devices of a node" in refused.stderr
    assert not (tmp_path / "launch").exists()


def test_tp_heads_28() -> None:
    # github.com/THU-KEG/AdaptThink/issues/1: 28 heads, but 4 KV heads.
    result = run(
        *["plan", "--cluster", "A100-SXM4-80GB:8", "--model", "qwen2.5-7b"],
        *["--tp", 8, "--gbs", 64, "--seq-len", 4096],
    )
    assert result.exit_code == 2
    assert "1, 2, 4" in result.stderr
    assert legal_tensor_parallel(find_preset("qwen2.5-7b")) == [1, 2, 4]


def test_tp3_of_40_heads() -> None:
    # github.com/vllm-project/vllm/issues/596: three cards cannot share 40 heads; three stages can.
    refused = run(
        *["estimate", "--cluster", "RTX-3090:3", "--model", "llama-2-13b"],
        *["--tp", 3, "--gbs", 6, "--seq-len", 4096],
    )
    assert refused.exit_code == 2
    document = answer(
        *["estimate", "--cluster", "RTX-3090:3", "--model", "llama-2-13b"],
        *["--pp", 3, "--tp", 1, "--gbs", 6, "--seq-len", 4096],
    )
    assert sorted(split(document)) == [13, 13, 14]
    assert document["search"]["idle_devices"] == []
    weights = [
        item["memory_bytes"]
        for device in document["predicted"]["devices"]
        for item in device["items"]
        if item["name"] == "weights"
    ]
    assert sum(weights) / 3 == pytest.approx(26.03e9 / 3, rel=0.01)


@pytest.mark.parametrize("kv_heads", [5, 0])
def test_gqa_groups_not_dividing(kv_heads: int, tmp_path: Path) -> None:
    # github.com/NVIDIA/Megatron-LM/issues/5755: it died in the forward pass.
    model = llama(tmp_path, 1, 64, 32, 1024, num_key_value_heads=kv_heads)
    result = run("models", model)
    assert result.exit_code == 2
    assert "num_key_value_heads" in result.stderr or "kv_heads" in result.stderr


def test_expert_world_etp1() -> None:
    # github.com/NVIDIA-NeMo/Megatron-Bridge/issues/546: tp was multiplied into the expert world.
    result = run(
        *["estimate", "--cluster", "H100-SXM5-80GB:4", "--model", "qwen3-30b-a3b"],
        *["--tp", 4, "--pp", 1, "--ep", 4, "--etp", 1, "--gbs", 16, "--seq-len", 4096, "--json"],
    )
    document = json.loads(result.stdout)
    assert document["parallelism"]["expert_parallel"] == 4
    assert document["parallelism"]["data_parallel"] == 1


def test_qwen3_235b_min_world() -> None:
    # github.com/verl-project/verl/pull/1467: etp 1 x ep 32 x pp 2 needs 64 devices.
    degrees = ["--tp", 2, "--pp", 2, "--ep", 32, "--etp", 1, "--gbs", 64, "--seq-len", 4096]
    model = ["--model", "qwen3-235b-a22b"]
    refused = run("plan", "--cluster", "H100-SXM5-80GB:32", *model, *degrees)
    assert refused.exit_code == 1
    assert "64" in refused.stderr
    document = answer("estimate", "--cluster", "H100-SXM5-80GB:64", *model, *degrees)
    assert document["parallelism"]["data_parallel"] == 16
    assert split(document) == [47, 47]


def test_batch_7_gpus() -> None:
    # github.com/OpenRLHF/OpenRLHF/issues/346: 256 != 2 x 18 x 7.
    result = run(
        *["plan", "--cluster", "A100-SXM4-80GB:7", "--model", "llama-2-7b"],
        *["--dp", 7, "--mbs", 2, "--gbs", 256, "--seq-len", 2048],
    )
    assert result.exit_code == 1
    assert "252" in result.stderr
    assert "266" in result.stderr


def test_pp8_one_microbatch(tmp_path: Path) -> None:
    # github.com/huggingface/nanotron/issues/347: which setting are the micro-batches?
    result = run(
        *["plan", "--cluster", "H100-SXM5-80GB:8", "--model", llama(tmp_path, 16, 1024, 16, 32000)],
        *["--pp", 8, "--dp", 1, "--mbs", 1, "--gbs", 1, "--seq-len", 2048],
    )
    assert result.exit_code == 1
    assert "global batch" in result.stderr
    assert "8" in result.stderr


def test_bf16_on_volta() -> None:
    # github.com/OpenBuddy/OpenBuddy/issues/45: V100 has neither bf16 nor FlashAttention.
    inputs = ["--cluster", "sample:dgx-a100-v100", "--model", "llama-2-13b", "--gbs", 256]
    refused = run("plan", *inputs, "--seq-len", 4096, "--precision", "bf16")
    assert refused.exit_code == 1
    assert "v100" in refused.stderr
    document = answer("plan", *inputs, "--seq-len", 4096)
    gpus = {stage["gpu"] for stage in document["stages"]}
    precision = document["parallelism"]["precision"]
    assert precision == ("fp16" if any("V100" in gpu for gpu in gpus) else "bf16")
    assert any("bf16" in note or "V100" in note for note in document["notes"])


def test_stage_placement_edges(tmp_path: Path) -> None:
    # github.com/NVIDIA/Megatron-LM: 32 stages on 4 nodes crossed nodes 5 times instead of 3.
    document = answer(
        *["estimate", "--cluster", "V100-SXM2-16GB:8x4"],
        *["--model", llama(tmp_path, 32, 2560, 32, 51200)],
        *["--pp", 32, "--gbs", 64, "--seq-len", 2048],
    )
    nodes = [stage["devices"][0]["node"] for stage in document["stages"]]
    assert sum(one != other for one, other in pairwise(nodes)) == 3


def test_moe_total_vs_active() -> None:
    # A fit checker took active parameters for memory, another path total ones for speed.
    model = find_preset("qwen3-30b-a3b")
    document = answer(
        *["estimate", "--cluster", "H100-SXM5-80GB:1", "--model", "qwen3-30b-a3b"],
        *["--gbs", 1, "--seq-len", 4096],
    )
    items = {i["name"]: i["memory_bytes"] for i in document["predicted"]["devices"][0]["items"]}
    # Vocabulary padding and fp32 copies apart, the weights are two bytes a parameter, all of them.
    assert items["weights"] == pytest.approx(2 * total_parameters(model), rel=0.01)
    assert items["weights"] > 15 * active_parameters(model)
    layer = model.layers[0].layer
    per_token = layer_forward_flops(layer, model, 1)
    assert per_token < 2.5 * active_parameters(model) / model.layer_count


def test_two_hosts_3080_4090(tmp_path: Path) -> None:
    # github.com/NVIDIA/Megatron-LM/issues/1757: two hosts, each with 2 x 3080 and 2 x 4090.
    cluster = tmp_path / "cluster.yaml"
    groups = {"a": "RTX-3080-10GB", "a2": "RTX-4090", "b": "RTX-3080-10GB", "b2": "RTX-4090"}
    nodes = [{"name": name, "gpu": gpu, "gpus": 2} for name, gpu in groups.items()]
    cluster.write_text(json.dumps({"schema_version": 1, "name": "two-hosts", "nodes": nodes}))
    inputs = ["plan", "--cluster", cluster, "--model", "llama-2-7b"]
    inputs += ["--seq-len", 2048, "--gbs", 64, "--target", "deepspeed"]
    # 16 to 18 bytes a parameter are 108 to 121 GB of the 136 GB, activations and contexts apart.
    refused = run(*inputs)
    assert refused.exit_code == 1
    assert "no plan of llama-2-7b fits on two-hosts" in refused.stderr
    assert "GiB of the 9 GiB" in refused.stderr or "GiB of the 23 GiB" in refused.stderr
    plan = answer(*inputs, "--lora")
    assert all(device["headroom_bytes"] >= 0 for device in plan["predicted"]["devices"])
    layers: dict[str, list[int]] = {}
    for stage in plan["stages"]:
        for replica in stage["replicas"]:
            # Tensor ranks of one replica are cards of one type.
            [gpu] = {groups[device["node"]] for device in replica["devices"]}
            layers.setdefault(gpu, []).append(stage["layers"])
    assert min(layers["RTX-4090"]) > max(layers["RTX-3080-10GB"])
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    exported = run("export", tmp_path / "plan.json", "-o", tmp_path / "launch")
    assert exported.exit_code == 0, exported.stderr
    (tmp_path / "launch" / "plan.json").read_text()


def test_serve_estimate_weights() -> None:
    # The weights of an 8B model in bf16 are 16.06 GB, whatever an engine reserves beside them.
    document = answer(
        *["estimate", "--cluster", "A100-SXM4-80GB:1", "--model", "llama-3-8b"],
        *["--gbs", 1, "--seq-len", 4096],
    )
    items = {i["name"]: i["memory_bytes"] for i in document["predicted"]["devices"][0]["items"]}
    assert items["weights"] == pytest.approx(16.06e9, rel=0.001)


@pytest.mark.parametrize(
    ("name", "parameters"), [("mixtral-8x7b", 46_702_792_704), ("llama-2-7b", 6_738_415_616)]
)
def test_param_count_mixtral_llama(name: str, parameters: int) -> None:
    # Mixtral was read as 13B elsewhere: one MLP, a tied head.
    assert json.loads(run("models", name, "--json").stdout)["parameters"] == parameters


HOROVOD = """
schema_version: 1
name: pascal
nodes:
  - {name: fast, gpu: GTX-1080, gpus: 4}
  - {name: slow, gpu: GTX-1070, gpus: 4}
"""


def test_hetero_dp_weights(tmp_path: Path) -> None:
    # github.com/horovod/horovod/issues/121: a batch for each GPU type, and what gradients weigh.
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(HOROVOD)
    inputs = ["estimate", "--cluster", cluster, "--model", "gpt2", "--seq-len", 128]
    document = answer(*inputs, "--per-gpu-batch", "fast=64,slow=32")
    assert document["parallelism"]["global_batch"] == 384
    assert document["parallelism"]["data_parallel"] == 8
    weights = {
        replica["devices"][0]["node"]: replica["gradient_weight"]
        for replica in document["stages"][0]["replicas"]
    }
    assert weights == {"fast": 64 / 384, "slow": 32 / 384}
    shown = " ".join(run(*inputs, "--per-gpu-batch", "fast=64,slow=32").stdout.split())
    assert "64/384 for each of 4 on fast, 32/384 for each of 4 on slow" in shown
    assert "plain mean all-reduce would weigh every one 1/8 and bias the gradient" in shown
    # The cards decide by themselves how long they take: equal batches wait for the slow ones.
    equal = answer(*inputs, "--mbs", 48, "--gbs", 384)
    assert document["predicted"]["step_time_s"] < equal["predicted"]["step_time_s"]
    assert not any("all-reduce" in note for note in equal["notes"])


def test_hetero_dp_weights_by_type(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(HOROVOD)
    inputs = ["estimate", "--cluster", cluster, "--model", "gpt2", "--seq-len", 128]
    twice = answer(*inputs, "--per-gpu-batch", "GTX-1080=64,GTX-1070=32", "--gbs", 768)
    replicas = twice["stages"][0]["replicas"]
    assert {(each["micro_batches"], each["micro_batch_size"]) for each in replicas} == {
        (2, 64),
        (2, 32),
    }
    assert sum(each["gradient_weight"] for each in replicas) == pytest.approx(1)


@pytest.mark.parametrize(
    ("shares", "more", "code", "says"),
    [
        ("fast=64,slow=32", ["--gbs", 400], 1, "384 or 768"),
        ("fast=64,slwo=32", [], 2, "GTX-1070"),
        ("fast=64,GTX-1080=32", [], 2, "name every node once"),
        ("fast=64,slow=none", [], 2, "fast=64,slow=32"),
        ("fast=64,slow=32", ["--pp", 2], 2, "leave out --pp"),
        ("fast=64,slow=32", ["--dp", 4], 2, "8 data-parallel ranks"),
        ("fast=64,slow=32", ["--tp", 4, "--cp", 2], 1, "4 x 2 devices"),
    ],
)
def test_hetero_dp_refusals(
    shares: str, more: list[object], code: int, says: str, tmp_path: Path
) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(HOROVOD)
    inputs = ["estimate", "--cluster", cluster, "--model", "gpt2", "--seq-len", 128]
    result = run(*inputs, "--per-gpu-batch", shares, *more)
    assert result.exit_code == code, result.stdout
    assert says in " ".join(result.stderr.split())


def test_hostfile_bad_line(tmp_path: Path) -> None:
    # The error text elsewhere had a literal '{line}' instead of the bad line.
    path = tmp_path / "hostfile"
    path.write_text("x.x.x.x slots=8\nx.x.x.y lots=8\n")
    with pytest.raises(Exception, match="lots=8") as caught:
        read_hostfile(path)
    assert f"{path}:2" in str(caught.value)
    assert "slots=8" in str(caught.value)


def test_json_for_scripts() -> None:
    # github.com/NVIDIA/nccl-tests/issues/120: writing a text parser is brittle.
    arguments = ["plan", "--cluster", "RTX-3090:2", "--model", "gpt2"]
    arguments += ["--gbs", "16", "--seq-len", "1024", "--json"]
    piped = subprocess.run(
        [sys.executable, "-m", "hetcli", *arguments], capture_output=True, text=True, check=True
    )
    document = json.loads(piped.stdout)
    assert document["schema_version"] == 1
    assert document["predicted"]["cost_per_step"] is None
    coloured = run(*arguments, "--color", "always")
    assert json.loads(coloured.stdout) == document


def test_packaging_nvml() -> None:
    # github.com/mlco2/codecarbon/issues/933: the pynvml distribution makes torch warn.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    named = [*project["dependencies"], *(entry for extra in extras for entry in extra)]
    assert any(entry.startswith("nvidia-ml-py") for entry in named)
    assert not any(entry.startswith("pynvml") for entry in named)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("pynvml")
