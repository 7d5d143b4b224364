from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.catalog.gpu import Gpu
from hetcli.errors import ConfigurationError, ExitCode, InfeasibleError
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Replica,
    Stage,
)
from hetcli.perf.hardware import DeviceType, Hardware, LinkCurve, Node
from hetcli.perf.rules import (
    check,
    check_batch,
    check_context_parallel,
    check_expert_parallel,
    check_framework,
    check_interleaving,
    check_micro_batch_count,
    check_pipeline,
    check_precision,
    check_stage_layers,
    check_tensor_parallel,
    divisors,
    interleaving_is_legal,
    legal_expert_parallel,
    legal_tensor_parallel,
)
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
)


def dense_model(
    *, layers: int, hidden: int, heads: int, kv_heads: int, feed_forward: int, vocab: int
) -> Model:
    return Model(
        name="m",
        architecture="llama",
        hidden_size=hidden,
        vocab_size=vocab,
        max_sequence=4096,
        layers=(
            LayerRun(
                count=layers,
                layer=Layer(
                    attention=GroupedQueryAttention(
                        heads=heads, kv_heads=kv_heads, head_dim=hidden // heads
                    ),
                    feed_forward=DenseFeedForward(size=feed_forward),
                ),
            ),
        ),
    )


def moe_model(*, layers: int, experts: int, top_k: int) -> Model:
    return Model(
        name="moe",
        architecture="qwen3_moe",
        hidden_size=2048,
        vocab_size=151936,
        max_sequence=4096,
        layers=(
            LayerRun(
                count=layers,
                layer=Layer(
                    attention=GroupedQueryAttention(heads=32, kv_heads=4, head_dim=128),
                    feed_forward=MoeFeedForward(experts=experts, top_k=top_k, expert_size=768),
                ),
            ),
        ),
    )


LINK = LinkCurve(name="l", latency_s=0.0, bytes_per_s=1e9, origin=Origin.ASSUMED)


def node(name: str, *, dtypes: tuple[str, ...], capability: str, devices: int = 8) -> Node:
    gpu = Gpu.model_validate(
        {
            "name": f"gpu-{capability}",
            "vendor": "nvidia",
            "architecture": "a",
            "compute_capability": capability,
            "memory_bytes": 2**35,
            "memory_bytes_per_s": 1e12,
            "peak_flops": dict.fromkeys(dtypes, 1e14),
            "intra_link": "nvlink",
            "flash_attention": True,
            "source": "test",
        }
    )
    kind = DeviceType(name=gpu.name, gpu=gpu, memory_bytes=2**35, memory_origin=Origin.DATASHEET)
    return Node(
        name=name,
        group=name,
        device_type=kind,
        devices=tuple(range(devices)),
        intra=LINK,
        nic=LINK,
        nic_kind="infiniband",
        nic_count=1,
        fabric="f",
        zone="z",
        region="r",
        vendor="nvidia",
    )


AMPERE = node("a", dtypes=("fp32", "fp16", "bf16"), capability="8.0")
VOLTA = node("v", dtypes=("fp32", "fp16"), capability="7.0")


@given(st.integers(min_value=1, max_value=3000))
def test_divisors_are_all_divisors_in_order(number: int) -> None:
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]


def test_28_heads_with_4_kv_heads_allow_tp_1_2_4_only() -> None:
    # THU-KEG/AdaptThink#1: the thread forgot the KV heads.
    model = dense_model(
        layers=28, hidden=3584, heads=28, kv_heads=4, feed_forward=18944, vocab=152064
    )
    assert legal_tensor_parallel(model) == [1, 2, 4]
    with pytest.raises(ConfigurationError) as caught:
        check_tensor_parallel(model, 8)
    assert "28 attention heads" in caught.value.what
    assert "28 % 8 = 4" in caught.value.why
    assert caught.value.fix == "legal tensor_parallel: 1, 2, 4"
    check_tensor_parallel(model, 4)


def test_tp_must_also_cut_the_feed_forward() -> None:
    model = dense_model(layers=2, hidden=96, heads=12, kv_heads=12, feed_forward=130, vocab=100)
    assert legal_tensor_parallel(model) == [1, 2]


def test_expert_world_does_not_contain_tensor_parallel() -> None:
    # NVIDIA-NeMo/Megatron-Bridge#546: tp 4, ep 4, etp 1 on 4 devices is legal.
    model = moe_model(layers=48, experts=128, top_k=8)
    check_expert_parallel(
        model, expert_parallel=4, expert_tensor_parallel=1, pipeline_parallel=1, world=4
    )


