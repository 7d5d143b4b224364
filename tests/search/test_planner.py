from __future__ import annotations

import pytest

from hetcli.catalog.inputs import read_model
from hetcli.catalog.samples import read_cluster
from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.perf.resolve import resolve
from hetcli.perf.step import predict
from hetcli.search import EstimateRequest, PlanOptions, configuration_of, estimate, plan
from hetcli.search.placement import crossings
from hetcli.spec.cluster import Cluster
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
)
from hetcli.spec.plan import Plan
from hetcli.spec.workload import Pretrain


def cluster(*groups: tuple[str, str, int, int]) -> Cluster:
    """Node groups as (name, GPU, nodes, devices a node) on one 200 Gb/s fabric."""
    return Cluster.model_validate(
        {
            "name": "case",
            "nodes": tuple(
                {
                    "name": name if nodes == 1 else f"{name}-[0-{nodes - 1}]",
                    "gpu": gpu,
                    "gpus": devices,
                    "nics": ({"kind": "infiniband", "rate": "200Gbps"},),
                }
                for name, gpu, nodes, devices in groups
            ),
        }
    )


def dense(name: str, layers: int, hidden: int, heads: int, vocab: int, **more: int) -> Model:
    return Model(
        name=name,
        architecture="llama",
        hidden_size=hidden,
        vocab_size=vocab,
        max_sequence=4096,
        layers=(
            LayerRun(
                count=layers,
                layer=Layer(
                    attention=GroupedQueryAttention(
                        heads=heads,
                        kv_heads=more.get("kv_heads", heads),
                        head_dim=hidden // heads,
                    ),
                    feed_forward=DenseFeedForward(size=more.get("feed_forward", 4 * hidden)),
                ),
            ),
        ),
    )


def routed(name: str, layers: int, hidden: int, heads: int, kv_heads: int) -> Model:
    return Model(
        name=name,
        architecture="qwen3_moe",
        hidden_size=hidden,
        vocab_size=151936,
        max_sequence=4096,
        layers=(
            LayerRun(
                count=layers,
                layer=Layer(
                    attention=GroupedQueryAttention(heads=heads, kv_heads=kv_heads, head_dim=128),
                    feed_forward=MoeFeedForward(experts=128, top_k=8, expert_size=1536),
                ),
            ),
        ),
    )


def batch(global_batch: int, sequence: int = 2048, **more: object) -> Pretrain:
    return Pretrain.model_validate({"global_batch": global_batch, "sequence": sequence, **more})


def layers_of(found: Plan) -> list[int]:
    return [stage.layers for stage in found.stages]


def check_sound(found: Plan) -> None:
    """What every plan must be, whatever the question was."""
    workload, degrees = found.inputs.workload, found.parallelism
    assert sum(layers_of(found)) == found.inputs.model.layer_count
    devices = [(d.node, d.index) for stage in found.stages for d in stage.devices]
    assert len(devices) == len(set(devices))
    assert degrees.data_parallel is not None
    assert workload.global_batch == (
        degrees.micro_batch_size * degrees.data_parallel * degrees.gradient_accumulation
    )
    for device in found.predicted.devices:
        assert sum(item.memory_bytes for item in device.items) == device.peak_memory_bytes
        assert device.headroom_bytes >= workload.memory_margin
    assert found.certificate.lower_bound_s is not None
    assert found.certificate.lower_bound_s <= found.predicted.step_time_s
    assert Plan.model_validate_json(found.model_dump_json()) == found


def test_thirty_layers_on_four_stages_lose_none() -> None:
    # NVIDIA/Megatron-LM#1304
    found = plan(
        cluster=cluster(("n0", "A100-SXM4-80GB", 1, 4)),
        model=dense("gpt2-30l", 30, 1024, 16, 50257),
        workload=batch(64, 1024),
        options=PlanOptions(pipeline_parallel=4),
    )
    check_sound(found)
    assert len(found.stages) == 4
    assert sum(layers_of(found)) == 30


