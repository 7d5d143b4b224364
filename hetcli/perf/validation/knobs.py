"""The terms of the efficiency table that training runs can correct, each by one factor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetcli.catalog.efficiency import Efficiency, EfficiencyTable, FrameworkCost, Term
from hetcli.catalog.gpu import Dtype, Gpu
from hetcli.catalog.hardware import find_gpu
from hetcli.perf.validation.runs import Run
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import MoeFeedForward

__all__ = ["MIN_ROWS", "Knob", "depends", "family", "knobs", "scaled"]

# No term is fitted on fewer runs.
MIN_ROWS = 10


@dataclass(frozen=True, slots=True)
class Knob:
    """One factor: where it applies, and the standard deviation of its logarithm beforehand."""

    name: str
    term: str
    where: frozenset[str]
    deviation: float
    since: str | None = None


def family(gpu: Gpu) -> str:
    """GPUs that share their factors: those of one compute capability."""
    return gpu.compute_capability or gpu.architecture


# (term, which frameworks or, with an empty tuple, every GPU family on its own, deviation). Wide
# where nothing else is known of a term, narrow where a benchmark of the kernel stands behind it.
_TERMS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("sustained-16", (), 0.15),
    ("sustained-8", (), 0.15),
    ("attention", (), 0.15),
    ("routed", ("megatron",), 0.3),
    ("routed@26.06", ("megatron",), 0.3),
    ("elementwise", ("megatron", "deepspeed"), 0.1),
    ("elementwise", ("fsdp",), 0.4),
    ("weight_bytes", ("fsdp",), 0.5),
    ("host_layer_s", ("megatron",), 0.4),
    ("host_layer_s", ("deepspeed", "fsdp"), 0.5),
    ("tensor_exposed", ("megatron",), 0.4),
    ("attention_after_ampere", ("fsdp",), 0.3),
    ("gather", ("deepspeed",), 1.0),
    ("gather_exposed", ("deepspeed",), 0.5),
    ("gather_exposed", ("fsdp",), 1.0),
)
_DTYPES: Mapping[str, tuple[Dtype, ...]] = {
    "sustained-16": ("fp16", "bf16"),
    "sustained-8": ("fp8",),
}


def knobs(runs: Sequence[Run]) -> list[Knob]:
    """The factors that these runs can decide: those that enough of them depend on."""
    families = sorted({family(run.hardware.nodes[0].device_type.gpu) for run in runs})
    found = []
    for term, frameworks, deviation in _TERMS:
        places = [frozenset(frameworks)] if frameworks else [frozenset({name}) for name in families]
        for where in places:
            what, _, since = term.partition("@")
            label = f"{term} {'+'.join(sorted(where))}"
            knob = Knob(label, what, where, deviation, since or None)
            if sum(depends(run, knob) for run in runs) >= MIN_ROWS:
                found.append(knob)
    return found


def depends(run: Run, knob: Knob) -> bool:
    """Whether the knob's term is one of those that the run's time is made of."""
    configuration = run.configuration
    gpu = run.hardware.nodes[0].device_type.gpu
    if family(gpu) not in knob.where and configuration.framework not in knob.where:
        return False
    stage = configuration.stages[0]
    fused = configuration.attention != "unfused" and gpu.flash_attention
    match knob.term:
        case "sustained-16":
            return configuration.precision in ("bf16", "fp16")
        case "sustained-8":
            return configuration.precision == "fp8"
        case "attention":
            return fused
        case "routed":
            moe = any(
                isinstance(layers.layer.feed_forward, MoeFeedForward) for layers in run.model.layers
            )
            release = configuration.framework_release or ""
            return moe and (knob.since is None or release >= knob.since)
        case "tensor_exposed":
            return stage.tensor_parallel > 1 and configuration.overlap_tensor_parallel
        case "attention_after_ampere":
            return fused and gpu.supports("fp8")
        case "gather" | "gather_exposed":
            return configuration.zero_stage == 3
        case _:
            return True


def scaled(
    table: EfficiencyTable, logs: Mapping[Knob, float], rows: Mapping[str, int]
) -> EfficiencyTable:
    """The table with every knob's term multiplied by the exponential of its `logs` entry.

    `rows` says by knob name how many runs decided it; without an entry the origin stays.
    """
    devices = [_scaled_device(entry, logs, rows) for entry in table.devices]
    frameworks = [_scaled_framework(entry, logs, rows) for entry in table.frameworks]
    return EfficiencyTable(devices=tuple(devices), frameworks=tuple(frameworks))


def _fitted(term: Term, log: float, rows: int) -> Term:
    value = term.value * math.exp(log)
    if not rows:
        return term.model_copy(update={"value": value})
    source = f"{rows} training runs"
    return Term(value=value, origin=Origin.FITTED, rows=rows, source=source)


def _scaled_device(
    entry: Efficiency, logs: Mapping[Knob, float], rows: Mapping[str, int]
) -> Efficiency:
    own = family(find_gpu(entry.name))
    update: dict[str, object] = {}
    sustained = dict(entry.sustained)
    for knob, log in logs.items():
        if own not in knob.where:
            continue
        count = rows.get(knob.name, 0)
        if knob.term in _DTYPES:
            for dtype in _DTYPES[knob.term]:
                if dtype in sustained:
                    sustained[dtype] = _fitted(sustained[dtype], log, count)
        elif knob.term == "attention":
            update["attention"] = _fitted(entry.attention, log, count)
            update["attention_backward"] = _fitted(entry.attention_backward, log, count)
    return entry.model_copy(update={**update, "sustained": sustained})


def _scaled_framework(
    entry: FrameworkCost, logs: Mapping[Knob, float], rows: Mapping[str, int]
) -> FrameworkCost:
    # A knob of a later release turns its entry beyond what the knob for all releases does.
    update: dict[str, Term] = {}
    for knob, log in logs.items():
        if entry.name in knob.where and knob.since in (None, entry.since):
            before = update.get(knob.term, getattr(entry, knob.term))
            update[knob.term] = _fitted(before, log, rows.get(knob.name, 0))
    return entry.model_copy(update=update)
