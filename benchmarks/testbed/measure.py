"""Measure emulated devices and shaped links with the very parts that a trial runs on.

`measure` starts this file as a process on every device; device after device times its layers, pair
after pair its link, group after group its gradients' sum.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hetcli.perf.configuration import DeviceId, Shape
from hetcli.spec.base import Record
from hetcli.spec.model.architecture import Model
from hetcli.spec.plan import PlanDevice
from hetcli.trial.job import Pacing
from hetcli.trial.launch import Placement, run_processes

__all__ = ["GroupTime", "LayerTime", "LinkTime", "Measured", "Task", "measure"]

_STALL_S = 60.0
_WARM_UP = 2


class Task(Record):
    """What is measured: layers of `model` for micro-batches of these sizes, messages, sums."""

    model: Model
    sequence: int
    micro_batch_sizes: tuple[int, ...]
    devices: tuple[PlanDevice, ...]
    pacing: tuple[Pacing, ...]
    message_bytes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    group_bytes: tuple[int, ...]
    repeats: int = 6


class LayerTime(Record):
    """Median seconds of one content on one device; `update_s` is the optimizer's on its weights."""

    rank: int
    kind: Literal["embedding", "layer", "head"]
    micro_batch_size: int
    forward_s: float
    backward_s: float
    update_s: float


class LinkTime(Record):
    """Median seconds until a message of one rank has arrived at another."""

    source: int
    destination: int
    message_bytes: int
    seconds: float


class GroupTime(Record):
    """Median seconds of an all-reduce among some ranks."""

    ranks: tuple[int, ...]
    message_bytes: int
    seconds: float


class Measured(Record):
    """Everything that one rank measured."""

    layers: tuple[LayerTime, ...]
    links: tuple[LinkTime, ...]
    groups: tuple[GroupTime, ...]


def measure(
    task: Task, placements: Mapping[str, Placement], *, time_limit_s: float = 300.0
) -> Measured:
    """Run the measurement on all devices; the ranks' results as one."""
    with tempfile.TemporaryDirectory(prefix="hetcli-measure-") as folder:
        directory = Path(folder)
        (directory / "task.json").write_text(task.model_dump_json())
        root = str(Path(__file__).resolve().parents[2])
        os.environ["PYTHONPATH"] = root
        run_processes(
            [sys.executable, str(Path(__file__).resolve()), str(directory)],
            task.devices,
            directory,
            time_limit_s=time_limit_s,
            stall_s=_STALL_S,
            placements=placements,
        )
        parts = [
            Measured.model_validate_json((directory / f"measured-{rank}.json").read_bytes())
            for rank in range(len(task.devices))
        ]
    return Measured(
        layers=tuple(row for part in parts for row in part.layers),
        links=tuple(row for part in parts for row in part.links),
        groups=tuple(row for part in parts for row in part.groups),
    )


def _median(once: Callable[[], float], repeats: int) -> float:
    samples = [once() for _ in range(repeats + _WARM_UP)]
    return statistics.median(samples[_WARM_UP:])


def _layers(task: Task, rank: int, pace: Any, groups: Any) -> Iterator[LayerTime]:
    import torch

    from hetcli.trial.flops import WorkFlops, head_flops, layer_flops
    from hetcli.trial.gradients import Synchronisation
    from hetcli.trial.holders import Content, Part
    from hetcli.trial.modules.attention import Core
    from hetcli.trial.modules.ends import Embedding, Head
    from hetcli.trial.modules.layer import DecoderLayer
    from hetcli.trial.modules.weights import Maker
    from hetcli.trial.parallel import Ranks

    alone = groups.of([rank])
    ranks = Ranks(alone, alone, alone, alone)
    positions = torch.arange(task.sequence)
    own = DeviceId(task.devices[rank].node, task.devices[rank].index)
    spec = task.model.layers[0].layer

    def maker(content: Content) -> Maker:
        return Maker(content, 0, torch.device("cpu"), torch.float32, 0, 1)

    for size in task.micro_batch_sizes:
        shape = Shape(task.sequence, size, "fp32", "unfused")
        tokens = torch.randint(task.model.vocab_size, (size, task.sequence))
        given = torch.randn(size, task.sequence, task.model.hidden_size)
        made: list[tuple[Any, Any, WorkFlops]] = [
            (
                Content("embedding"),
                Embedding(maker(Content("embedding")), ranks, task.model, task.model.vocab_size),
                WorkFlops(),
            ),
            (
                Content("layer"),
                DecoderLayer(
                    maker(Content("layer")), ranks, spec, task.model, Core("unfused"), None
                ),
                layer_flops(spec, task.model, shape),
            ),
            (
                Content("head"),
                Head(maker(Content("head")), ranks, task.model, task.model.vocab_size, None),
                head_flops(task.model, shape),
            ),
        ]
        for content, module, flops in made:
            part = Part(content, 0, 1, (own,))
            update = Synchronisation(
                {content: module},
                [part],
                {part: alone},
                tensor=alone,
                zero_stage=0,
                gradient_dtype=torch.float32,
                overlap=False,
                overlap_gather=False,
                optimizer="adam",
            )
            forward, backward, updates = [], [], []
            for _ in range(task.repeats + _WARM_UP):
                x = given.clone().requires_grad_()
                pace.waited()
                start = time.perf_counter()
                pace.begin()
                if content.kind == "embedding":
                    y = module(tokens, positions)
                else:
                    y = module(x, positions if content.kind == "layer" else tokens)
                pace.finish(flops.forward)
                middle = time.perf_counter()
                pace.begin()
                torch.autograd.backward(y, None if content.kind == "head" else given)
                pace.finish(flops.backward)
                end = time.perf_counter()
                update.finish()
                before = time.perf_counter()
                update.update()
                forward.append(middle - start)
                backward.append(end - middle)
                updates.append(time.perf_counter() - before)
            yield LayerTime(
                rank=rank,
                kind=content.kind,
                micro_batch_size=size,
                forward_s=statistics.median(forward[_WARM_UP:]),
                backward_s=statistics.median(backward[_WARM_UP:]),
                update_s=statistics.median(updates[_WARM_UP:]),
            )


