"""What is measured on a node, in which shapes and for how long: pure lists, nothing is run here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hetcli.probe.tournament import group_sizes
from hetcli.probe.wire import (
    HostCopyJob,
    Job,
    LayerJob,
    MatmulJob,
    MemoryJob,
    NodeFacts,
    OptimizerJob,
)
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    Layer,
    Model,
)
from hetcli.spec.profile import DeviceInventory, LinkOperation, Profile

__all__ = [
    "Effort",
    "GroupStep",
    "Level",
    "Step",
    "compute_steps",
    "intra_steps",
    "is_measured",
]

Level = Literal["quick", "normal", "full"]
Precision = Literal["fp32", "fp16", "bf16"]

MIB: Final = 2**20


@dataclass(frozen=True)
class Effort:
    """How long a level measures: `compute_s` a node, `link_s` a group of ranks; and how far.

    `sizes` are the messages of links.
    """

    compute_s: float
    link_s: float
    sizes: tuple[int, ...]

    @staticmethod
    def of(level: Level, *, processor: bool) -> Effort:
        """The effort of a level. NCCL's messages go further than gloo's, which are slower."""
        most = {"quick": 16, "normal": 64, "full": 256}[level]
        largest = (16 if processor else most) * MIB
        sizes = tuple(size for size in (4**power * 1024 for power in range(10)) if size <= largest)
        seconds = {"quick": (20.0, 2.0), "normal": (60.0, 6.0), "full": (600.0, 20.0)}[level]
        return Effort(*seconds, sizes)


@dataclass(frozen=True)
class Step:
    """One job of one rank; `weight` is its share of the node's time.

    The job's `seconds` are a placeholder until its turn comes.
    """

    rank: int
    device: int
    job: Job
    weight: float
    label: str


@dataclass(frozen=True)
class GroupStep:
    """One operation over ranks of one or more nodes: `members` are (node position, rank)."""

    operation: LinkOperation
    members: tuple[tuple[int, int], ...]
    label: str


# (m, k, n) of a transformer's products at growing sizes: m is tokens, k and n multiples of a hidden
# size, so that the sweep covers what a plan will ask for when no model is named.
_GPU_SHAPES: Final = tuple(
    (tokens, hidden, factor * hidden)
    for hidden in (1024, 2048, 4096, 8192)
    for tokens in (2048, 8192)
    for factor in (1, 4)
)
_CPU_SHAPES: Final = ((256, 256, 1024), (512, 512, 512), (1024, 1024, 1024), (512, 1024, 4096))
# Stand-ins where no model is named: (hidden size, heads, feed-forward size).
_GPU_LAYER: Final = (4096, 32, 11008)
_CPU_LAYER: Final = (256, 4, 1024)


def dtypes(device: DeviceInventory) -> tuple[Precision, ...]:
    """What the device computes in: bf16 from compute capability 8.0 on (CUDA C guide, 16.1)."""
    if device.kind == "cpu":
        return ("fp32", "bf16")
    capability = tuple(int(part) for part in (device.compute_capability or "0.0").split("."))
    return ("fp32", "fp16", "bf16") if capability >= (8, 0) else ("fp32", "fp16")


def _training_dtype(device: DeviceInventory) -> Precision:
    return "fp32" if device.kind == "cpu" else dtypes(device)[-1]


def compute_steps(facts: NodeFacts, level: Level, model: Model | None = None) -> tuple[Step, ...]:
    """The compute probes of a node, device by device.

    With a `model` its own products and layers are measured; quick takes the fewest shapes. `full`
    adds micro-batches, sequences and tensor parallel degrees.
    """
    usable = [device for device in facts.devices if device.usable]
    return tuple(
        Step(rank, device.index, job, weight, label)
        for rank, device in enumerate(usable)
        for job, weight, label in _device_jobs(device, level, model)
    )


def _device_jobs(
    device: DeviceInventory, level: Level, model: Model | None
) -> Iterator[tuple[Job, float, str]]:
    processor = device.kind == "cpu"
    memory = 256 * MIB if processor else 1024 * MIB
    yield MemoryJob(nbytes=memory, seconds=1), 1.0, "memory bandwidth"
    if not processor:
        for direction in ("to_device", "to_host"):
            job = HostCopyJob(direction=direction, nbytes=256 * MIB, seconds=1)
            yield job, 0.5, f"copy {direction.replace('_', ' ')}"
    kinds = dtypes(device) if level != "quick" or processor else (_training_dtype(device),)
    shapes = _shapes(device, level, model)
    for (m, k, n), dtype in itertools.product(shapes, kinds):
        yield (
            MatmulJob(dtype=dtype, m=m, n=n, k=k, seconds=1),
            4.0 / (len(shapes) * len(kinds)),
            f"matmul {dtype} {m} x {k} x {n}",
        )
    layers = list(_layers(device, level, model))
    for layer in layers:
        shape = f"tp {layer.tensor_parallel}, mbs {layer.micro_batch_size}, seq {layer.sequence}"
        yield layer, 4.0 / len(layers), f"layer {layer.dtype} {shape}"
    parameters = 10_000_000 if processor else 100_000_000
    yield OptimizerJob(parameters=parameters, seconds=1), 0.5, "optimizer step"


def _shapes(
    device: DeviceInventory, level: Level, model: Model | None
) -> tuple[tuple[int, int, int], ...]:
    if model is None:
        shapes = _CPU_SHAPES if device.kind == "cpu" else _GPU_SHAPES
        return shapes[1::4] if level == "quick" and device.kind != "cpu" else shapes
    tokens = {"quick": (1,), "normal": (1, 4), "full": (1, 2, 4, 8)}[level]
    made = [
        (count * model.max_sequence if model.max_sequence <= 8192 else count * 8192, k, n)
        for count in tokens
        for layer in _distinct(model)
        for k, n in _products(layer, model.hidden_size)
    ]
    made += [
        (
            model.max_sequence if model.max_sequence <= 8192 else 8192,
            model.hidden_size,
            model.vocab_size,
        )
    ]
    return tuple(dict.fromkeys(made))


def _distinct(model: Model) -> tuple[Layer, ...]:
    return tuple(dict.fromkeys(run.layer for run in model.layers))


def _products(layer: Layer, hidden: int) -> Iterator[tuple[int, int]]:
    """(k, n) of the layer's products, unsharded: projections, then feed-forward."""
    attention, feed_forward = layer.attention, layer.feed_forward
    if isinstance(attention, GroupedQueryAttention):
        width = attention.heads * attention.head_dim
        yield hidden, width + 2 * attention.kv_heads * attention.head_dim
        yield width, hidden
    if isinstance(feed_forward, DenseFeedForward):
        yield hidden, feed_forward.size * (2 if feed_forward.gated else 1)
        yield feed_forward.size, hidden


