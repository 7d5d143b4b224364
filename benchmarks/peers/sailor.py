"""Sailor's problems and its formulas (SOSP'25, arXiv 2504.17096; artifact eth-easl/sailor).

Layer times, links and formulas are its own, so that plans are compared on its terms: 1F1B, payloads
of fp32, links as fitted, a node's ranks behind one NIC.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hetcli.catalog.hardware import find_gpu
from hetcli.perf.hardware import DeviceType, Hardware, LinkCurve, Node
from hetcli.perf.validation.sailor import read_layer_profile
from hetcli.search.families import Problem
from hetcli.search.found import Found
from hetcli.search.grid import Grid
from hetcli.search.layout import Degrees, Layout
from hetcli.search.options import PlanOptions
from hetcli.search.pools import pools
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

__all__ = ["SailorData", "Score", "search"]

MODEL = "OPT-350"
SEQUENCE, BATCH = 2048, 1024
GPUS_PER_NODE = 4
FP32_BYTES = 4
BUCKET_BYTES = 500e6
# Dollars for one GPU and hour, and for one GB between zones and between regions.
PRICES = {"A100-40": 3.67, "V100-16": 2.86}
ZONE_EGRESS, REGION_EGRESS = 0.01, 0.02
# A fitted link is sampled at a quarter of a power of two, 1 KiB to 16 GiB.
SAMPLES = tuple(2 ** (exponent / 4) for exponent in range(40, 137))

Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Score:
    """What a plan takes by Sailor's formulas: seconds and dollars a step."""

    seconds: float
    dollars: float

    @property
    def steps_per_s(self) -> float:
        """Throughput."""
        return 1 / self.seconds