def test_smallest_expert_world_is_named() -> None:
    # verl-project/verl#1467: etp 1 x ep 32 x pp 2 = 64.
    model = moe_model(layers=94, experts=128, top_k=8)
    with pytest.raises(InfeasibleError) as caught:
        check_expert_parallel(
            model, expert_parallel=32, expert_tensor_parallel=1, pipeline_parallel=2, world=32
        )
    assert "64" in caught.value.fix
    check_expert_parallel(
        model, expert_parallel=32, expert_tensor_parallel=1, pipeline_parallel=2, world=64
    )


def test_experts_must_be_shared_evenly_and_the_world_be_a_multiple() -> None:
    model = moe_model(layers=4, experts=12, top_k=2)
    assert legal_expert_parallel(model) == [1, 2, 3, 4, 6, 12]
    with pytest.raises(ConfigurationError, match="legal expert_parallel: 1, 2, 3, 4, 6, 12"):
        check_expert_parallel(
            model, expert_parallel=8, expert_tensor_parallel=1, pipeline_parallel=1, world=8
        )
    with pytest.raises(ConfigurationError, match="use 12, 18 devices"):
        check_expert_parallel(
            model, expert_parallel=6, expert_tensor_parallel=1, pipeline_parallel=1, world=16
        )
    dense = dense_model(layers=2, hidden=96, heads=12, kv_heads=12, feed_forward=130, vocab=100)
    with pytest.raises(ConfigurationError, match="no experts"):
        check_expert_parallel(
            dense, expert_parallel=2, expert_tensor_parallel=1, pipeline_parallel=1, world=2
        )


def test_batch_of_256_on_seven_devices_names_252_and_266() -> None:
    # OpenRLHF#346: the eighth device was out of service.
    with pytest.raises(InfeasibleError) as caught:
        check_batch(256, 2, 7)
    assert caught.value.exit_code is ExitCode.NO
    assert "252 (accumulation 18)" in caught.value.fix
    assert "266 (accumulation 19)" in caught.value.fix


@given(
    st.integers(min_value=1, max_value=4096),
    st.integers(min_value=1, max_value=64),
    st.integers(min_value=1, max_value=64),
)
def test_an_accepted_batch_is_exactly_mbs_dp_accumulation(batch: int, mbs: int, dp: int) -> None:
    try:
        accumulation = check_batch(batch, mbs, dp)
    except InfeasibleError:
        assert batch % (mbs * dp) != 0
    else:
        assert batch == mbs * dp * accumulation


def test_one_micro_batch_over_eight_stages_names_the_global_batch() -> None:
    # huggingface/nanotron#347: the user did not find the setting.
    with pytest.raises(InfeasibleError) as caught:
        check_pipeline(
            pipeline_parallel=8, global_batch=1, micro_batch_size=1, data_parallel=1, layers=16
        )
    assert "gradient accumulation" in caught.value.why
    assert "global batch of at least 8" in caught.value.fix
    check_pipeline(
        pipeline_parallel=8, global_batch=8, micro_batch_size=1, data_parallel=1, layers=16
    )


def test_a_pipeline_needs_layers_for_its_middle_stages() -> None:
    with pytest.raises(InfeasibleError, match="at most 6"):
        check_pipeline(
            pipeline_parallel=7, global_batch=64, micro_batch_size=1, data_parallel=1, layers=4
        )


def test_a_batch_of_8_in_3_micro_batches_is_refused_with_the_nearest() -> None:
    # pytorch/pytorch#126600: 3/3/2 sequences, the runtime used 3/3/3.
    with pytest.raises(ConfigurationError) as caught:
        check_micro_batch_count(8, 3)
    assert "8 % 3 = 2" in caught.value.why
    assert caught.value.fix == "2 or 4 micro-batches, or a local batch of 6 or 9"
    assert check_micro_batch_count(8, 4) == 2


def test_sequence_must_be_cut_into_two_chunks_a_context_rank() -> None:
    check_context_parallel(4096, 8)
    check_context_parallel(1001, 1)
    with pytest.raises(ConfigurationError, match="sequence length 992, 1008"):
        check_context_parallel(1001, 8)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "legal"),
    [(4, 8, True), (4, 4, True), (4, 3, False), (4, 5, False), (4, 6, False), (1, 8, False)],
)
def test_interleaving_needs_whole_groups(stages: int, micro_batches: int, legal: bool) -> None:
    assert interleaving_is_legal(stages, micro_batches) is legal
    if legal:
        check_interleaving(stages, micro_batches)
    else:
        with pytest.raises(ConfigurationError):
            check_interleaving(stages, micro_batches)


def test_a_wider_interleaving_group_may_end_with_a_full_pipeline() -> None:
    assert interleaving_is_legal(4, 13, group=8)
    assert not interleaving_is_legal(4, 11, group=8)


