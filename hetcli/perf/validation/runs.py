"""A row of a table as the predictor takes it: model, configuration, hardware, seconds."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from hetcli.catalog.hardware import find_gpu, find_link
from hetcli.perf.configuration import (
    Configuration,
    DeviceId,
    Framework,
    LayerRange,
    Offload,
    Pipeline,
    Recompute,
    Replica,
    ScheduleName,
    Stage,
    TrainingPrecision,
)
from hetcli.perf.flops import model_flops
from hetcli.perf.hardware import Hardware
from hetcli.perf.resolve import resolve
from hetcli.perf.validation.models import arguments, model_of
from hetcli.perf.validation.table import Row
from hetcli.spec.cluster import Cluster, IntraLink, Nic, NodeGroup
from hetcli.spec.model.architecture import Model
from hetcli.spec.workload import Pretrain
from hetcli.units import format_rate_exact

__all__ = ["Run", "run_of"]

# GPUs of one NVLink domain of a GB200 or GB300 NVL72 rack that recipes use: a power of two.
RACK_DEVICES = 64
_RACK = ("GB200", "GB300")
# NICs of the reference systems, for rows that name none: DGX A100, DGX H100, DGX B200 data sheets,
# GB200 and GB300 NVL72 compute trays, p3.16xlarge. (bytes/s of one NIC, NICs a GPU)
_REFERENCE_NICS = {
    "ampere": (25e9, 1.0),
    "hopper": (50e9, 1.0),
    "blackwell": (50e9, 1.0),
    "volta": (12.5e9, 0.5),
    "turing": (6.25e9, 0.25),
    "cdna4": (50e9, 1.0),
}
_ENTRIES_BEFORE_LAYERS = 2
# GPUs of a node where a row says nothing: those of a DGX or HGX system.
NODE_DEVICES = 8
# Bytes/s of one Gb/s.
_GBPS = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Run:
    """One measured training run."""

    id: str
    source: str
    group: str
    gpu: str
    framework: str
    noisy: bool
    model: Model
    workload: Pretrain
    configuration: Configuration
    hardware: Hardware
    # None where the row says nothing of the time, or not of usual kernels.
    measured_s: float | None
    measured_peak_bytes: float | None
    # The configuration that the peak holds for, and whether it is what the driver shows of the
    # device (else what the framework's allocator counts).
    memory_configuration: Configuration
    memory_of_device: bool
    # Whether the peak is that of the last stage alone, and whether the run died of it.
    memory_of_last_stage: bool = False
    out_of_memory: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for runs that must be predicted equally."""
        return self.model, self.configuration, self.hardware


def run_of(row: Row) -> Run:
    """Everything that a prediction of the row needs. Raises ValueError with what is missing."""
    unknown = _UNMODELLED.search(f"{row.text('model')} {row.text('notes')}")
    if unknown and arguments(row):
        raise ValueError(f"the option {unknown[0]} is not modelled")
    model = model_of(row)
    hardware = _hardware(row)
    configuration = _configuration(row, model, hardware)
    peak, notes = row.number("measured_peak_mem_gb"), row.text("notes") or ""
    unit = 2**30 if re.search(r"in GiB|peak mem GiB", notes) else 1e9
    gpu = "+".join(dict.fromkeys(node.device_type.gpu.name for node in hardware.nodes))
    devices = hardware.device_count
    return Run(
        id=row.id,
        source=row.source,
        group=f"{row.text('model')} on {devices} {gpu}",
        gpu=gpu,
        framework=configuration.framework,
        noisy="noisy" in row.flags,
        model=model,
        workload=Pretrain(global_batch=configuration.global_batch, sequence=configuration.sequence),
        configuration=configuration,
        hardware=hardware,
        measured_s=_measured(row, configuration, model, devices),
        measured_peak_bytes=None if peak is None else peak * unit,
        memory_configuration=_memory_configuration(row, configuration),
        memory_of_device=row.died or _SHOWN_BY_DRIVER.search(row.source) is not None,
        memory_of_last_stage="on the LAST rank" in notes,
        out_of_memory=row.died,
    )