def test_equal_stages_without_a_heavy_vocabulary_differ_by_one_layer() -> None:
    found = plan(
        cluster=cluster(("n0", "A100-SXM4-80GB", 1, 4)),
        model=dense("light-ends", 30, 1024, 16, 512),
        workload=batch(64, 1024),
        options=PlanOptions(pipeline_parallel=4, virtual_stages=1),
    )
    assert max(layers_of(found)) - min(layers_of(found)) <= 1


def test_forty_six_layers_of_glm_over_four_stages() -> None:
    # modelscope/ms-swift#5737: 46 % 4 was refused.
    found = plan(
        cluster=cluster(("n", "H100-SXM5-80GB", 8, 8)),
        model=read_model("glm-4.5-air"),
        workload=batch(16, 4096),
        options=PlanOptions(
            tensor_parallel=8,
            pipeline_parallel=4,
            expert_parallel=16,
            expert_tensor_parallel=1,
            micro_batch_size=2,
        ),
    )
    check_sound(found)
    assert sum(layers_of(found)) == 46
    assert found.parallelism.data_parallel == 2
    assert found.parallelism.gradient_accumulation == 4
    assert any("bubble of 43%" in note for note in found.notes)


def test_tensor_degree_that_cuts_no_heads_is_refused_before_the_search() -> None:
    # THU-KEG/AdaptThink#1
    model = dense("qwen-7b", 28, 3584, 28, 152064, kv_heads=4, feed_forward=18944)
    with pytest.raises(ConfigurationError, match="legal tensor_parallel: 1, 2, 4"):
        plan(
            cluster=cluster(("n0", "A100-SXM4-80GB", 1, 8)),
            model=model,
            workload=batch(64),
            options=PlanOptions(tensor_parallel=8),
        )


def test_expert_mesh_is_apart_from_the_dense_mesh() -> None:
    # NVIDIA-NeMo/Megatron-Bridge#546: tp 4, ep 4, etp 1 on 4 devices.
    found = plan(
        cluster=cluster(("n0", "H200-SXM-141GB", 1, 4)),
        model=routed("qwen3-a3b", 12, 2048, 32, 4),
        workload=batch(16),
        options=PlanOptions(
            tensor_parallel=4, pipeline_parallel=1, expert_parallel=4, expert_tensor_parallel=1
        ),
    )
    check_sound(found)
    assert found.parallelism.expert_parallel == 4


def test_too_small_a_world_for_the_experts_names_the_least() -> None:
    # verl-project/verl#1467
    with pytest.raises(InfeasibleError, match="smallest legal world is 64"):
        plan(
            cluster=cluster(("n", "H100-SXM5-80GB", 4, 8)),
            model=routed("qwen3-235b", 94, 4096, 64, 4),
            workload=batch(64),
            options=PlanOptions(
                tensor_parallel=2,
                pipeline_parallel=2,
                expert_parallel=32,
                expert_tensor_parallel=1,
            ),
        )


def test_sixty_four_devices_give_data_parallel_16_and_an_even_split() -> None:
    found = estimate(
        cluster=cluster(("n", "H100-SXM5-80GB", 8, 8)),
        model=routed("qwen3-235b", 94, 4096, 64, 4),
        workload=batch(64),
        request=EstimateRequest(
            tensor_parallel=2, pipeline_parallel=2, expert_parallel=32, expert_tensor_parallel=1
        ),
    )
    assert found.parallelism.data_parallel == 16
    assert layers_of(found) == [47, 47]


def test_batch_that_seven_devices_cannot_share_is_never_changed() -> None:
    # OpenRLHF#346
    with pytest.raises(InfeasibleError, match=r"252 .* and 266"):
        plan(
            cluster=cluster(("n0", "A100-SXM4-80GB", 1, 7)),
            model=read_model("llama-2-7b"),
            workload=batch(256),
            options=PlanOptions(data_parallel=7, micro_batch_size=2),
        )


def test_eight_stages_need_a_batch_of_eight() -> None:
    # huggingface/nanotron#347
    with pytest.raises(InfeasibleError, match="at least 8"):
        plan(
            cluster=cluster(("n0", "H100-SXM5-80GB", 1, 8)),
            model=dense("tiny-llama", 16, 1024, 16, 32000),
            workload=batch(1, 1024),
            options=PlanOptions(pipeline_parallel=8, data_parallel=1, micro_batch_size=1),
        )


