"""From a plan to the executor of one device: groups, modules, exchange and synchronisation."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hetcli.perf.compute import kernel_of, shape_of
from hetcli.perf.configuration import Configuration, DeviceId, Shape, Stage
from hetcli.perf.filling import sends_beside_compute
from hetcli.perf.resolve import resolve
from hetcli.perf.synchronisation import gradient_bytes
from hetcli.search.document import configuration_of
from hetcli.spec.model.architecture import Layer, Model, MoeFeedForward
from hetcli.spec.plan import Plan
from hetcli.trial.clock import clock_for
from hetcli.trial.exchange import Exchange, MailboxExchange, StreamExchange
from hetcli.trial.execute import Executor, Layout, Visit
from hetcli.trial.flops import WorkFlops, head_flops, layer_flops
from hetcli.trial.gradients import Synchronisation
from hetcli.trial.groups import Groups
from hetcli.trial.holders import Content, Part, parts
from hetcli.trial.modules.attention import Core
from hetcli.trial.modules.ends import Embedding, Head
from hetcli.trial.modules.feed_forward import Experts
from hetcli.trial.modules.layer import DecoderLayer
from hetcli.trial.modules.weights import Maker, Weights
from hetcli.trial.pace import Pace
from hetcli.trial.parallel import Deferred, Ranks
from hetcli.trial.program import Action, Message, Program, programs
from hetcli.trial.support import check_supported

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Station", "build"]

_DISTINCT_STEPS = 8
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass
class Station:
    """Everything that one device needs to run one plan."""

    executor: Executor
    program: Program
    synchronisation: Synchronisation


def build(
    plan: Plan,
    ranks: Mapping[DeviceId, int],
    rank: int,
    groups: Groups,
    *,
    device: torch.device,
    pace: Pace,
    seed: int,
    steps: int,
    doing: Callable[[str], None],
) -> Station | None:
    """The station of this rank, or None when the plan does not use it.

    All ranks call it together: process groups are made by everyone in the same order. Raises
    UnsupportedByTargetError for what the runtime does not do.
    """
    configuration = configuration_of(plan)
    check_supported(configuration, plan.inputs.model)
    model = plan.inputs.model
    written = programs(configuration)
    held = parts(configuration, model, written)
    groups.make(_rank_sets(configuration, written, held, ranks))
    channels = _channel_groups(written, ranks, rank) if device.type == "cuda" else {}
    own = next((each for each in written if ranks[each] == rank), None)
    if own is None:
        return None
    program = written[own]
    stage = configuration.pipelines[program.seat.pipeline].stages[program.seat.stage]
    kind = resolve(plan.inputs.cluster).node_of(own).device_type
    shape = replace(
        shape_of(configuration, stage, kind),
        micro_batch_size=stage.replicas[program.seat.replica].micro_batch_size,
    )
    deferred = Deferred()
    layer_ranks = _ranks(configuration, stage, program, ranks, groups, deferred)
    dtype = _DTYPES[configuration.precision]
    core = Core(
        kernel_of(kind, configuration.attention), stage.recompute.granularity == "selective"
    )
    modules = _modules(
        [each.content for each in held[own]],
        model,
        layer_ranks,
        lambda content: _maker(content, layer_ranks, seed, device, dtype),
        core,
        vocabulary=_padded(model.vocab_size, configuration),
    )
    layout = _layout(configuration, model, program, dtype, device)
    exchange: Exchange

    def message_shape(message: Message) -> tuple[int, ...]:
        rows, positions = message.rows, message.positions
        return rows[1] - rows[0], positions[1] - positions[0], model.hidden_size

    waits = not sends_beside_compute(configuration.schedule)
    if device.type == "cuda":
        exchange = StreamExchange(channels, ranks, message_shape, dtype, device, waits=waits)
    else:
        exchange = MailboxExchange(
            program.channels, ranks, message_shape, dtype, device, waits=waits, pace=pace
        )
    synchronisation = Synchronisation(
        modules,
        held[own],
        {part: groups.of(sorted(ranks[each] for each in part.members)) for part in held[own]},
        tensor=layer_ranks.tensor,
        zero_stage=configuration.zero_stage,
        gradient_dtype=torch.float32 if gradient_bytes(configuration) == 4 else dtype,
        overlap=configuration.overlap_grad_reduce,
        overlap_gather=configuration.overlap_param_gather,
        optimizer=plan.inputs.workload.optimizer,
    )
    executor = Executor(
        program,
        tuple(_visits(model, stage, program, shape)),
        modules,
        layout,
        exchange,
        synchronisation,
        groups.of(sorted(ranks[each] for each in written)),
        deferred,
        pace,
        clock_for(device),
        _Sequences(program, configuration, model, seed, steps, device),
        doing,
    )
    return Station(executor, program, synchronisation)


def _rank_sets(
    configuration: Configuration,
    written: Mapping[DeviceId, Program],
    held: Mapping[DeviceId, tuple[Part, ...]],
    ranks: Mapping[DeviceId, int],
) -> Iterator[list[int]]:
    """The ranks of every group that somebody needs."""
    yield sorted(ranks[each] for each in written)
    for found in held.values():
        for part in found:
            yield sorted(ranks[each] for each in part.members)
    for stage in configuration.stages:
        everyone = [ranks[each] for member in stage.replicas for each in member.devices]
        yield from _expert_blocks(configuration, everyone)
        for replica in stage.replicas:
            own = [ranks[each] for each in replica.devices]
            tp = stage.tensor_parallel
            yield from (own[start : start + tp] for start in range(0, len(own), tp))
            yield from (own[start::tp] for start in range(tp))


def _expert_blocks(configuration: Configuration, everyone: list[int]) -> Iterator[list[int]]:
    """Those who together hold a layer's whole experts, each of them one part."""
    size, slices = configuration.expert_parallel, configuration.expert_tensor_parallel
    if size > 1:
        for start in range(0, len(everyone), size * slices):
            for offset in range(slices):
                yield everyone[start + offset : start + size * slices : slices]


