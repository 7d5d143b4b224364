"""Peak memory against runs that others measured and published."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from hetcli.perf.configuration import Recompute
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
    Norm,
    Positions,
)

PUBLISHED = Path(__file__).parents[2] / "published"
# The two A100 runs of BigScience whose neighbours (the same plan with a larger micro-batch, and the
# same row measured twice) contradict them, and Sailor's plan that needs 9 GB less than the same
# plan with more replicas.
CONTRADICTED = {"BLOOM-048", "BLOOM-090", "GPT-NEO/N8/N8_D2"}
# Died at about 68 GB by every neighbouring run (BLOOM-138 with more layers: 67 GB of 80).
UNEXPLAINED = {"BLOOM-144"}


def rows(name):
    lines = (PUBLISHED / name).read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def model_of(row):
    number = {key: int(value) for key, value in row.items() if value.isdigit()}
    gated, activation = bool(number["gated"]), row["activation"]
    if row["latent"]:
        query, kv, plain, rotary, value = map(int, row["latent"].split("/"))
        attention = LatentAttention(
            heads=number["heads"],
            query_rank=query or None,
            kv_rank=kv,
            head_dim_without_rope=plain,
            head_dim_rope=rotary,
            value_head_dim=value,
        )
    else:
        attention = GroupedQueryAttention(
            heads=number["heads"],
            kv_heads=number["kv_heads"],
            head_dim=number["head_dim"],
            qkv_bias=bool(number["bias"]),
            output_bias=bool(number["bias"]),
        )
    dense = experts = None
    if row["ffn"]:
        dense = DenseFeedForward(
            size=number["ffn"], gated=gated, bias=bool(number["bias"]), activation=activation
        )
    if row["experts"]:
        experts = MoeFeedForward(
            experts=number["experts"],
            top_k=number["top_k"],
            expert_size=number["expert_size"],
            shared_size=number["shared_size"],
            gated=gated,
            activation=activation,
        )
    first = number.get("dense_layers", 0 if experts else number["layers"])
    runs = ((first, dense), (number["layers"] - first, experts))
    table = number["sequence"] if row["positions"] == "learned" else 0
    return Model(
        name=row["id"],
        architecture="published",
        hidden_size=number["hidden"],
        vocab_size=number["vocab"],
        max_sequence=number["sequence"],
        layers=tuple(
            LayerRun(count=count, layer=Layer(attention=attention, feed_forward=block))
            for count, block in runs
            if count
        ),
        norm=Norm(kind=row["norm"], bias=row["norm"] == "layernorm"),
        tied_embeddings=bool(number["tied"]),
        positions=Positions(kind=row["positions"], table_size=table),
        prediction_layers=number["prediction_layers"],
    )


def configuration_of(build, row):
    stages = int(row["pipeline"])
    counts = [int(count) for count in row["split"].split("|")]
    return build.configuration(
        [counts[stage::stages] for stage in range(stages)],
        tensor=int(row["tensor"]),
        data=int(row["data"]),
        micro_batch=int(row["micro_batch"]),
        micro_batches=int(row["micro_batches"]),
        sequence=int(row["sequence"]),
        precision=row["precision"],
        recompute=Recompute(row["recompute"]),
        framework=row["framework"],
        zero_stage=int(row["zero"]),
        schedule=row["schedule"],
        attention=row["attention"],
        context_parallel=int(row["context"]),
        expert_parallel=int(row["expert"]),
        expert_tensor_parallel=int(row["expert_tensor"]),
        sequence_parallel=row["sequence_parallel"] == "1",
    )


def kinds_of(row):
    """What kinds of run a row stands for."""
    yield "experts" if row["experts"] else "dense"
    yield f"{row['gpu'].split('-')[0]}"
    yield row["attention"]
    for name in ("tensor", "pipeline", "context"):
        if int(row[name]) > 1:
            yield name
    if row["schedule"] == "interleaved":
        yield "interleaved"
    yield "distributed optimizer" if row["zero"] == "1" else "plain optimizer"
    yield "large" if int(row["hidden"]) >= 1024 else "small"


def test_peak_memory_of_megatron_runs(build):
    errors = defaultdict(list)
    for row in rows("megatron_memory.csv"):
        stages = int(row["pipeline"])
        predicted = build.allocated(
            model_of(row), configuration_of(build, row), stages - 1, row["gpu"]
        )
        error = abs(predicted / int(row["measured_bytes"]) - 1)
        for kind in ("all", *kinds_of(row)):
            errors[kind].append(error)
    assert len(errors["all"]) >= 90
    medians = {kind: statistics.median(each) for kind, each in errors.items()}
    assert all(median <= 0.05 for median in medians.values()), medians
    assert medians["all"] <= 0.03


def fullest(build, row):
    model, configuration = model_of(row), configuration_of(build, row)
    return max(
        sum(build.items(model, configuration, stage, row["gpu"]).values())
        for stage in range(len(configuration.stages))
    )


@pytest.mark.parametrize("source", ["chronicles-prequel.md", "sailor"])
def test_peak_memory_of_megatron_deepspeed_runs(build, source):
    errors = [
        abs(fullest(build, row) / measured - 1)
        for row in rows("deepspeed_memory.csv")
        if row["source"] == source
        and (measured := int(row["measured_bytes"]))
        and row["id"] not in CONTRADICTED
    ]
    assert len(errors) >= 19
    assert statistics.fmean(errors) <= 0.05


def test_sailors_mean_error_with_all_its_rows(build):
    errors = [
        abs(fullest(build, row) / int(row["measured_bytes"]) - 1)
        for row in rows("deepspeed_memory.csv")
        if row["source"] == "sailor"
    ]
    assert len(errors) == 20
    assert statistics.fmean(errors) <= 0.05


def test_no_run_is_predicted_to_fit_that_did_not(build):
    died = [
        row
        for row in rows("deepspeed_memory.csv")
        if row["measured_bytes"] == "0" and row["id"] not in UNEXPLAINED
    ]
    assert len(died) >= 5
    for row in died:
        capacity = build.hardware(row["gpu"]).nodes[0].device_type.memory_bytes
        assert fullest(build, row) > capacity, row["id"]


def test_runs_that_ran_are_predicted_to_fit(build):
    for row in rows("deepspeed_memory.csv"):
        if row["measured_bytes"] != "0":
            capacity = build.hardware(row["gpu"]).nodes[0].device_type.memory_bytes
            assert fullest(build, row) <= capacity, row["id"]
