"""Ways to make a target refuse a plan that it runs, and words of the rule that it then names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plans import cluster, group, with_stage_tensor

from hetcli.spec.model.architecture import (
    Adapters,
    GroupedQueryAttention,
    Layer,
    MoeFeedForward,
    Positions,
)
from hetcli.spec.plan import Plan, PlanDevice


@dataclass(frozen=True)
class Break:
    """A change that a target refuses, where it applies, and words of the rule."""

    name: str
    applies: Callable[[Plan], bool]
    change: Callable[[Plan], Plan]
    rule: str

    def __repr__(self) -> str:
        return self.name


def degrees(**change: Any) -> Callable[[Plan], Plan]:
    return lambda plan: plan.model_copy(
        update={"parallelism": plan.parallelism.model_copy(update=change)}
    )


def model(**change: Any) -> Callable[[Plan], Plan]:
    def changed(plan: Plan) -> Plan:
        other = plan.inputs.model.model_copy(update=change)
        return plan.model_copy(update={"inputs": plan.inputs.model_copy(update={"model": other})})

    return changed


def layer(**change: Any) -> Callable[[Plan], Plan]:
    """A change of the attention or the feed-forward of every layer."""

    def changed(plan: Plan) -> Plan:
        runs = tuple(
            run.model_copy(update={"layer": _changed_layer(run.layer, change)})
            for run in plan.inputs.model.layers
        )
        return model(layers=runs)(plan)

    return changed


def _changed_layer(old: Layer, change: dict[str, Any]) -> Layer:
    parts = {
        part: mixer.model_copy(update={k: v for k, v in change.items() if hasattr(mixer, k)})
        for part in ("attention", "feed_forward")
        if (mixer := getattr(old, part)) is not None
    }
    return old.model_copy(update=parts)


def cards(gpu: str) -> Callable[[Plan], Plan]:
    """The same nodes with other cards."""

    def changed(plan: Plan) -> Plan:
        old = plan.inputs.cluster
        where = cluster(*(group(n, gpu, gpus=g.gpus) for g in old.nodes for n in g.node_names))
        inputs = plan.inputs.model_copy(update={"cluster": where})
        return plan.model_copy(update={"inputs": inputs})

    return changed


def _old_flash(plan: Plan) -> Plan:
    return cards("V100-SXM2-32GB")(degrees(attention="flash", precision="fp16")(plan))


def recomputed(mode: str, layers: int | None) -> Callable[[Plan], Plan]:
    def changed(plan: Plan) -> Plan:
        change = {"recompute": mode, "recompute_layers": layers}
        stages = tuple(stage.model_copy(update=change) for stage in plan.stages)
        return plan.model_copy(update={"stages": stages})

    return changed


def sequence(tokens: int) -> Callable[[Plan], Plan]:
    def changed(plan: Plan) -> Plan:
        workload = plan.inputs.workload.model_copy(update={"sequence": tokens})
        return plan.model_copy(
            update={"inputs": plan.inputs.model_copy(update={"workload": workload})}
        )

    return changed


def _more_micro_batches(plan: Plan) -> Plan:
    """The first replica takes sequences from the second one, in every stage."""
    stages = []
    for stage in plan.stages:
        one, two, *rest = stage.replicas
        replicas = (
            one.model_copy(update={"micro_batches": one.micro_batches + 1}),
            two.model_copy(update={"micro_batches": two.micro_batches - 1}),
            *rest,
        )
        stages.append(stage.model_copy(update={"replicas": replicas}))
    return plan.model_copy(update={"stages": tuple(stages)})


def _swapped_devices(plan: Plan) -> Plan:
    """A device of the first node and one of the last change places."""
    first, last = plan.stages[0].devices[0], plan.stages[-1].devices[-1]
    swap = {(d.node, d.index): o for d, o in ((first, last), (last, first))}

    def moved(devices: tuple[PlanDevice, ...]) -> tuple[PlanDevice, ...]:
        return tuple(swap.get((d.node, d.index), d) for d in devices)

    stages = tuple(
        stage.model_copy(
            update={
                "devices": moved(stage.devices),
                "replicas": tuple(
                    r.model_copy(update={"devices": moved(r.devices)}) for r in stage.replicas
                ),
            }
        )
        for stage in plan.stages
    )
    return plan.model_copy(update={"stages": stages})


def _one_more(plan: Plan) -> Plan:
    """Micro-batches that are no multiple of the stages."""
    count = plan.parallelism.gradient_accumulation + 1
    size = plan.parallelism.micro_batch_size
    batch = count * size * (plan.parallelism.data_parallel or 1)
    workload = plan.inputs.workload.model_copy(update={"global_batch": batch})
    stages = tuple(
        stage.model_copy(
            update={
                "replicas": tuple(
                    r.model_copy(update={"micro_batches": count}) for r in stage.replicas
                )
            }
        )
        for stage in plan.stages
    )
    return degrees(gradient_accumulation=count, global_batch=batch)(
        plan.model_copy(
            update={
                "stages": stages,
                "inputs": plan.inputs.model_copy(update={"workload": workload}),
            }
        )
    )


def _wide(plan: Plan) -> bool:
    return plan.parallelism.tensor_parallel > 1 and plan.parallelism.pipeline_parallel > 1


def _several(plan: Plan) -> bool:
    data = min(len(stage.replicas) for stage in plan.stages)
    one_size = len({r.micro_batch_size for stage in plan.stages for r in stage.replicas}) == 1
    return data > 1 and plan.parallelism.gradient_accumulation > 1 and one_size


def _unlike_ends(plan: Plan) -> bool:
    return plan.stages[0].tensor_parallel != plan.stages[-1].tensor_parallel


def _always(_: Plan) -> bool:
    return True


def _has(plan: Plan, kind: type) -> bool:
    return any(
        isinstance(part, kind)
        for run in plan.inputs.model.layers
        for part in (run.layer.attention, run.layer.feed_forward)
    )


def _split(plan: Plan) -> bool:
    return min(stage.tensor_parallel for stage in plan.stages) > 1


def _pipelined(plan: Plan) -> bool:
    return plan.parallelism.pipeline_parallel > 1


def _interleaved(plan: Plan) -> bool:
    return plan.parallelism.virtual_stages > 1


def _alone(plan: Plan) -> bool:
    """No rule of attention or of tensor groups speaks before the one that is meant."""
    return plan.parallelism.context_parallel == 1


def _over_nodes(plan: Plan) -> bool:
    devices = plan.stages[0].devices[0], plan.stages[-1].devices[-1]
    held = [
        sum(d.node == node for stage in plan.stages for d in stage.devices)
        for node in (device.node for device in devices)
    ]
    return devices[0].node != devices[1].node and min(held) > 1 and not _split(plan)


COMMON = (
    Break("schedule", _pipelined, degrees(schedule="zb-h1"), "1F1B"),
    Break(
        "bf16 before ampere",
        lambda plan: plan.parallelism.precision == "bf16" and _alone(plan),
        cards("V100-SXM2-32GB"),
        "bf16 needs compute capability 8.0",
    ),
)
# What mainline Megatron-LM, and so FlagScale, has no option for.
MODELS = (
    Break("scaled embedding", _always, model(embedding_scale=64.0), "no option scales it"),
    Break("adapters", _always, model(adapters=Adapters(rank=8)), "trains whole models"),
    Break("capped logits", _always, model(logit_softcap=30.0), "no option caps them"),
    Break("no final norm", _always, model(final_norm=False), "always ends in one"),
    Break("alibi", _always, model(positions=Positions(kind="alibi")), "learned, rotary, YaRN"),
    Break(
        "prediction without rotary positions",
        lambda plan: plan.inputs.model.positions.kind == "learned",
        model(prediction_layers=1),
        "--mtp-num-layers needs rotary positions",
    ),
    Break(
        "softmax with a load-balancing bias",
        lambda plan: _has(plan, MoeFeedForward),
        layer(score_function="softmax", expert_bias=True),
        "it needs sigmoid scores",
    ),
    Break(
        "a short position table",
        lambda plan: plan.inputs.model.positions.kind == "learned",
        model(positions=Positions(kind="learned", table_size=512)),
        "position table has 512 rows",
    ),
    Break(
        "norm of projections",
        lambda plan: _has(plan, GroupedQueryAttention),
        layer(query_key_norm="projection"),
        "--qk-layernorm is a norm over each head",
    ),
    Break("zero 2", _always, degrees(zero_stage=2), "shards optimizer states only"),
    Break(
        "parameters on the host",
        _always,
        degrees(offload="optimizer+parameters"),
        "optimizer states only",
    ),
)
SPLITS = (
    Break(
        "experts whose tokens are whole on every rank",
        lambda plan: _split(plan) and _has(plan, MoeFeedForward),
        degrees(sequence_parallel=False),
        "every rank routes every token",
    ),
    Break(
        "heads",
        lambda plan: _split(plan) and _has(plan, GroupedQueryAttention),
        layer(heads=9, kv_heads=9),
        "9 % ",
    ),
    Break(
        "experts",
        lambda plan: plan.parallelism.expert_parallel > 1,
        layer(experts=15, top_k=2, groups=None, top_groups=None),
        "every rank holds equally many",
    ),
    Break(
        "experts of a dense model",
        lambda plan: not _has(plan, MoeFeedForward),
        degrees(expert_parallel=2),
        "the model has no experts",
    ),
)
MEGATRON = (
    *COMMON,
    *MODELS,
    *SPLITS,
    Break(
        "tensor parallel a stage",
        _wide,
        lambda plan: with_stage_tensor(plan, 0, plan.parallelism.tensor_parallel // 2),
        "--tensor-model-parallel-size is one number",
    ),
    Break("micro-batches", _several, _more_micro_batches, "--micro-batch-size is one number"),
    Break("interleaving", _interleaved, _one_more, "the schedule fails"),
    Break(
        "gather",
        lambda plan: plan.parallelism.zero_stage == 0,
        degrees(overlap_param_gather=True),
        "--overlap-param-gather needs",
    ),
    Break("placement", _over_nodes, _swapped_devices, "there is no third order"),
    Break(
        "sequence",
        lambda plan: plan.parallelism.context_parallel > 1,
        sequence(1022),
        "two chunks",
    ),
    Break(
        "context parallel before ampere",
        lambda plan: plan.parallelism.context_parallel > 1,
        cards("V100-SXM2-32GB"),
        "the unfused attention needs whole sequences",
    ),
    Break("flash before ampere", _alone, _old_flash, "neither flash nor cuDNN"),
)
DEEPSPEED = (
    *COMMON,
    Break(
        "tensor parallel a stage",
        _wide,
        lambda plan: with_stage_tensor(plan, 0, plan.parallelism.tensor_parallel // 2),
        "one mesh of pipeline x data x tensor",
    ),
    Break("micro-batches", _several, _more_micro_batches, "every rank accumulates over as many"),
    Break("prediction", _always, model(prediction_layers=1), "next token only"),
    Break("zero 2 with a pipeline", _pipelined, degrees(zero_stage=2), "ZeRO-2 and ZeRO-3"),
    Break(
        "fp8",
        _always,
        lambda plan: cards("H100-SXM5-80GB")(degrees(precision="fp8")(plan)),
        "bf16, fp16 or fp32",
    ),
    Break(
        "parameters on the host",
        lambda plan: plan.parallelism.zero_stage < 3,
        degrees(offload="optimizer+parameters"),
        "only ZeRO-3",
    ),
    Break("sequence parallel", _split, degrees(sequence_parallel=True), "whole sequences on every"),
    Break(
        "heads",
        lambda plan: _split(plan) and _has(plan, GroupedQueryAttention),
        layer(heads=9, kv_heads=9),
        "9 % ",
    ),
    Break(
        "expert parallel",
        lambda plan: _has(plan, MoeFeedForward),
        degrees(expert_parallel=2),
        "has neither",
    ),
    Break(
        "slices of experts",
        lambda plan: _split(plan) and _has(plan, MoeFeedForward),
        degrees(expert_tensor_parallel=1),
        "splits experts as it splits the other layers",
    ),
    Break("placement", _over_nodes, _swapped_devices, "ranks are stage by stage"),
)
FLAGSCALE = (
    *COMMON,
    *MODELS,
    *SPLITS,
    Break("micro-batches", _several, _more_micro_batches, "one number a mesh"),
    Break("tied embeddings", _unlike_ends, model(tied_embeddings=True), "share the embedding"),
    Break(
        "prediction layers",
        lambda plan: _unlike_ends(plan) and plan.inputs.model.positions.kind == "rope",
        model(prediction_layers=1),
        "share the embedding",
    ),
    Break("placement", _over_nodes, _swapped_devices, "sorts hosts by device type"),
)
TORCHTITAN = (
    *COMMON,
    Break("another model", _always, model(vocab_size=128000), "registry"),
    Break("tied embeddings", _always, model(tied_embeddings=True), "registry"),
    Break("fp16", _always, degrees(precision="fp16"), "bf16 and fp32"),
    Break("offload", _always, degrees(offload="optimizer"), "was not planned"),
    Break("micro-batches", _several, _more_micro_batches, "every rank has one batch size"),
    Break(
        "tensor parallel a stage",
        _wide,
        lambda plan: with_stage_tensor(plan, 0, plan.parallelism.tensor_parallel // 2),
        "ranks form one mesh",
    ),
    Break("interleaving", _interleaved, _one_more, "rounds of other sizes"),
    Break("selective", _always, recomputed("selective", None), "keeps other activations"),
    Break("some layers", _always, recomputed("full", 3), "holds for all layers"),
    Break(
        "sequence",
        lambda plan: (
            plan.parallelism.context_parallel > 1 and not plan.parallelism.sequence_parallel
        ),
        sequence(1022),
        "two chunks",
    ),
    Break("placement", _over_nodes, _swapped_devices, "stage by stage"),
)
BREAKS = {
    "megatron": MEGATRON,
    "deepspeed": DEEPSPEED,
    "flagscale": FLAGSCALE,
    "torchtitan": TORCHTITAN,
}