@dataclass(frozen=True)
class SailorData:
    """The folder with layer_profile.csv, model_layers.csv and the link fits."""

    folder: Path

    @cached_property
    def layers(self) -> Mapping[tuple[str, int, int, str], tuple[float, float, float]]:
        """Forward, backward and update seconds by (GPU, micro-batch, tp, layer)."""
        rows = csv.DictReader((self.folder / "layer_profile.csv").open(encoding="utf-8"))
        return {
            (row["gpu"], int(row["mbs"]), int(row["tp"]), row["layer"]): (
                float(row["fwd_ms"]) / 1e3,
                float(row["bwd_ms"]) / 1e3,
                float(row["update_ms"]) / 1e3,
            )
            for row in rows
            if row["model"] == MODEL
        }

    @cached_property
    def sizes(self) -> Mapping[tuple[int, str], tuple[int, int]]:
        """Parameters and elements of the boundary activation by (tp, layer)."""
        rows = csv.DictReader((self.folder / "model_layers.csv").open(encoding="utf-8"))
        return {
            (int(row["tp"]), row["layer"]): (int(row["params"]), int(row["boundary_activation"]))
            for row in rows
            if row["model"] == MODEL
        }

    @cached_property
    def _links(self) -> Mapping[str, dict[str, dict[str, dict[str, dict[str, dict[str, list]]]]]]:  # type: ignore[type-arg]
        found = json.loads((self.folder / "multizone_bandwidths_het.json").read_text("utf-8"))
        assert isinstance(found, dict)
        return found

    def fit(self, one: Place, other: Place) -> Sequence[float]:
        """The coefficients of the link between nodes of two (zone, GPU)."""
        count = str(GPUS_PER_NODE)
        fits = self._links[one[0]][one[1]][count][other[0]][other[1]][count]
        return [float(each) for each in fits[0]]

    def seconds(self, nbytes: float, one: Place, other: Place) -> float:
        """Seconds of one message between two places."""
        return nbytes / 1e9 / _rate(nbytes, self.fit(one, other))

    def hardware(self, counts: Mapping[Place, int]) -> Hardware:
        """So many GPUs at each place, with measured layers and fitted links."""
        tables = read_layer_profile(self.folder / "layer_profile.csv")
        inside = json.loads((self.folder / "intra_node_bandwidths.json").read_text("utf-8"))
        kinds = {gpu: _device_type(gpu, tables[(MODEL, gpu)]) for _, gpu in counts}
        links = {
            tuple(sorted(("/".join(one), "/".join(other)))): _curve(self.fit(one, other))
            for one in counts
            for other in counts
        }
        nodes = []
        for (zone, gpu), count in counts.items():
            intra = _curve([float(each) for each in inside[gpu][str(GPUS_PER_NODE)][0]])
            nodes += [
                Node(
                    name=f"{zone}-{gpu}-{index:04d}",
                    group=f"{zone}/{gpu}",
                    device_type=kinds[gpu],
                    devices=tuple(range(GPUS_PER_NODE)),
                    intra=intra,
                    nic=_curve(self.fit((zone, gpu), (zone, gpu))),
                    nic_kind="ethernet",
                    nic_count=1,
                    fabric=f"{zone}/{gpu}",
                    zone=zone,
                    region=_region(zone),
                    vendor="nvidia",
                    price_per_device_hour=PRICES[gpu],
                )
                for index in range(count // GPUS_PER_NODE)
            ]
        zones = {zone for zone, _ in counts}
        egress = {
            (a, b): (ZONE_EGRESS if _region(a) == _region(b) else REGION_EGRESS) / 1e9
            for a in zones
            for b in zones
            if a < b
        }
        return Hardware(
            "sailor", tuple(nodes), place_links={(a, b): link for (a, b), link in links.items()},
            egress_per_byte=egress,
        )  # fmt: skip

    def score(self, layout: Layout, *, copies: bool = False) -> Score | None:
        """What the formulas say of a plan; None for what the tables do not hold.

        With `copies` every replica of a node sends its own gradients through the NIC.
        """
        degrees = layout.degrees
        stages = [_place(pool.node) for pool, count in layout.runs for _ in range(count)]
        kinds = _kinds(layout)
        if any(
            (gpu, degrees.micro_batch_size, degrees.tensor, kind) not in self.layers
            for (_, gpu), held in zip(stages, kinds, strict=True)
            for kind in held
        ):
            return None
        compute, update, sizes = [], [], []
        for (_, gpu), held in zip(stages, kinds, strict=True):
            times = [
                self.layers[(gpu, degrees.micro_batch_size, degrees.tensor, kind)] for kind in held
            ]
            compute.append(sum(each[0] + each[1] for each in times))
            update.append(max(each[2] for each in times))
            sizes.append(sum(self.sizes[(degrees.tensor, kind)][0] for kind in held))
        payload = FP32_BYTES * degrees.micro_batch_size * self.sizes[(degrees.tensor, "embed")][1]
        sends = [self.seconds(payload, a, b) for a, b in itertools.pairwise(stages)]
        transfer = [
            (sends[at] if at < len(sends) else 0.0) + (sends[at - 1] if at else 0.0)
            for at in range(len(stages))
        ]
        micro_batches = math.ceil(BATCH / (degrees.micro_batch_size * degrees.data))
        both = [a + b for a, b in zip(compute, transfer, strict=True)]
        pipeline = (micro_batches - 1) * max(both) + sum(both) + max(update)
        step = pipeline + max(
            self._reduce(size, degrees.data, place, _ranks(degrees, copies=copies))
            for size, place in zip(sizes, stages, strict=True)
        )
        devices = [PRICES[gpu] * degrees.devices_per_stage for _, gpu in stages]
        egress = sum(
            _egress(a, b) * 2 * payload * micro_batches * degrees.data / 1e9
            for a, b in itertools.pairwise(stages)
        )
        return Score(step, sum(devices) * step / 3600 + egress)

    def _reduce(self, parameters: int, data: int, place: Place, ranks: int) -> float:
        """The ring all-reduce of a stage, in buckets; `ranks` of a node share its NIC."""
        if data == 1:
            return 0.0
        left, seconds = float(parameters * FP32_BYTES * ranks), 0.0
        while left > 0:
            bucket = min(left, BUCKET_BYTES)
            seconds += 2 * (data - 1) * self.seconds(bucket / data, place, place)
            left -= bucket
        return seconds


def search(
    data: SailorData,
    counts: Mapping[Place, int],
    *,
    objective: str = "throughput",
    min_steps_per_s: float | None = None,
    max_cost_per_step: float | None = None,
) -> Found:
    """What the search finds with Sailor's layer times and links."""
    hardware = data.hardware(counts)
    workload = Pretrain.model_validate(
        {
            "global_batch": BATCH,
            "sequence": SEQUENCE,
            "precision": "fp32",
            "attention": "unfused",
            "objective": objective,
        }
    )
    options = PlanOptions(
        target="deepspeed",
        zero_stage=0,
        overlap_grad_reduce=False,
        min_steps_per_s=min_steps_per_s,
        max_cost_per_step=max_cost_per_step,
    )
    return Grid(Problem(_model(), workload, hardware, pools(hardware), options)).run()


def _model() -> Model:
    layer = Layer(
        attention=GroupedQueryAttention(heads=16, kv_heads=16, head_dim=64),
        feed_forward=DenseFeedForward(size=4096, gated=False),
    )
    return Model(
        name="OPT-350M",
        architecture="measured",
        hidden_size=1024,
        vocab_size=50272,
        max_sequence=SEQUENCE,
        layers=(LayerRun(count=24, layer=layer),),
        norm=Norm(kind="layernorm", bias=True),
        positions=Positions(kind="learned", table_size=SEQUENCE),
    )


def _device_type(gpu: str, measured: object) -> DeviceType:
    entry = find_gpu(gpu)
    return DeviceType(
        entry.name,
        entry,
        entry.memory_bytes,
        entry.origin,
        measured=measured,  # type: ignore[arg-type]
    )


def _rate(nbytes: float, fit: Sequence[float]) -> float:
    """GB/s of a message; a message too small for the fit has the rate of one of 1 MB at worst."""
    x = math.log2(nbytes / 1e6)
    rate = fit[0] * x * x + fit[1] * x + fit[2]
    return rate if rate > 0 else fit[2]


def _curve(fit: Sequence[float]) -> LinkCurve:
    points = tuple((nbytes, _rate(nbytes, fit) * 1e9) for nbytes in SAMPLES)
    return LinkCurve(
        "fitted", 0.0, max(rate for _, rate in points), Origin.FITTED, shared=True, points=points
    )


def _ranks(degrees: Degrees, *, copies: bool) -> int:
    """Ranks of one stage on a node that send something of their own."""
    return min(GPUS_PER_NODE, degrees.devices_per_stage) if copies else degrees.tensor


def _region(zone: str) -> str:
    return zone.rsplit("-", 1)[0]


def _place(node: Node) -> Place:
    zone, gpu = node.group.split("/")
    return zone, gpu


def _egress(one: Place, other: Place) -> float:
    if one[0] == other[0]:
        return 0.0
    return ZONE_EGRESS if _region(one[0]) == _region(other[0]) else REGION_EGRESS


def _kinds(layout: Layout) -> list[list[str]]:
    """The kinds of layers of each stage; embedding and head are layers there."""
    held = [["transformer"] * count for count in layout.layers]
    held[0].insert(0, "embed")
    held[-1].append("head")
    return held
