"""What a row of a table of runs is read as: model, recipe, counter of its memory, outcome."""

from __future__ import annotations

import pytest

from hetcli.perf.validation.predict import fits, predict_rows, runs_of
from hetcli.perf.validation.runs import Run, run_of
from hetcli.perf.validation.table import Row

PLAIN = {
    "id": "r",
    "source": "my log",
    "year": "2025",
    "gpu": "A100-80GB-SXM",
    "gpus": "8",
    "framework": "Megatron-Core",
    "model": "gpt",
    "layers": "12",
    "hidden": "512",
    "heads": "8",
    "seq_len": "1024",
    "tp": "1",
    "pp": "1",
    "micro_batch": "4",
    "global_batch": "32",
    "dtype": "bf16",
    "measured_step_time_s": "0.5",
}
QUOTED = "transformer-impl=transformer_engine"


def row(**cells: str) -> Row:
    return Row(2, {**PLAIN, **cells})


def read(**cells: str) -> Run:
    return run_of(row(**cells))


def test_arguments_that_a_note_quotes_decide_the_model() -> None:
    plain = read(notes=QUOTED).model
    assert plain.tied_embeddings
    assert plain.vocab_size == 50257
    assert plain.positions.kind == "learned"
    quoted = read(
        notes=f"{QUOTED}; swiglu=True; position-embedding-type=rope; kv-channels=128; "
        "untie-embeddings-and-output-weights=True; mtp-num-layers=1"
    ).model
    assert not quoted.tied_embeddings
    assert quoted.positions.kind == "rope"
    assert quoted.prediction_layers == 1
    layer = quoted.layers[0].layer
    assert layer.attention.head_dim == 128  # type: ignore[union-attr]
    assert layer.feed_forward.gated  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("notes", "kernel"),
    [
        (QUOTED, "auto"),
        (f"{QUOTED}; unfused attention", "unfused"),
        ("transformer-impl=local", "unfused"),
        # Only the old container lacks a fused kernel that gives the same bits twice.
        (f"env=lts; deterministic mode (slow kernels); {QUOTED}", "unfused"),
        (f"env=dev; deterministic mode (slow kernels); {QUOTED}", "auto"),
    ],
)
def test_the_kernel_is_the_one_that_the_note_implies(notes: str, kernel: str) -> None:
    assert read(notes=notes).configuration.attention == kernel


def test_functional_tests_are_judged_by_memory_alone() -> None:
    run = read(
        notes=f"peak on the LAST rank, in GiB; {QUOTED}", measured_peak_mem_gb="2", pp="2", dp="4"
    )
    assert run.measured_s is None
    assert run.measured_peak_bytes == 2 * 2**30
    assert run.memory_of_last_stage
    assert read(measured_peak_mem_gb="2").measured_peak_bytes == 2e9


def test_options_that_change_what_is_held_are_not_guessed() -> None:
    with pytest.raises(ValueError, match="muon is not modelled"):
        read(model="gpt3_dist_muon", notes=QUOTED)
    with pytest.raises(ValueError, match="latent attention"):
        read(notes=f"{QUOTED}; multi-latent-attention=True")


def test_megatron_fsdp_is_megatron_that_shards_parameters() -> None:
    run = read(framework="Megatron-Bridge/Megatron-Core", zero_stage="fsdp")
    assert (run.configuration.framework, run.configuration.zero_stage) == ("megatron", 3)
    assert read(framework="PyTorch FSDP").configuration.framework == "fsdp"


def test_a_run_that_died_is_asked_whether_it_fits() -> None:
    large = {"layers": "64", "hidden": "8192", "heads": "64", "flags": "mem_only oom"}
    small = {"flags": "mem_only oom"}
    runs, skipped = runs_of([row(**large), row(**small)])
    assert not skipped
    results, _ = predict_rows(runs)
    assert [result.out_of_memory for result in results] == [True, True]
    assert [result.predicted_fits for result in results] == [False, True]
    assert all(result.predicted_s is None for result in results)


def test_a_run_that_cannot_be_scheduled_is_skipped_with_the_reason() -> None:
    odd = row(pp="4", dp="2", vpp="3", micro_batch="1", global_batch="10")
    results, skipped = predict_rows(runs_of([odd])[0])
    assert results == []
    assert "interleaved" in skipped[0].reason


def test_deepspeed_sends_parts_and_sailor_the_whole() -> None:
    assert read(framework="DeepSpeed").configuration.partitioned_boundaries
    sailor = read(framework="Sailor (Megatron-DeepSpeed)", source="Sailor (SOSP25)")
    assert not sailor.configuration.partitioned_boundaries


def test_what_a_note_says_lies_in_the_hosts_memory() -> None:
    def offload(notes: str) -> str:
        return read(
            framework="Megatron-DeepSpeed", zero_stage="zero3", notes=notes
        ).configuration.offload

    assert offload("With full cpu offload") == "optimizer+parameters"
    assert offload("Opt Offl=Y; Par Offl=N") == "optimizer"
    assert offload("Opt Offl=N; Par Offl=N") == "none"


@pytest.mark.parametrize(("year", "release"), [("2023", ""), ("2024", "2.2"), ("", "2.2")])
def test_the_year_tells_which_attention_fsdp_ran(year: str, release: str) -> None:
    assert read(framework="PyTorch FSDP", year=year).configuration.framework_release == release


def test_a_fused_loss_needs_less_memory() -> None:
    cells = {"framework": "LLM Foundry / Composer PyTorch FSDP", "gpus": "1", "global_batch": "256"}
    large = cells | {"micro_batch": "256", "vocab": "50368", "recompute": "full"}
    assert fits(read(**large))
    assert not fits(read(**large | {"framework": "PyTorch FSDP"}))


def test_expert_ranks_that_cannot_be_formed_are_skipped() -> None:
    # Eight devices in one stage, where 16 would hold an expert each.
    runs, skipped = runs_of([row(num_experts="16", topk="2", ep="16")])
    assert runs == []
    assert skipped[0].reason == "ep 16 divides not both 16 experts and 8 ranks"
