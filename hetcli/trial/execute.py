"""One step on one device: its works in the plan's order, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hetcli.perf.pipeline.work import Kind
from hetcli.trial.clock import Clock
from hetcli.trial.exchange import Exchange
from hetcli.trial.flops import WorkFlops
from hetcli.trial.gradients import Synchronisation
from hetcli.trial.groups import Group
from hetcli.trial.holders import Content
from hetcli.trial.modules.weights import Weights
from hetcli.trial.pace import Pace
from hetcli.trial.parallel import Deferred
from hetcli.trial.program import Action, Message, Program

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Executor", "Layout", "StepMarks", "Visit"]

Doing = Callable[[str], None]


@dataclass(frozen=True)
class Visit:
    """A content on a micro-batch's way through a chunk; `again` says to recompute it."""

    content: Content
    flops: WorkFlops
    again: bool = False


@dataclass(frozen=True)
class Layout:
    """What the executor needs to know of sizes: activations are [sequences, tokens, hidden].

    `tokens` are those that the device keeps between layers, `positions` those of its context rank;
    `scale` turns a sum of token losses into its share of the batch's mean. All tensor ranks compute
    the same loss; the one that `reports_loss` adds it to the step's.
    """

    hidden: int
    tokens: int
    positions: Tensor
    scale: float
    dtype: torch.dtype
    device: torch.device
    reports_loss: bool


@dataclass
class StepMarks:
    """Marks of a step's moments, to be read with `Clock.seconds` once it is over."""

    start: Any
    works: list[tuple[Action, Any, Any, Any]] = field(default_factory=list)
    pipeline_end: Any = None
    reduced: Any = None
    agreed: Any = None
    end: Any = None
    loss: float = 0.0


@dataclass
class _Trace:
    """What one micro-batch left in a chunk: (visit, input, output) of every content."""

    visits: list[tuple[Visit, Tensor | None, Tensor | None]] = field(default_factory=list)
    later: list[tuple[Content, WorkFlops, list[Callable[[], None]]]] = field(default_factory=list)
    handed: Tensor | None = None