def test_thirty_two_stages_on_four_nodes_cross_nodes_three_times() -> None:
    found = plan(
        cluster=cluster(("n", "V100-SXM2-16GB", 4, 8)),
        model=dense("gpt-2.6b", 32, 2560, 32, 51200),
        workload=batch(64, 1024),
        options=PlanOptions(pipeline_parallel=32),
    )
    check_sound(found)
    assert len(found.stages) == 32
    assert crossings(configuration_of(found).stages) == 3


def test_bf16_on_volta_is_refused_and_auto_says_what_it_does_instead() -> None:
    mixed = cluster(("a", "A100-SXM4-80GB", 1, 8), ("v", "V100-SXM2-32GB", 1, 8))
    model = read_model("llama-2-13b")
    with pytest.raises(InfeasibleError, match="bf16 cannot run on v"):
        plan(cluster=mixed, model=model, workload=batch(64, precision="bf16"))
    found = plan(cluster=mixed, model=model, workload=batch(64))
    check_sound(found)
    uses_volta = any("V100" in stage.gpu for stage in found.stages)
    assert found.parallelism.precision == ("fp16" if uses_volta else "bf16")
    assert found.notes


def test_full_training_of_7b_on_3080s_and_4090s_is_refused_with_its_shortfall() -> None:
    # NVIDIA/Megatron-LM#1757
    with pytest.raises(InfeasibleError) as caught:
        plan(
            cluster=cluster(
                ("a", "RTX-3080", 1, 2),
                ("a2", "RTX-4090", 1, 2),
                ("b", "RTX-3080", 1, 2),
                ("b2", "RTX-4090", 1, 2),
            ),
            model=read_model("llama-2-7b"),
            workload=batch(64),
        )
    assert "short by" in caught.value.fix
    assert "GiB" in caught.value.fix
    assert "candidates seen" in caught.value.why


def test_faster_cards_get_more_layers() -> None:
    found = plan(
        cluster=cluster(("a", "A100-SXM4-80GB", 1, 4), ("v", "V100-SXM2-32GB", 1, 4)),
        model=dense("even", 24, 2048, 16, 32000),
        workload=batch(64, 2048),
        options=PlanOptions(pipeline_parallel=2, tensor_parallel=4),
    )
    check_sound(found)
    by_gpu = {stage.gpu: stage.layers for stage in found.stages}
    assert by_gpu["A100-SXM4-80GB"] > by_gpu["V100-SXM2-32GB"]


def test_the_same_inputs_give_the_same_plan_byte_for_byte() -> None:
    def once() -> str:
        return plan(
            cluster=read_cluster("sample:flashflex"),
            model=read_model("llama-2-7b"),
            workload=batch(64, 2048),
        ).model_dump_json()

    assert once() == once()


def test_a_plan_becomes_its_configuration_again() -> None:
    found = plan(
        cluster=read_cluster("sample:flashflex"),
        model=read_model("llama-2-7b"),
        workload=batch(64, 2048),
    )
    again = configuration_of(found)
    assert [s.layer_count for s in again.stages] == layers_of(found)
    assert [(d.node, d.index) for d in again.devices] == [
        (d.node, d.index) for stage in found.stages for d in stage.devices
    ]
    prediction = predict(
        again,
        model=found.inputs.model,
        workload=found.inputs.workload,
        hardware=resolve(found.inputs.cluster),
    )
    assert prediction.step_time_s == found.predicted.step_time_s


def test_deepspeed_plans_keep_zero_2_and_3_out_of_pipelines() -> None:
    found = plan(
        cluster=cluster(("a", "A100-SXM4-80GB", 2, 4)),
        model=read_model("llama-2-7b"),
        workload=batch(64),
        options=PlanOptions(target="deepspeed"),
    )
    check_sound(found)
    assert len(found.stages) == 1 or found.parallelism.zero_stage <= 1