# Options of Megatron-LM's functional tests that change what is held and are not modelled.
_UNMODELLED = re.compile(
    r"muon|cross_entropy_loss_fusion|defer_embedding_wgrad|multi_dist_optimizer_instances"
    r"|megatron-fsdp|nemotron3|offloading|optim_grads_params",
    re.IGNORECASE,
)
# Sources whose peaks contain the context and NCCL's buffers; the others log the allocator's.
_SHOWN_BY_DRIVER = re.compile(r"Sailor|BigScience")


def _memory_configuration(row: Row, configuration: Configuration) -> Configuration:
    """Sailor's peaks are those of 16-bit weights and activations beside its fp32 arithmetic."""
    if "Sailor" in row.source:
        return replace(configuration, precision="fp16")
    return configuration


def _measured(row: Row, configuration: Configuration, model: Model, devices: int) -> float | None:
    """Seconds of a step: as stated, else from tokens/s, else from FLOP/s a device.

    None for runs that died, and for functional tests, whose kernels are chosen to be repeatable.
    """
    if row.died or "mem_only" in row.flags or arguments(row):
        return None
    stated = row.number("measured_step_time_s")
    if stated:
        return stated
    tokens = row.number("measured_tokens_per_s_per_gpu")
    if tokens:
        return configuration.global_batch * configuration.sequence / tokens / devices
    tflops = row.number("measured_tflops_per_gpu")
    if not tflops:
        raise ValueError("no measured time, throughput or FLOP/s")
    # Forward and backward are three passes; a recomputed forward is a fourth.
    counts_recompute = "tflops_hfu" in row.flags and row.text("recompute") == "full"
    work = model_flops(model, configuration.sequence) * (4 / 3 if counts_recompute else 1)
    return configuration.global_batch * work / (tflops * 1e12 * devices)


_NODES = re.compile(r"(\d+)x ([\w.-]+) \((\d+)x ([\w-]+)\)")


def _mixed(row: Row, nodes: Sequence[tuple[str, str, str, str]]) -> Hardware:
    """Nodes as `3x p3.8xlarge (4x V100-16GB) + 1x g4dn.12xlarge (4x T4-16GB)` names them."""
    inter, intra = row.text("interconnect_inter") or "", row.text("interconnect_intra") or ""
    groups = []
    for count, name, gpus, gpu in nodes:
        family = name.split(".")[0]
        rate = _named_rate(inter, family)
        if rate is None:
            raise ValueError(f"no network rate of {name} is given")
        interface = {"kind": "ethernet", "rate": format_rate_exact(rate)}
        # Script values of PCIe are nominal; NVLink is better known from the catalogue.
        inside = _named_rate(intra, family) if find_gpu(gpu).intra_link.startswith("pcie") else None
        groups.append(
            NodeGroup(
                name=family,
                count=int(count),
                gpu=gpu,
                gpus=int(gpus),
                intra_link=_pcie(inside) if inside else None,
                nics=(Nic.model_validate(interface),),
                fabric="network",
            )
        )
    return resolve(Cluster(name="measured", nodes=tuple(groups)))


def _named_rate(text: str, name: str) -> float | None:
    """Bytes/s from `p3.8xlarge 10 Gb/s, g4dn 50 Gb/s` for one of the names."""
    found = re.search(rf"{re.escape(name)}[\w.]* (\d+) Gb/s", text)
    return float(found[1]) * _GBPS if found else None


def _pcie(rate: float) -> IntraLink:
    """A PCIe link of a stated, nominal rate: collectives reach the share that its kind reaches."""
    reached = rate * find_link("pcie3").efficiency
    return IntraLink.model_validate({"kind": "pcie3", "rate": format_rate_exact(reached)})