class Executor:
    """Runs the program of one device, step after step."""

    def __init__(
        self,
        program: Program,
        visits: tuple[tuple[Visit, ...], ...],
        modules: Mapping[Content, Weights],
        layout: Layout,
        exchange: Exchange,
        synchronisation: Synchronisation,
        everyone: Group,
        deferred: Deferred,
        pace: Pace,
        clock: Clock,
        sequences: Callable[[int, Action], Tensor],
        doing: Doing,
    ) -> None:
        self._program = program
        self._visits = visits
        self._modules = modules
        self._layout = layout
        self._exchange = exchange
        self._synchronisation = synchronisation
        self._everyone = everyone
        self._deferred = deferred
        self._pace = pace
        self._clock = clock
        self._sequences = sequences
        self._doing = doing
        self._split = any(each.kind == "backward-weight" for each in program.actions)
        self._last: Kind = "backward-weight" if self._split else "backward"
        self._uses = self._count_uses()

    def _count_uses(self) -> dict[Content, int]:
        """Works that add to each content's gradient in a step."""
        uses: dict[Content, int] = {}
        for action in self._program.actions:
            if action.kind == self._last:
                for visit in self._visits[action.chunk]:
                    for content in self._touched(visit.content):
                        uses[content] = uses.get(content, 0) + 1
        return uses

    def _touched(self, content: Content) -> list[Content]:
        """The contents whose weights a visit uses: experts, and a tied table, are their own."""
        touched = [content]
        if content.kind == "layer" and Content("experts", content.layer) in self._modules:
            touched.append(Content("experts", content.layer))
        if content.kind == "head" and self._modules[content].borrows_embedding:
            touched.append(Content("embedding"))
        return touched

    def step(self, number: int) -> StepMarks:
        """One optimizer step: all works, the gradients' sum, the update."""
        self._number = number
        self._left = dict(self._uses)
        self._traces: dict[tuple[int, int], _Trace] = {}
        self._loss = torch.zeros((), device=self._layout.device)
        self._exchange.begin()
        self._pace.waited()
        marks = StepMarks(self._clock.mark())
        for action in self._program.actions:
            self._run(action, marks)
        self._doing("waiting for messages to leave")
        self._exchange.finish()
        marks.pipeline_end = self._clock.mark()
        self._doing("adding up gradients")
        squared = self._synchronisation.finish()
        marks.reduced = self._clock.mark()
        self._doing("agreeing on loss and gradient norm")
        totals = self._everyone.all_reduce(torch.stack([squared, self._loss.to(squared)]))
        marks.agreed = self._clock.mark()
        self._doing("updating weights")
        self._synchronisation.update()
        marks.end = self._clock.mark()
        marks.loss = float(totals[1])
        return marks

    def _run(self, action: Action, marks: StepMarks) -> None:
        trace = self._traces.setdefault((action.chunk, action.micro_batch), _Trace())
        name = f"{action.kind} of micro-batch {action.micro_batch}, chunk {action.chunk}"
        given = self._input(action, name)
        self._doing(name)
        start = self._clock.mark()
        result = None
        if action.kind == "forward":
            result = self._forward(action, trace, given)
        elif action.kind == "backward-weight":
            self._weight_gradients(trace)
        else:
            result = self._backward(action, trace, given)
        end = self._clock.mark()
        if action.sends:
            assert result is not None
            for message in action.sends:
                self._doing(f"sending to {message.channel.destination} after {name}")
                self._exchange.send(message, _piece(result, message))
        marks.works.append((action, start, end, self._clock.mark() if action.sends else end))
        if action.keeps_output:
            self._hand_over(action, result)

    def _hand_over(self, action: Action, result: Tensor | None) -> None:
        """To the chunk on this device that comes next: up the route, or down it."""
        step = 1 if action.kind == "forward" else -1
        key = (action.chunk + step, action.micro_batch)
        self._traces.setdefault(key, _Trace()).handed = result

    def _input(self, action: Action, name: str) -> Tensor | None:
        if not action.receives:
            trace = self._traces[action.chunk, action.micro_batch]
            given, trace.handed = trace.handed, None
            return given
        pieces = []
        for message in action.receives:
            self._doing(f"waiting for {message.channel.source} before {name}")
            pieces.append(self._exchange.receive(message))
        if len(pieces) == 1:
            return pieces[0]
        layout = self._layout
        whole = pieces[0].new_empty((action.sequences, layout.tokens, layout.hidden))
        for message, piece in zip(action.receives, pieces, strict=True):
            _piece(whole, message).copy_(piece)
        return whole

    def _forward(self, action: Action, trace: _Trace, x: Tensor | None) -> Tensor | None:
        for visit in self._visits[action.chunk]:
            for content in self._touched(visit.content):
                self._synchronisation.ensure(content)
            self._pace.begin()
            given = None if x is None else x.detach().requires_grad_()
            with torch.set_grad_enabled(not visit.again):
                x = self._compute(action, visit.content, given)
            trace.visits.append((visit, given, None if visit.again else x))
            if visit.content.kind == "head" and self._layout.reports_loss:
                self._loss += x.detach()
            self._pace.finish(visit.flops.forward)
        return None if x is None else x.detach()

    def _compute(self, action: Action, content: Content, given: Tensor | None) -> Tensor:
        module = self._modules[content]
        result: Tensor
        if content.kind == "layer":
            result = module(given, self._layout.positions)
            return result
        positions = self._layout.positions
        tokens = self._sequences(self._number, action)
        if content.kind == "embedding":
            result = module(tokens[:, positions], positions)
        else:
            result = module(given, tokens[:, positions + 1]) * self._layout.scale
        return result

    def _backward(self, action: Action, trace: _Trace, gradient: Tensor | None) -> Tensor | None:
        split = action.kind == "backward-input"
        for visit, given, output in reversed(trace.visits):
            self._pace.begin()
            flops = visit.flops.backward
            if visit.again:
                output = self._compute(action, visit.content, given)
                flops += visit.flops.forward
            assert output is not None
            later: list[Callable[[], None]] = []
            self._deferred.collecting = later if split else None
            torch.autograd.backward(output, gradient)
            self._deferred.collecting = None
            gradient = None if given is None else given.grad
            if split:
                trace.later.append((visit.content, visit.flops, later))
                flops -= visit.flops.weight
            self._pace.finish(flops)
            if not split:
                self._used(visit.content)
        trace.visits.clear()
        return gradient

    def _weight_gradients(self, trace: _Trace) -> None:
        for content, flops, later in trace.later:
            self._pace.begin()
            for add in later:
                add()
            self._pace.finish(flops.weight)
            self._used(content)
        trace.later.clear()

    def _used(self, content: Content) -> None:
        for each in self._touched(content):
            self._left[each] -= 1
            if not self._left[each]:
                self._synchronisation.ready(each)


def _piece(tensor: Tensor, message: Message) -> Tensor:
    rows, positions = message.rows, message.positions
    return tensor[rows[0] : rows[1], positions[0] : positions[1]]