def _links(task: Task, rank: int, pace: Any) -> Iterator[LinkTime]:
    import torch
    import torch.distributed as dist

    from hetcli.perf.pipeline.work import Place
    from hetcli.trial.exchange import MailboxExchange
    from hetcli.trial.program import Channel, Message

    devices = [DeviceId(each.node, each.index) for each in task.devices]
    ranks = {device: number for number, device in enumerate(devices)}
    count = task.repeats + _WARM_UP
    for source, sender in enumerate(devices):
        for destination, receiver in enumerate(devices):
            dist.barrier()
            if source == destination or rank not in (source, destination):
                continue
            channel = Channel(sender, receiver, False, Place(0, 0))
            messages = tuple(
                Message(channel, number, (0, 1), (0, size // 4))
                for number, size in enumerate(
                    size for size in task.message_bytes for _ in range(count)
                )
            )
            exchange = MailboxExchange(
                [(channel, messages)] if rank == destination else [],
                ranks,
                lambda message: (message.positions[1],),
                torch.float32,
                torch.device("cpu"),
                waits=True,
                pace=pace,
            )
            exchange.begin()
            if rank == destination:
                for message in messages:
                    exchange.receive(message)
            else:
                yield from _sent(task, exchange, messages, source, destination, count)
            exchange.finish()


def _sent(
    task: Task, exchange: Any, messages: Any, source: int, destination: int, count: int
) -> Iterator[LinkTime]:
    import torch

    following = iter(messages)
    for size in task.message_bytes:
        samples = []
        for _ in range(count):
            message = next(following)
            tensor = torch.zeros(message.positions[1])
            # As in a step, the receiver's thread has been asleep for a while.
            time.sleep(0.002)
            start = time.perf_counter()
            exchange.send(message, tensor)
            samples.append(time.perf_counter() - start)
        yield LinkTime(
            source=source,
            destination=destination,
            message_bytes=size,
            seconds=statistics.median(samples[_WARM_UP:]),
        )


def _groups(task: Task, rank: int, groups: Any) -> Iterator[GroupTime]:
    import torch
    import torch.distributed as dist

    groups.make(task.groups)
    for members in task.groups:
        dist.barrier()
        if rank not in members:
            continue
        group = groups.of(members)
        for size in task.group_bytes:
            tensor = torch.zeros(size // 4)
            ready = torch.zeros(1)

            def once(group: Any = group, tensor: Any = tensor, ready: Any = ready) -> float:
                group.all_reduce(ready)
                start = time.perf_counter()
                group.start_all_reduce(tensor).wait()
                return time.perf_counter() - start

            seconds = _median(once, task.repeats)
            yield GroupTime(ranks=members, message_bytes=size, seconds=seconds)


def _main(directory: Path) -> None:
    import torch.distributed as dist

    from hetcli.trial.groups import Groups
    from hetcli.trial.pace import Pace
    from hetcli.trial.status import Status
    from hetcli.trial.worker import join

    task = Task.model_validate_json((directory / "task.json").read_bytes())
    rank = int(os.environ["RANK"])
    status = Status(directory / f"rank-{rank}.status")
    join("cpu", 0, _STALL_S, status)
    own = task.devices[rank]
    rates = {(each.device.node, each.device.index): each.flop_per_s for each in task.pacing}
    pace = Pace(rates.get((own.node, own.index)))
    groups = Groups(rank, pace)
    layers: tuple[LayerTime, ...] = ()
    for turn in range(len(task.devices)):
        # One after the other: the emulated devices share this machine's cores.
        dist.barrier()
        status.say(f"waiting for rank {turn} to measure its layers")
        if turn == rank:
            layers = tuple(_layers(task, rank, pace, groups))
    status.say("measuring links")
    links = tuple(_links(task, rank, pace))
    status.say("measuring groups")
    sums = tuple(_groups(task, rank, groups))
    result = Measured(layers=layers, links=links, groups=sums)
    (directory / f"measured-{rank}.json").write_text(result.model_dump_json())
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
