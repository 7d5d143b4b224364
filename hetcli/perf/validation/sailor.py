"""Sailor's measured runs with its layer table and link fits (arXiv 2504.17096, artifact)."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hetcli.catalog.hardware import find_gpu
from hetcli.errors import SpecError
from hetcli.perf.compute.measured import LayerKind, MeasuredLayers, MeasuredPoint
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    LayerRange,
    Pipeline,
    Replica,
    Stage,
)
from hetcli.perf.hardware import DeviceType, Hardware, LinkCurve, Node
from hetcli.perf.validation.runs import Run
from hetcli.perf.validation.table import SkippedRow
from hetcli.spec.base import Origin
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    LayerRun,
    Model,
    Norm,
    Positions,
)
from hetcli.spec.workload import Pretrain

__all__ = ["LinkFits", "is_sailor", "read_layer_profile", "read_links", "sailor_runs"]

LayerTables = Mapping[tuple[str, str], MeasuredLayers]

# Every profile and run of the artifact has this length.
SEQUENCE = 2048
_KINDS: Mapping[str, LayerKind] = {
    "embed": "embedding",
    "transformer": "layer",
    "head": "head",
}
# Models of the runs: folder name -> layer table's name, layers, hidden size, heads, vocabulary, as
# in the models' public config.json (facebook/opt-350m, EleutherAI/gpt-neo-2.7B) and in the table of
# parameters that comes with the runs.
_MODELS = {
    "OPT-350": ("OPT-350", 24, 1024, 16, 50272),
    "GPT-NEO": ("GPT-Neo-2.7", 32, 2560, 32, 50257),
}
# Its "RTX-2080" has 11 GB, which is the RTX 2080 Ti's memory.
_GPUS = {"RTX-2080": "RTX-2080-Ti"}
# A link fit is sampled at these message sizes: a quarter of a power of two apart, 1 KiB to 16 GiB.
_SAMPLES = tuple(2 ** (exponent / 4) for exponent in range(40, 137))
# What a fit says of messages that are too small for it is at least this share of its peak.
_FLOOR = 1e-3


def is_sailor(columns: Sequence[str]) -> bool:
    """Whether a table is Sailor's `measured.csv`."""
    return {"file", "gpus", "iter_s", "layers"} <= set(columns)