def _layers(device: DeviceInventory, level: Level, model: Model | None) -> Iterator[LayerJob]:
    """Layer probes; a model without a layer of plain attention and feed-forward has none."""
    if model is None:
        hidden, heads, ffn = _CPU_LAYER if device.kind == "cpu" else _GPU_LAYER
        name, kv_heads, head_dim, gated, longest = f"h{hidden}", heads, hidden // heads, True, 4096
    else:
        layer = next(
            (
                each
                for each in _distinct(model)
                if isinstance(each.attention, GroupedQueryAttention)
                and isinstance(each.feed_forward, DenseFeedForward)
            ),
            None,
        )
        if layer is None:
            return
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(attention, GroupedQueryAttention)
        assert isinstance(feed_forward, DenseFeedForward)
        name, hidden, longest = model.name, model.hidden_size, model.max_sequence
        heads, kv_heads, head_dim = attention.heads, attention.kv_heads, attention.head_dim
        ffn, gated = feed_forward.size, feed_forward.gated
    processor = device.kind == "cpu"
    sequences = {"quick": (1024,), "normal": (1024, 4096), "full": (512, 1024, 2048, 4096, 8192)}
    batches = {"quick": (1,), "normal": (1, 4), "full": (1, 2, 4, 8)}
    degrees = {"quick": (1,), "normal": (1, 2), "full": (1, 2, 4, 8)}
    lengths = (128, 256) if processor else tuple(s for s in sequences[level] if s <= longest)
    for degree, sequence, batch in itertools.product(
        (1, 2) if processor else degrees[level],
        lengths or (longest,),
        (1,) if processor else batches[level],
    ):
        if heads % degree == 0 and ffn % degree == 0 and (kv_heads % degree == 0 or model is None):
            yield LayerJob(
                model=name,
                dtype=_training_dtype(device),
                hidden_size=hidden,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                ffn_size=ffn,
                gated=gated,
                tensor_parallel=degree,
                micro_batch_size=batch,
                sequence=sequence,
                seconds=1,
            )


def intra_steps(facts: NodeFacts, level: Level) -> tuple[GroupStep, ...]:
    """The link probes inside a node: pairs, then collectives by group size.

    One pair stands for all that are joined alike (`full` takes every pair); collectives other than
    all-reduce run over all ranks, and not in `quick`.
    """
    if facts.ranks < 2:
        return ()
    steps = [
        GroupStep("send_recv", ((0, one), (0, other)), f"send ranks {one} and {other}")
        for one, other in _pairs(facts, level)
    ]
    sizes = (facts.ranks,) if level == "quick" else group_sizes(facts.ranks)
    steps += [_collective("all_reduce", size) for size in sizes]
    if level != "quick":
        others: Sequence[LinkOperation] = (
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "broadcast",
        )
        steps += [_collective(operation, facts.ranks) for operation in others]
    return tuple(steps)


def _collective(operation: LinkOperation, ranks: int) -> GroupStep:
    members = tuple((0, rank) for rank in range(ranks))
    return GroupStep(operation, members, f"{operation} over {ranks} ranks")


def _pairs(facts: NodeFacts, level: Level) -> Iterator[tuple[int, int]]:
    if facts.backend == "gloo":
        yield 0, 1
        return
    ranks = {
        device.index: rank
        for rank, device in enumerate(each for each in facts.devices if each.usable)
    }
    seen = set()
    for link in facts.device_links:
        one, other = link.devices
        kind = (link.path, link.nvlinks)
        if one in ranks and other in ranks and (level == "full" or kind not in seen):
            seen.add(kind)
            yield ranks[one], ranks[other]


def is_measured(job: Job, device: int, profile: Profile) -> bool:
    """Whether the profile has the result of this job already (to resume)."""
    if isinstance(job, MatmulJob):
        wanted = (device, job.dtype, job.m, job.n, job.k)
        return any((r.device, r.dtype, r.m, r.n, r.k) == wanted for r in profile.matmul)
    if isinstance(job, MemoryJob):
        return any(r.device == device for r in profile.memory_bandwidth)
    if isinstance(job, HostCopyJob):
        return any((r.device, r.direction) == (device, job.direction) for r in profile.host_copy)
    if isinstance(job, OptimizerJob):
        return any((r.device, r.parameters) == (device, job.parameters) for r in profile.optimizer)
    if isinstance(job, LayerJob):
        key = (job.model, job.dtype, job.tensor_parallel, job.micro_batch_size, job.sequence)
        return any(
            (r.device, r.model, r.dtype, r.tensor_parallel, r.micro_batch_size, r.sequence)
            == (device, *key)
            for r in profile.layers
        )
    return False