def _hardware(row: Row) -> Hardware:
    nodes = _NODES.findall(row.text("cluster") or "")
    if nodes:
        return _mixed(row, nodes)
    name = re.sub(r"\s*\(.*\)", "", row.text("gpu") or "")
    devices = row.need("gpus")
    per_node = row.integer("gpus_per_node") or NODE_DEVICES
    rack = find_gpu(name).name in _RACK
    if rack:
        per_node = RACK_DEVICES
    network = row.text("interconnect_inter") or ""
    inside = re.search(r"PCIe \(script: (\d+) Gb/s\)", row.text("interconnect_intra") or "")
    return _cluster(
        name, devices, min(per_node, devices), network, float(inside[1]) * _GBPS if inside else 0
    )


@lru_cache(maxsize=1024)
def _cluster(gpu: str, devices: int, per_node: int, network: str, intra_rate: float) -> Hardware:
    if devices % per_node:
        per_node = next(size for size in range(per_node, 0, -1) if devices % size == 0)
    rate, count = _nics(network, find_gpu(gpu).architecture, per_node)
    kind = "infiniband" if re.search(r"IB|InfiniBand|HDR|Omni|NDR|XDR", network) else "roce"
    if network and re.search(r"Ethernet|^\d+ Gb/s$", network) and kind == "roce":
        kind = "ethernet"
    if "Slingshot" in network:
        kind = "slingshot"
    interface = {"kind": kind, "rate": format_rate_exact(rate), "count": count}
    group = NodeGroup(
        name="node",
        count=devices // per_node,
        gpu=gpu,
        gpus=per_node,
        intra_link=_pcie(intra_rate) if intra_rate else None,
        nics=(Nic.model_validate(interface),),
    )
    return resolve(Cluster(name="measured", nodes=(group,)))


def _nics(network: str, architecture: str, per_node: int) -> tuple[float, int]:
    """Bytes/s of one NIC and NICs a node, as stated or of the reference system."""
    whole = re.search(r"(\d+) Gb/s per node", network) or re.search(
        r"inter_node_bandwidth=(\d+)", network
    )
    if whole:
        count = min(per_node, NODE_DEVICES)
        return float(whole[1]) * _GBPS / count, count
    # "Storage: 2x ..., Compute: 8x ConnectX-7 IB NDR 400Gb/s": the network of the computation.
    fastest = max(
        (
            (int(found[1]) * float(found[2]), int(found[1]))
            for part in network.split(",")
            if not re.search(r"Storage|Management|Ethernet", part)
            and (found := re.search(r"(\d+)\s*x .*?(\d+) ?Gb/s", part, re.IGNORECASE))
        ),
        default=None,
    )
    if fastest:
        total, count = fastest
        # Racks are made of trays of four devices, each with its own NICs.
        trays = per_node // 4 if per_node > 8 else 1
        return total / count * _GBPS, count * trays
    if "Omni-Path" in network:
        # Jean Zay's nodes: four links of 100 Gb/s.
        return 12.5e9, 4
    if "Slingshot" in network:
        return 25e9, 4
    alone = re.fullmatch(r"(\d+) Gb/s", network)
    if alone:
        return float(alone[1]) * _GBPS, 1
    rate, share = _REFERENCE_NICS.get(architecture, (50e9, 1.0))
    return rate, max(1, round(per_node * share))


def _precision(row: Row) -> TrainingPrecision:
    text = (row.text("dtype") or "").lower()
    if text in ("bf16", "fp16", "fp32"):
        return text  # type: ignore[return-value]
    if "fp8" in text:
        return "fp8"
    if not text:
        source = row.source
        # Sailor moves fp32; its layer profiles are those of tf32 where a card has it.
        if "Sailor" in source:
            return "fp32"
        if "MLPerf" in source:
            return "fp8"
        return "fp16"
    raise ValueError(f"precision {text} is not modelled")


