"""Activations and gradients between stages: received as they come, sent without disturbing work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from hetcli.perf.configuration import DeviceId
from hetcli.trial.pace import Pace
from hetcli.trial.program import Channel, Message

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Exchange", "MailboxExchange", "StreamExchange"]

# A receiver's answer carries the tag of what arrived, above all tags of messages.
_ANSWERS = 2**30
# A shorter wait is the time that fetching takes, not a gap in which a device idles.
_REAL_WAIT_S = 3e-4

Shape = Callable[[Message], tuple[int, ...]]


class Exchange(Protocol):
    """How one device sends and receives during a step."""

    def begin(self) -> None:
        """A step begins."""

    def receive(self, message: Message) -> Tensor:
        """The tensor of `message`; waits for it."""

    def send(self, message: Message, tensor: Tensor) -> None:
        """Send `tensor`; with waiting sends, return when it has arrived."""

    def finish(self) -> None:
        """Wait until everything sent is gone."""


class MailboxExchange:
    """Over a backend that matches messages by tag (gloo): a thread for each channel receives.

    So a message arrives while its receiver computes. With `waits`, the thread answers each and the
    sender goes on when it has the answer, as a blocking transfer does.
    """

    def __init__(
        self,
        channels: Sequence[tuple[Channel, tuple[Message, ...]]],
        ranks: Mapping[DeviceId, int],
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        waits: bool,
        pace: Pace,
    ) -> None:
        self._channels = channels
        self._ranks = ranks
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._waits = waits
        self._pace = pace
        self._boxes: dict[Channel, SimpleQueue[Tensor | BaseException]] = {}
        self._sent: list[tuple[Any, Tensor]] = []
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Start listening on all channels."""
        self._boxes = {channel: SimpleQueue() for channel, _ in self._channels}
        self._threads = [
            threading.Thread(target=self._listen, args=each, daemon=True) for each in self._channels
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self, channel: Channel, messages: Sequence[Message]) -> None:
        box, source = self._boxes[channel], self._ranks[channel.source]
        try:
            following = self._post(messages[0], source)
            for number, message in enumerate(messages):
                work, tensor = following
                if number + 1 < len(messages):
                    following = self._post(messages[number + 1], source)
                work.wait()
                box.put(tensor)
                if self._waits:
                    dist.isend(torch.empty(1), source, tag=_ANSWERS + message.tag).wait()
        except RuntimeError as error:
            box.put(error)

    def _post(self, message: Message, source: int) -> tuple[Any, Tensor]:
        tensor = torch.empty(self._shape(message), dtype=self._dtype)
        return dist.irecv(tensor, source, tag=message.tag), tensor

    def receive(self, message: Message) -> Tensor:
        """The next tensor of the message's channel; raises what its thread met instead."""
        box = self._boxes[message.channel]
        started = time.perf_counter()
        found = box.get()
        self._waited(started)
        if isinstance(found, BaseException):
            raise found
        return found.to(self._device)

    def send(self, message: Message, tensor: Tensor) -> None:
        """Send a contiguous copy; with waiting sends, until the receiver has it."""
        target = self._ranks[message.channel.destination]
        payload = tensor.detach().to("cpu").contiguous()
        if not self._waits:
            self._sent.append((dist.isend(payload, target, tag=message.tag), payload))
            return
        answer = torch.empty(1)
        answered = dist.irecv(answer, target, tag=_ANSWERS + message.tag)
        sent = dist.isend(payload, target, tag=message.tag)
        started = time.perf_counter()
        answered.wait()
        self._waited(started)
        sent.wait()

    def _waited(self, started: float) -> None:
        if time.perf_counter() - started > _REAL_WAIT_S:
            self._pace.waited()

    def finish(self) -> None:
        """Wait for what is on its way, and for the listening threads to end."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
        for thread in self._threads:
            thread.join()


class StreamExchange:
    """Over a backend that works on the device's streams (NCCL): a process group for each channel.

    Messages of a channel keep their order, and channels don't block each other. Waiting makes the
    compute stream wait, not the host.
    """

    def __init__(
        self,
        groups: Mapping[Channel, Any],
        ranks: Mapping[DeviceId, int],
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        waits: bool,
    ) -> None:
        self._groups = groups
        self._ranks = ranks
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._waits = waits
        self._sent: list[tuple[Any, Tensor]] = []

    def begin(self) -> None:
        """Nothing is posted ahead: streams do the waiting."""

    def receive(self, message: Message) -> Tensor:
        """A tensor that is valid for whatever runs on the compute stream from now on."""
        tensor = torch.empty(self._shape(message), dtype=self._dtype, device=self._device)
        source = self._ranks[message.channel.source]
        work = dist.irecv(tensor, source, group=self._groups[message.channel])
        assert work is not None
        work.wait()
        return tensor

    def send(self, message: Message, tensor: Tensor) -> None:
        """Send; with waiting sends the compute stream goes on when it is delivered."""
        payload = tensor.detach().contiguous()
        target = self._ranks[message.channel.destination]
        work = dist.isend(payload, target, group=self._groups[message.channel])
        assert work is not None
        if self._waits:
            work.wait()
        else:
            self._sent.append((work, payload))

    def finish(self) -> None:
        """Make the compute stream wait for what is on its way."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