def test_layers_that_do_not_sum_up_are_refused() -> None:
    # NVIDIA/Megatron-LM#1304: 30 layers over 4 stages became 28.
    with pytest.raises(ConfigurationError, match="sum up to 28"):
        check_stage_layers([7, 7, 7, 7], 30)
    with pytest.raises(ConfigurationError, match="4 pipeline stages"):
        check_stage_layers([15, 15], 30, 4)
    with pytest.raises(ConfigurationError):
        check_stage_layers([31, -1], 30)
    check_stage_layers([7, 8, 8, 7], 30, 4)


def test_bf16_names_the_volta_nodes() -> None:
    with pytest.raises(InfeasibleError) as caught:
        check_precision([AMPERE, VOLTA], "bf16")
    assert caught.value.what == "bf16 cannot run on v (gpu-7.0)"
    assert "bf16 needs compute capability 8.0, gpu-7.0 has 7.0" in caught.value.why
    assert "auto" in caught.value.fix
    check_precision([AMPERE, VOLTA], "fp16")
    check_precision([AMPERE], "bf16")


@pytest.mark.parametrize(
    "wrong",
    [
        {"framework": "megatron", "zero_stage": 2},
        {"framework": "megatron", "offload": "optimizer+parameters"},
        {"framework": "deepspeed", "zero_stage": 2, "pipeline_parallel": 2},
        {"framework": "deepspeed", "virtual_stages": 2, "pipeline_parallel": 2},
        {"framework": "deepspeed", "zero_stage": 2, "offload": "optimizer+parameters"},
        {"framework": "deepspeed", "context_parallel": 2},
    ],
)
def test_what_a_framework_cannot_combine_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_framework(**wrong)  # type: ignore[arg-type]
    assert caught.value.fix


def test_what_a_framework_can_combine_is_accepted() -> None:
    check_framework("megatron", zero_stage=1, offload="optimizer", pipeline_parallel=4)
    check_framework("deepspeed", zero_stage=3, offload="optimizer+parameters")
    check_framework("deepspeed", zero_stage=1, pipeline_parallel=4)


HARDWARE = Hardware(name="h", nodes=(AMPERE, VOLTA))
MODEL = dense_model(layers=6, hidden=96, heads=12, kv_heads=12, feed_forward=384, vocab=100)


def configuration(
    *,
    layers: tuple[int, ...] = (4, 2),
    replicas: tuple[tuple[str, ...], ...] = (("a:0,1", "a:2,3"), ("v:0,1", "v:2,3")),
    micro_batches: int = 4,
    global_batch: int = 8,
    precision: str = "fp16",
) -> Configuration:
    def devices(text: str) -> tuple[DeviceId, ...]:
        name, indices = text.split(":")
        return tuple(DeviceId(name, int(index)) for index in indices.split(","))

    stages, first = [], 0
    for count, members in zip(layers, replicas, strict=True):
        stages.append(
            Stage(
                chunks=(LayerRange(first, count),),
                tensor_parallel=2,
                replicas=tuple(Replica(devices(member), micro_batches, 1) for member in members),
            )
        )
        first += count
    return Configuration(
        pipelines=(Pipeline(tuple(stages)),),
        micro_batch_size=1,
        global_batch=global_batch,
        sequence=128,
        precision=precision,  # type: ignore[arg-type]
    )


def test_a_sound_configuration_passes() -> None:
    check(configuration(), MODEL, HARDWARE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": (4, 3)}, "sum up to 7"),
        ({"global_batch": 9}, "8 sequences a step, not 9"),
        ({"precision": "bf16"}, "bf16 cannot run on v"),
        ({"replicas": (("a:0,1", "a:0,1"), ("v:0,1", "v:2,3"))}, "used twice"),
        ({"replicas": (("a:0,1", "a:2,9"), ("v:0,1", "v:2,3"))}, "a:9 is not usable"),
        ({"replicas": (("a:0", "a:2"), ("v:0,1", "v:2,3"))}, "a replica has 1 devices"),
        ({"replicas": (("a:0,1", "a:2,3"), ("v:0,1",))}, "read different batches"),
    ],
)
def test_a_broken_configuration_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigurationError, InfeasibleError), match=message):
        check(configuration(**change), MODEL, HARDWARE)  # type: ignore[arg-type]


def test_a_tensor_group_of_two_device_types_is_refused() -> None:
    mixed = configuration()
    stages = mixed.pipelines[0].stages
    replica = Replica((DeviceId("a", 0), DeviceId("v", 7)), 4, 1)
    first = Stage(stages[0].chunks, 2, (replica, stages[0].replicas[1]))
    wrong = Configuration(
        pipelines=(Pipeline((first, stages[1])),),
        micro_batch_size=1,
        global_batch=8,
        sequence=128,
        precision="fp16",
    )
    with pytest.raises(ConfigurationError, match=r"mixes gpu-7\.0, gpu-8\.0"):
        check(wrong, MODEL, HARDWARE)