def _framework(row: Row) -> tuple[Framework, int]:
    """Framework and ZeRO stage."""
    name = (row.text("framework") or "").lower()
    zero = (row.text("zero_stage") or "").lower()
    stage = 0
    if "3" in zero or "full" in zero:
        stage = 3
    elif "2" in zero or "grad-op" in zero:
        stage = 2
    elif "1" in zero or "distributed" in zero:
        stage = 1
    if "fsdp" in zero and re.search(r"bridge|core", name):
        # Megatron-FSDP shards like PyTorch's, around Megatron-Core's own layers.
        return "megatron", 3
    if "fsdp" in name or "fsdp" in zero:
        return "fsdp", stage or 3
    if "deepspeed" in name or "sailor" in name:
        return "deepspeed", stage
    modern = re.search(r"nemo|bridge|core|nvidia release|pytorch", name)
    return "megatron", 1 if modern and not zero else stage


def _offload(row: Row) -> Offload:
    """What a note says to lie in the host's memory."""
    notes = row.text("notes") or ""
    if "full cpu offload" in notes or "Par Offl=Y" in notes:
        return "optimizer+parameters"
    return "optimizer" if "Opt Offl=Y" in notes else "none"


def _release(row: Row, framework: Framework) -> str:
    """NeMo's container release; what names none is older than any that is told apart.

    Of PyTorch the year tells whether it was 2.2 (January 2024), whose attention is another.
    """
    if framework == "fsdp":
        # A row without a year is taken to be recent.
        return "2.2" if (row.integer("year") or 2025) >= 2024 else ""
    found = re.search(
        r"NeMo (\d\d\.\d\d(?:\.\d\d)?)|Release (\d\d\.\d\d)", row.text("framework") or ""
    )
    return next((each for each in found.groups() if each), "") if found else ""


def _recompute(row: Row) -> Recompute:
    text = row.text("recompute")
    if text in ("none", "selective", "full"):
        return Recompute(text)  # type: ignore[arg-type]
    return Recompute("none")


def _boundaries(row: Row, layers: int, stages: int) -> list[int]:
    """Decoder layers of each stage: as the row says, else as even as possible."""
    text = (row.text("notes") or "") + (row.text("plan") or "")
    found = re.search(r"boundaries\"?:? (\[[\d, ]+\])", text)
    if found:
        # Entries of DeepSpeed's PipelineModule: embedding and a lambda stand before the layers.
        cuts = [min(max(cut - _ENTRIES_BEFORE_LAYERS, 0), layers) for cut in json.loads(found[1])]
        return [b - a for a, b in itertools.pairwise(cuts)]
    found = re.search(r"layers_per_stage[^=:]*[=:] ?(\[[\d, ]+\])", text)
    if found:
        # Embedding and head count as layers there.
        counts = list(json.loads(found[1]))
        counts[0] -= 1
        counts[-1] -= 1
        if sum(counts) == layers:
            return counts
    whole, rest = divmod(layers, stages)
    return [whole + (1 if index < rest else 0) for index in range(stages)]


def _chunks(counts: Sequence[int], virtual: int) -> list[tuple[LayerRange, ...]]:
    """Ranges of each stage; with virtual stages layers go round the pipeline `virtual` times."""
    stages = len(counts)
    if virtual <= 1:
        ranges: list[tuple[LayerRange, ...]] = []
        first = 0
        for count in counts:
            ranges.append((LayerRange(first, count),))
            first += count
        return ranges
    total = sum(counts)
    whole, rest = divmod(total, stages * virtual)
    found: list[list[LayerRange]] = [[] for _ in range(stages)]
    first = 0
    for index in range(stages * virtual):
        count = whole + (1 if index < rest else 0)
        found[index % stages].append(LayerRange(first, count))
        first += count
    return [tuple(each) for each in found]


def _noted_virtual(row: Row, stages: int) -> int:
    """Virtual stages that only the note of a row gives ("VP listed as NA here (12 in ...)")."""
    found = re.search(r"VP listed as NA here \((\d+) in", row.text("notes") or "")
    return int(found[1]) if found and stages > 1 else 1