def _channel_groups(
    written: Mapping[DeviceId, Program], ranks: Mapping[DeviceId, int], rank: int
) -> dict[Any, Any]:
    """A process group of its own for every channel; everyone creates all, in the same order."""
    found = {}
    for program in written.values():
        for channel, _ in program.channels:
            ends = [ranks[channel.source], ranks[channel.destination]]
            handle = dist.new_group(ends)
            if rank in ends:
                found[channel] = handle
    return found


def _ranks(
    configuration: Configuration,
    stage: Stage,
    program: Program,
    ranks: Mapping[DeviceId, int],
    groups: Groups,
    deferred: Deferred,
) -> Ranks:
    seat = program.seat
    own = [ranks[each] for each in stage.replicas[seat.replica].devices]
    tp = stage.tensor_parallel
    tensor = groups.of(own[seat.context_rank * tp : (seat.context_rank + 1) * tp])
    alone = groups.of([own[seat.position]])
    expert = alone
    everyone = [ranks[each] for member in stage.replicas for each in member.devices]
    for block in _expert_blocks(configuration, everyone):
        if own[seat.position] in block:
            expert = groups.of(block)
    return Ranks(
        tensor,
        groups.of(own[seat.tensor_rank :: tp]),
        expert,
        tensor if configuration.expert_tensor_parallel > 1 else alone,
        configuration.sequence_parallel and tp > 1,
        deferred,
    )