def read_layer_profile(path: Path) -> LayerTables:
    """Layer tables by (model, GPU) from a CSV.

    Its columns are model, gpu, mbs, tp, layer, fwd_ms, bwd_ms and update_ms. Raises SpecError when
    it has others.
    """
    tables: dict[tuple[str, str], dict[Any, list[MeasuredPoint]]] = {}
    for line, row in enumerate(csv.DictReader(io.StringIO(path.read_text("utf-8"))), start=2):
        try:
            key = (_KINDS[row["layer"]], int(row["tp"]), "fp32")
            point = MeasuredPoint(
                sequence=SEQUENCE,
                micro_batch_size=int(row["mbs"]),
                forward_s=float(row["fwd_ms"]) / 1e3,
                backward_s=float(row["bwd_ms"]) / 1e3,
                update_s=float(row["update_ms"]) / 1e3,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise SpecError(
                f"{path}:{line}: {error}",
                why="a layer table needs model, gpu, mbs, tp, layer, fwd_ms, bwd_ms and update_ms",
                fix="give one row for each layer kind (embed, transformer, head)",
            ) from error
        tables.setdefault((row["model"], row["gpu"]), {}).setdefault(key, []).append(point)
    return {
        key: MeasuredLayers({kind: _monotone(rows) for kind, rows in points.items()})
        for key, points in tables.items()
    }


def _monotone(rows: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """A smaller micro-batch takes no longer than a larger one: what says so was disturbed."""
    found: list[MeasuredPoint] = []
    for point in sorted(rows, key=lambda each: -each.micro_batch_size):
        if found:
            point = replace(
                point,
                forward_s=min(point.forward_s, found[-1].forward_s),
                backward_s=min(point.backward_s, found[-1].backward_s),
            )
        found.append(point)
    return found


@dataclass(frozen=True)
class LinkFits:
    """Fitted links: between nodes by (GPU type, GPUs a node), inside a node by the same."""

    inter: Mapping[tuple[str, int], LinkCurve]
    intra: Mapping[tuple[str, int], LinkCurve]


def read_links(path: Path) -> LinkFits:
    """Link fits from JSON: {"inter" | "intra": {type: {GPUs: [[c0, c1, c2], peak]}}}.

    GB/s = c0 x^2 + c1 x + c2 with x = log2(message in MB), no more than `peak` bytes/s. Raises
    SpecError when the file says something else.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        levels = {
            level: {
                (gpu, int(count)): _curve(f"{level} {gpu} x{count}", fit[0], float(fit[1]))
                for gpu, counts in document[level].items()
                for count, fit in counts.items()
            }
            for level in ("inter", "intra")
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise SpecError(
            f"{path}: {error}",
            why="link fits are read from {inter, intra: {type: {GPUs: [[c0, c1, c2], peak]}}}",
            fix="give Sailor's network_coeffs_all_homo.json or a file of that form",
        ) from error
    return LinkFits(levels["inter"], levels["intra"])


def _curve(name: str, coefficients: Sequence[float], peak: float) -> LinkCurve:
    c0, c1, c2 = coefficients
    points = []
    for nbytes in _SAMPLES:
        x = math.log2(nbytes / 1e6)
        rate = (c0 * x * x + c1 * x + c2) * 1e9
        points.append((nbytes, min(max(rate, _FLOOR * peak), peak)))
    return LinkCurve(name, 0.0, peak, Origin.FITTED, shared=True, points=tuple(points))


def sailor_runs(
    text: str, layers: LayerTables, links: LinkFits
) -> tuple[list[Run], list[SkippedRow]]:
    """Runs of `measured.csv`. A row whose note calls it an error or suspect is skipped."""
    runs: list[Run] = []
    skipped: list[SkippedRow] = []
    for row in csv.DictReader(io.StringIO(text)):
        note = row.get("note") or ""
        if "skip" in note or "suspect" in note:
            skipped.append(SkippedRow(row["file"], "Sailor", note))
            continue
        runs.append(_run(row, layers, links))
    return runs, skipped


def _model(name: str, layers: int, hidden: int, heads: int, vocabulary: int) -> Model:
    layer = Layer(
        attention=GroupedQueryAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        # Both models' public configurations: OPT (arXiv 2205.01068, table 1) and GPT-Neo.
        feed_forward=DenseFeedForward(size=4 * hidden, gated=False),
    )
    return Model(
        name=name,
        architecture="measured",
        hidden_size=hidden,
        vocab_size=vocabulary,
        max_sequence=SEQUENCE,
        layers=(LayerRun(count=layers, layer=layer),),
        norm=Norm(kind="layernorm", bias=True),
        positions=Positions(kind="learned", table_size=SEQUENCE),
    )


def _run(row: Mapping[str, str], layers: LayerTables, links: LinkFits) -> Run:
    family = row["file"].split("/")[1]
    name, count, hidden, heads, vocabulary = _MODELS.get(family, _MODELS["OPT-350"])
    model = _model(name, count, hidden, heads, vocabulary)
    pp, dp, tp = int(row["pp"]), int(row["dp"]), int(row["tp"])
    micro, batch = int(row["mbs"]), int(row["gbs"])
    # Stages are separated by `|`, replicas of a stage by `+`; one name alone holds for all.
    stages = [stage.split("+") for stage in row["gpus"].split("|")]
    if len(stages) == 1:
        stages = stages * pp
    types: dict[str, DeviceType] = {}
    nodes: list[Node] = []
    parts = []
    # Embedding and head count as layers in the table.
    counts = [int(each) for each in json.loads(row["layers"])]
    counts[0] -= 1
    counts[-1] -= 1
    first = 0
    for index in range(pp):
        replicas = []
        for member in range(dp):
            gpu = stages[index][member % len(stages[index])]
            node = _node(f"s{index}r{member}", gpu, tp, types, layers, name, links)
            nodes.append(node)
            devices = tuple(DeviceId(node.name, device) for device in range(tp))
            replicas.append(Replica(devices, batch // (micro * dp), micro))
        parts.append(Stage((LayerRange(first, counts[index]),), tp, tuple(replicas)))
        first += counts[index]
    configuration = Configuration(
        pipelines=(Pipeline(tuple(parts)),),
        micro_batch_size=micro,
        global_batch=batch,
        sequence=SEQUENCE,
        precision="fp32",
        framework="deepspeed",
        zero_stage=0,
        allow_tf32=True,
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        # Stages may differ in their tensor-parallel degree there, so that one rank sends all.
        partitioned_boundaries=False,
        attention="unfused",
    )
    hardware = Hardware("Sailor", tuple(nodes))
    gpus = "+".join(dict.fromkeys(gpu for stage in stages for gpu in stage))
    return Run(
        id=row["file"],
        source="Sailor",
        group=f"{name} on {gpus}",
        gpu=gpus,
        framework="deepspeed",
        noisy=False,
        model=model,
        workload=Pretrain(global_batch=batch, sequence=SEQUENCE),
        configuration=configuration,
        hardware=hardware,
        measured_s=float(row["iter_s"]),
        measured_peak_bytes=float(row["max_mem_B"]) if row.get("max_mem_B") else None,
        # Its peaks are those of 16-bit weights and activations beside its fp32 arithmetic.
        memory_configuration=replace(configuration, precision="fp16"),
        memory_of_device=True,
    )


def _node(
    name: str,
    gpu: str,
    count: int,
    types: dict[str, DeviceType],
    layers: LayerTables,
    model: str,
    links: LinkFits,
) -> Node:
    if gpu not in types:
        entry = find_gpu(_GPUS.get(gpu, gpu))
        types[gpu] = DeviceType(
            name=entry.name,
            gpu=entry,
            memory_bytes=entry.memory_bytes,
            memory_origin=entry.origin,
            measured=layers.get((model, gpu)),
        )
    inter = links.inter.get((gpu, count)) or links.inter[(gpu, 1)]
    intra = links.intra.get((gpu, count)) or inter
    # As many NICs as the fit for all GPUs of the node is faster than that for one.
    nics = max(1, round(inter.bytes_per_s / links.inter[(gpu, 1)].bytes_per_s))
    return Node(
        name=name,
        group=gpu,
        device_type=types[gpu],
        devices=tuple(range(count)),
        intra=intra,
        nic=inter,
        nic_kind="ethernet",
        nic_count=nics,
        fabric="",
        zone="",
        region="",
        vendor="nvidia",
    )