def _configuration(row: Row, model: Model, hardware: Hardware) -> Configuration:
    tp, pp, cp = row.need("tp"), row.need("pp"), row.integer("cp") or 1
    devices = [device for node in hardware.nodes for device in node.device_ids]
    dp = row.integer("dp") or len(devices) // (tp * pp * cp)
    if tp * pp * cp * dp != len(devices):
        raise ValueError(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is not {len(devices)} devices")
    batch, micro = row.need("global_batch"), row.need("micro_batch")
    if batch % (micro * dp):
        raise ValueError(f"batch {batch} is not micro-batch {micro} x dp {dp} x a whole number")
    ep = row.integer("ep") or 1
    experts = row.integer("num_experts") or 0
    ranks = len(devices) // pp
    if ep > 1 and (ranks % ep or experts % ep):
        raise ValueError(f"ep {ep} divides not both {experts} experts and {ranks} ranks")
    virtual = row.integer("vpp") or _noted_virtual(row, pp)
    framework, zero = _framework(row)
    ranges = _chunks(_boundaries(row, model.layer_count, pp), virtual if pp > 1 else 1)
    recompute = _recompute(row)
    size = tp * cp
    stages = []
    for index in range(pp):
        own = devices[index * dp * size : (index + 1) * dp * size]
        replicas = tuple(
            Replica(tuple(own[at * size : (at + 1) * size]), batch // (micro * dp), micro)
            for at in range(dp)
        )
        stages.append(Stage(ranges[index], tp, replicas, recompute))
    schedule: ScheduleName = "interleaved" if virtual > 1 and pp > 1 else "1f1b"
    modern = framework == "fsdp" or (framework == "megatron" and zero in (1, 3))
    sequence_parallel = row.text("sequence_parallel")
    etp = re.search(r"(?:ETP|expert-tensor-parallel-size)=(\d+)", row.text("notes") or "")
    return Configuration(
        pipelines=(Pipeline(tuple(stages)),),
        micro_batch_size=micro,
        global_batch=batch,
        sequence=row.need("seq_len"),
        precision=_precision(row),
        framework=framework,
        framework_release=_release(row, framework),
        context_parallel=cp,
        expert_parallel=ep,
        expert_tensor_parallel=int(etp[1]) if etp else 1,
        sequence_parallel=tp > 1
        and (sequence_parallel == "y" or (modern and not sequence_parallel)),
        zero_stage=zero,
        offload=_offload(row),
        schedule=schedule,
        allow_tf32="Sailor" in row.source,
        # Stages may differ in their tensor-parallel degree there, so that one rank sends all.
        partitioned_boundaries="Sailor" not in row.source,
        sends_mask="Megatron-LM v1.1.5 + DeepSpeed" in (row.text("framework") or ""),
        # The configuration of AMP's runs: `fp32_allreduce` (its examples/ds_config.json).
        gradient_precision="fp32" if "AMP" in row.source else None,
        # DeepSpeed's pipeline engine and the Megatron-LM of 2021 reduce after the last backward.
        overlap_grad_reduce=modern,
        overlap_param_gather=modern,
        # NVIDIA's recipes overlap them (NeMo's tp_comm_overlap); earlier published runs do not.
        overlap_tensor_parallel=modern and framework == "megatron",
        attention=_attention(row),
        # MosaicML's models take their loss from flash-attention (llmfoundry/models/mpt, loss_fn).
        fused_loss="LLM Foundry" in (row.text("framework") or ""),
    )


def _attention(row: Row) -> Literal["auto", "flash", "unfused"]:
    """As noted; frameworks of 2022 and before ran the scores as matrices in HBM."""
    notes = row.text("notes") or ""
    # The long-term-support container has no fused kernel that gives the same bits twice.
    repeatable = "env=lts" in notes and "deterministic mode" in notes
    if repeatable or "unfused attention" in notes or "transformer-impl=local" in notes:
        return "unfused"
    year = row.integer("year") or 2025
    name = (row.text("framework") or "").lower()
    old = year <= 2022 or "sailor" in name or "vtrain" in row.source.lower()
    return "unfused" if old else "auto"


def device_ids(hardware: Hardware) -> list[DeviceId]:
    """All devices in rank order."""
    return [device for node in hardware.nodes for device in node.device_ids]