def _padded(vocabulary: int, configuration: Configuration) -> int:
    """The vocabulary, so that every tensor-parallel degree cuts it evenly."""
    largest = max(stage.tensor_parallel for stage in configuration.stages)
    return -(-vocabulary // largest) * largest


def _maker(
    content: Content, ranks: Ranks, seed: int, device: torch.device, dtype: torch.dtype
) -> Maker:
    among = ranks.expert_tensor if content.kind == "experts" else ranks.tensor
    return Maker(content, seed, device, dtype, among.rank, among.size)


def _modules(
    contents: list[Content],
    model: Model,
    ranks: Ranks,
    maker: Callable[[Content], Maker],
    core: Core,
    vocabulary: int,
) -> dict[Content, Weights]:
    """The modules of a device, in the order of the model."""
    layers = tuple(model.each_layer())
    found: dict[Content, Weights] = {}
    wanted = dict.fromkeys(contents)
    for content in wanted:
        if content.kind == "embedding":
            found[content] = Embedding(maker(content), ranks, model, vocabulary)
        elif content.kind == "experts":
            spec = layers[content.layer].feed_forward
            assert isinstance(spec, MoeFeedForward)
            found[content] = Experts(maker(content), ranks, spec, model.hidden_size)
    for content in wanted:
        if content.kind == "layer":
            experts = found.get(Content("experts", content.layer))
            assert experts is None or isinstance(experts, Experts)
            spec_layer: Layer = layers[content.layer]
            found[content] = DecoderLayer(maker(content), ranks, spec_layer, model, core, experts)
        elif content.kind == "head":
            table = found[Content("embedding")] if model.tied_embeddings else None
            assert table is None or isinstance(table, Embedding)
            found[content] = Head(maker(content), ranks, model, vocabulary, table)
    return {content: found[content] for content in wanted}


def _layout(
    configuration: Configuration,
    model: Model,
    program: Program,
    dtype: torch.dtype,
    device: torch.device,
) -> Layout:
    """Context ranks hold one part from the front and one from the back, which balances the mask."""
    parts_ = 2 * configuration.context_parallel
    chunk = configuration.sequence // parts_
    every = torch.arange(configuration.sequence, device=device)
    at = program.seat.context_rank
    positions = every
    if configuration.context_parallel > 1:
        low, high = at * chunk, (parts_ - 1 - at) * chunk
        positions = torch.cat([every[low : low + chunk], every[high : high + chunk]])
    kept = len(positions)
    if configuration.sequence_parallel:
        kept //= program.seat.tensor_parallel
    scale = 1 / (configuration.global_batch * configuration.sequence)
    reports = program.seat.tensor_rank == 0
    return Layout(model.hidden_size, kept, positions, scale, dtype, device, reports)


def _visits(
    model: Model, stage: Stage, program: Program, shape: Shape
) -> Iterator[tuple[Visit, ...]]:
    """What a micro-batch passes in each chunk."""
    layers = tuple(model.each_layer())
    for number, chunk in enumerate(program.chunks):
        found = []
        if number in program.embeds:
            found.append(Visit(Content("embedding"), WorkFlops()))
        again = stage.recompute.layers if stage.recompute.layers is not None else chunk.count
        for offset, layer in enumerate(range(chunk.first, chunk.stop)):
            flops = layer_flops(layers[layer], model, shape)
            if stage.recompute.granularity == "selective":
                flops = replace(flops, backward=flops.backward + flops.core)
            full = stage.recompute.granularity == "full" and offset < again
            found.append(Visit(Content("layer", layer), flops, again=full))
        if number in program.ends:
            found.append(Visit(Content("head"), head_flops(model, shape)))
        yield tuple(found)


class _Sequences:
    """Synthetic tokens, the same for a sequence of a step wherever it is read.

    They repeat after a few steps: enough to see that the loss falls, and ready before the first.
    """

    def __init__(
        self,
        program: Program,
        configuration: Configuration,
        model: Model,
        seed: int,
        steps: int,
        device: torch.device,
    ) -> None:
        self._known: dict[tuple[int, int], Tensor] = {}
        wanted = {
            (action.first, action.sequences)
            for action in program.actions
            if action.embeds or action.ends
        }
        for step in range(min(steps, _DISTINCT_STEPS)):
            for first, count in wanted:
                rows = [
                    _tokens(seed, step, number, configuration.sequence, model.vocab_size)
                    for number in range(first, first + count)
                ]
                self._known[step, first] = torch.stack(rows).to(device)

    def __call__(self, step: int, action: Action) -> Tensor:
        """Tokens and the one after them, [sequences, sequence + 1]."""
        return self._known[step % _DISTINCT_STEPS, action.first]


def _tokens(seed: int, step: int, sequence: int, length: int, vocabulary: int) -> Tensor:
    key = zlib.crc32(f"{seed} {step} {sequence}".encode())
    generator = torch.Generator().manual_seed(key)
    return torch.randint(vocabulary, (length + 1,), generator=generator)
