"""One shape with everything that decides how long a split of its layers takes, as predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetcli.perf.chains import Chain, chains
from hetcli.perf.configuration import LayerRange, Pipeline, Recompute
from hetcli.perf.memory import held_chunks
from hetcli.perf.pipeline.lockstep import finish_1f1b
from hetcli.perf.pipeline.slots import finish_interleaved
from hetcli.search.costing import Costing
from hetcli.search.costs import Family, Row
from hetcli.search.finish import finish_bounds, interleaved_bounds
from hetcli.search.layout import Layout, configuration
from hetcli.search.limits import Limits
from hetcli.search.passing import stage_weights, warm_up_works
from hetcli.search.splits import Stages, least_layers
from hetcli.search.tables import exposed_tail
from hetcli.search.tail import Tail, cumulated, folded, tail_of

__all__ = ["Exact", "exact_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The stages of one shape; seconds as `predict` finds them for whatever split.

    Every stage recomputes as little as its memory allows, from the first (most) to the last of the
    choices. Members of the pipeline that cost the same are one chain. `passes` are the forward and
    backward seconds of a micro-batch, [2, choices, chains, stages, layers + 1] cumulated over
    layers, `chunks` those of each model chunk, [2, choices, chunks, chains, stages, layers + 1],
    and `ends` what a stage does beside them, [2, chains, stages]; `send` the boundaries,
    [chains, stages - 1], and `wrap` that from the last stage back to the first, [chains]; `tail`
    what follows, [3, stages, layers + 1], with `tail_ends` and `experts`, [3, stages]. Where a
    stage `receives`, it does nothing else while a message comes in. `routed` counts the layers with
    experts. `stop[c, s, i]` is the layer that stage s can hold layers up to, from layer i on
    (before i: not even none). `node` numbers the nodes of stages that must recompute the same as
    others.
    """

    micro_batches: int
    receives: bool
    hide_reduce: bool
    hide_gather: bool
    passes: Floats
    chunks: Floats
    ends: Floats
    send: Floats
    wrap: Floats
    tail: Floats
    tail_ends: Floats
    experts: Floats
    routed: Ints
    stop: Ints
    node: Ints
    micro_exposed: Floats

    @property
    def depth(self) -> int:
        """Pipeline stages."""
        return int(self.ends.shape[2])

    @property
    def layers(self) -> int:
        """Layers of the model, or of one of its chunks."""
        return int(self.passes.shape[4]) - 1

    @property
    def virtual_stages(self) -> int:
        """Model chunks of each stage."""
        return int(self.chunks.shape[2])

    @property
    def least(self) -> Ints:
        """Layers that each stage must hold."""
        if self.depth == 1:
            return np.array([self.layers])
        return least_layers(self.depth, self.virtual_stages)

    @property
    def weights(self) -> tuple[Floats, Floats]:
        """How often a step takes the time of each stage at least, from when the first micro-batch
        comes to it, and how often that of all later stages (`stage_weights`).

        With chunks it is as often as it works, and no more.
        """
        if self.virtual_stages > 1:
            return np.full(self.depth, float(self.micro_batches)), np.zeros(self.depth)
        own, behind = stage_weights(self.depth, self.micro_batches)
        return own + 1, behind + 1

    @property
    def warm_up(self) -> tuple[Ints, Bools]:
        """What `warm_up_works` says of the stages."""
        return warm_up_works(self.depth, self.virtual_stages, self.micro_batches)

    @property
    def warm_up_ends(self) -> Floats:
        """What the ends of the pipeline do beside layers in those works, [stages, 1, 1]."""
        works, ends = self.warm_up[0], self.ends[:, 0].sum(axis=0)
        found = np.zeros((self.depth, 1, 1))
        found[0] += works[0, 0] * ends[0]
        found[-1] += works[-1, -1] * ends[-1]
        return found

    @property
    def path_sends(self) -> float:
        """Seconds of the messages of a micro-batch on its way through all chunks and back."""
        wrap = float(self.send[0, 0] if self.depth == 2 else self.wrap[0])
        chunks = self.virtual_stages
        return 2 * (chunks * float(self.send[0].sum()) + (chunks - 1) * wrap)

    def send_back(self, stage: int) -> float:
        """Seconds of the last gradient's message, which is sent when the work is done already."""
        return float(self.send[0, stage - 1]) if stage and self.virtual_stages == 1 else 0.0

    def choices(self, splits: Ints) -> Ints:
        """What each stage recomputes, as the number of a choice; -1 where nothing fits."""
        stops = np.cumsum(splits, axis=1)
        stage = np.arange(self.depth)
        furthest = self.stop[:, stage, np.clip(stops - splits, 0, self.layers)]
        within = (stops <= furthest) & (splits >= self.least) & (splits >= 0)
        own = np.where(within, np.arange(len(within))[:, None, None], -1).max(axis=0)
        # Stages of one node recompute the same: the options of a node hold for all of it.
        starts = np.flatnonzero(np.diff(self.node, prepend=-1))
        common = np.minimum.reduceat(own, starts, axis=1)
        chosen = np.repeat(common, np.diff(np.append(starts, self.depth)), axis=1)
        candidate = np.arange(len(splits))[:, None]
        found: Ints = np.where(within[chosen, candidate, stage], chosen, -1)
        return found

    def fits(self, splits: Ints) -> Bools:
        """Whether every stage holds its layers, and has as many as it must, [candidates]."""
        held = self.choices(splits) >= 0
        found: Bools = np.logical_and.reduce(held, axis=1)
        return found

    def received(self, passes: Floats, chain: int) -> Floats:
        """Passes [2, .., stages] of a chain with the messages that start them, if these block."""
        if not self.receives:
            return passes
        result = passes.copy()
        result[0, ..., 1:] += self.send[chain]
        result[1, ..., :-1] += self.send[chain]
        return result

    def blocked(self, passes: Floats, chain: int) -> Floats:
        """Passes [2, .., stages] of a chain with the sends that follow each of them."""
        result = passes.copy()
        result[0, ..., :-1] += self.send[chain]
        result[1, ..., 1:] += self.send[chain]
        return result

    def pass_seconds(self, splits: Ints, choices: Ints, chain: int) -> Floats:
        """Forward and backward seconds of a micro-batch, [2, candidates, stages]."""
        stops = np.cumsum(splits, axis=1)
        stage = np.arange(self.depth)
        table = self.passes[:, :, chain]
        found: Floats = table[:, choices, stage, stops] - table[:, choices, stage, stops - splits]
        return found + self.ends[:, chain, None, :]

    def through(self, passes: Floats, first: Floats, chain: int) -> Floats:
        """What stages do of the first and the last micro-batch before it goes on, [2, .., stages].

        Args:
            passes: of a micro-batch, with the messages that start them.
            first: the same of the first chunk, without what a stage does beside its layers.
            chain: which one.
        """
        if self.virtual_stages == 1:
            return self.blocked(passes, chain)
        result = first.copy()
        result[..., 0] += self.ends[:, chain, 0].reshape(2, *[1] * (first.ndim - 2))
        # Messages hold up what comes next, but not the stage.
        result[..., :-1] += self.send[chain]
        return result

    def _chunk_seconds(self, splits: Ints, choices: Ints, chain: int) -> Floats:
        """Seconds of the layers of each chunk, [2, chunks, candidates, stages]."""
        stops = np.cumsum(splits, axis=1)
        table = np.moveaxis(self.chunks[:, :, :, chain], (0, 2), (-2, -1))
        stage = np.arange(self.depth)
        found = table[choices, stage, stops] - table[choices, stage, stops - splits]
        return np.moveaxis(found, (-2, -1), (0, 1))

    def _with_ends(self, each: Floats, chain: int) -> Floats:
        """The same with what the first and the last chunk of all do beside their layers."""
        each[:, 0, :, 0] += self.ends[:, chain, 0, None]
        each[:, -1, :, -1] += self.ends[:, chain, -1, None]
        return each

    def _finish(self, splits: Ints, choices: Ints, passes: Floats, chain: int) -> Floats:
        """When the stages of a chain are done with their last backward, [candidates, stages]."""
        if self.virtual_stages > 1:
            each = self._with_ends(self._chunk_seconds(splits, choices, chain), chain)
            forward, backward = np.moveaxis(each, 1, -1)
            send = np.append(self.send[chain], self.wrap[chain])
            return finish_interleaved(forward, backward, send, self.micro_batches)
        blocked = self.blocked(passes, chain)
        done = finish_1f1b(blocked[0], blocked[1], self.micro_batches)
        # The last gradient is sent when the work is done already.
        done[:, 1:] -= self.send[chain]
        return done

    def after(self, splits: Ints, passes: Floats) -> tuple[Floats, Floats, Floats]:
        """Exposed reduction and gathering, and the update, each [candidates, stages]."""
        stops = np.cumsum(splits, axis=1)
        stage = np.arange(self.depth)
        routed = self.routed[stops] > self.routed[stops - splits]
        seconds = self.tail[:, stage, stops] - self.tail[:, stage, stops - splits]
        seconds = seconds + self.tail_ends[:, None, :] + self.experts[:, None, :] * routed
        return exposed_tail(
            seconds,
            passes[0],
            passes[1],
            splits * self.virtual_stages,
            hide_reduce=self.hide_reduce,
            hide_gather=self.hide_gather,
        )

    def bounds(self, splits: Ints) -> Floats:
        """Seconds of a step that each split does not beat, [candidates]; close to the truth.

        All splits must fit.
        """
        choices = self.choices(splits)
        passes = self.received(self.pass_seconds(splits, choices, 0), 0)
        if self.virtual_stages > 1:
            each = self._with_ends(self._chunk_seconds(splits, choices, 0), 0)
            done = interleaved_bounds(each, self.send[0], self.wrap[0], self.micro_batches)
        else:
            done = finish_bounds(self.blocked(passes, 0), self.micro_batches)
            # The last gradient is sent when the work is done already.
            done[:, 1:] -= self.send[0]
        reduced, gathered, updated = self.after(splits, passes)
        found: Floats = (done + reduced).max(axis=1) + gathered.max(axis=1) + updated.max(axis=1)
        return found + self.micro_batches * self.micro_exposed[choices[:, 0]]

    def seconds(self, splits: Ints) -> Floats:
        """Seconds of a step with each split, [candidates]; all splits must fit."""
        choices = self.choices(splits)
        makespan = np.full(len(splits), -np.inf)
        finish = np.zeros(splits.shape)
        slowest = np.zeros((2, *splits.shape))
        for chain in range(self.passes.shape[2]):
            passes = self.received(self.pass_seconds(splits, choices, chain), chain)
            done = self._finish(splits, choices, passes, chain)
            slower = done.max(axis=1) > makespan
            makespan = np.where(slower, done.max(axis=1), makespan)
            slowest = np.where(slower[:, None], passes, slowest)
            finish = np.maximum(finish, done)
        reduced, gathered, updated = self.after(splits, slowest)
        found: Floats = (finish + reduced).max(axis=1) + gathered.max(axis=1) + updated.max(axis=1)
        return found + self.micro_batches * self.micro_exposed[choices[:, 0]]


def exact_of(
    costing: Costing, family: Family, limits: Limits, rows: Ints, counts: Ints, stages: Stages
) -> Exact:
    """The exact times of one shape; `stages` is its layout, one candidate."""
    row = stages.row[0]
    kinds = [family.rows[index] for index in row]
    roles = stages.roles()
    most = max(len(kind.choices) for kind in kinds)
    degrees, chunks = family.degrees, family.degrees.virtual_stages
    stop = np.full((most, len(row), family.layers + 1), -1)
    for stage, kind in enumerate(kinds):
        held = held_chunks(degrees.schedule, len(row), stage, family.micro_batches, chunks)
        for back, choice in enumerate(reversed(kind.choices), start=1):
            stop[-back, stage] = limits.stops(
                replace(degrees, recompute=choice),
                kind.pool,
                held,
                first=stage == 0,
                last=stage == len(row) - 1,
                pipelined=len(row) > 1,
            )
    micro_exposed = np.zeros(most)
    if len(row) == 1:
        exposed = costing.micro_exposed(family.degrees, kinds[0])
        micro_exposed[most - len(exposed) :] = exposed
    if stages.alike[0]:
        wrap = _wrap(family, row) if chunks > 1 else 0.0
        times = _of_rows(kinds, roles, most, stages.send, wrap)
    else:
        times = _of_devices(costing, family, rows, counts, roles, most)
    return Exact(
        micro_batches=family.micro_batches,
        receives=family.degrees.framework == "deepspeed",
        hide_reduce=family.degrees.overlap_grad_reduce,
        hide_gather=family.degrees.framework == "megatron",
        passes=times.chunks.sum(axis=2),
        chunks=times.chunks,
        ends=times.ends,
        send=times.send,
        wrap=times.wrap,
        tail=np.stack([tail.layers for tail in times.tails], axis=1),
        tail_ends=np.stack(
            [tail.ends[:, role] for tail, role in zip(times.tails, roles, strict=True)], axis=1
        ),
        experts=np.stack([tail.experts for tail in times.tails], axis=1),
        routed=costing.routed(chunks),
        stop=stop,
        node=_nodes(family, row, counts),
        micro_exposed=micro_exposed,
    )


def _nodes(family: Family, row: Ints, counts: Ints) -> Ints:
    """A number for each stage, equal for stages that must recompute the same."""
    if family.degrees.framework != "megatron":
        return np.arange(len(row))
    node: list[int] = []
    first = 0
    for count in counts:
        kind = family.rows[row[len(node)]]
        # Where stages lie over the borders of nodes, all of them are joined.
        per_node = kind.per_node or 1 if count <= kind.regular else len(row)
        node += [first + at // per_node for at in range(count)]
        first = node[-1] + 1
    return np.array(node)


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """`chunks`, `ends`, `send` and `wrap` of `Exact`, and the tail of each stage."""

    chunks: Floats
    ends: Floats
    send: Floats
    wrap: Floats
    tails: Sequence[Tail]


def _wrap(family: Family, row: Ints) -> float:
    """Seconds of a message between the last and the first stage of a shape placed alike."""
    last, first = row[-1], row[0]
    together = (row == first).all() and len(row) <= (family.rows[first].per_node or 1)
    return float(family.inside[first] if together else family.send[last, first])


def _of_rows(kinds: Sequence[Row], roles: Ints, most: int, send: Floats, wrap: float) -> _Times:
    """The times of a shape whose stages are all placed alike."""
    shape = kinds[0].passes[0].chunks.shape
    # Choices that a row does not have are never made: `stop` says that nothing fits there.
    chunks = np.zeros((2, most, shape[1], 1, len(kinds), shape[2]))
    for stage, kind in enumerate(kinds):
        for back, each in enumerate(reversed(kind.passes), start=1):
            chunks[:, -back, :, 0, stage] = each.chunks
    ends = [kind.passes[-1].ends[:, role] for kind, role in zip(kinds, roles, strict=True)]
    return _Times(
        chunks,
        np.stack(ends, axis=1)[:, None],
        send,
        np.array([wrap]),
        tuple(kind.tail for kind in kinds),
    )


def _of_devices(
    costing: Costing, family: Family, rows: Ints, counts: Ints, roles: Ints, most: int
) -> _Times:
    """The times of a shape whose replicas differ, asked of the devices that they are on."""
    problem = costing.problem
    model = problem.model
    runs = tuple(
        (family.rows[row].pool, int(count)) for row, count in zip(rows, counts, strict=True)
    )
    virtual_stages = family.degrees.virtual_stages
    layout = Layout(family.degrees, runs, (0,) * len(roles))
    whole = configuration(layout, problem.workload)
    choices = [
        family.rows[row].choices
        for row, count in zip(rows, counts, strict=True)
        for _ in range(count)
    ]

    def ask(layers: LayerRange, back: int) -> tuple[Floats, list[Chain]]:
        """Passes with the same layers on every stage, [2, chains, stages]."""
        pipeline = Pipeline(
            tuple(
                replace(
                    stage,
                    # The layers in the first chunk: what a layer takes is the same in all.
                    chunks=(layers, *[LayerRange(layers.stop, 0)] * (virtual_stages - 1)),
                    recompute=Recompute(own[-min(back, len(own))]),
                )
                for stage, own in zip(whole.stages, choices, strict=True)
            )
        )
        found = chains(whole, pipeline, problem.hardware, costing.costs)
        stages = range(len(whole.stages))
        passes = [
            [[each.forward(stage).total for stage in stages] for each in found],
            [[each.backward(stage).total for stage in stages] for each in found],
        ]
        return np.array(passes), found

    ends, found = ask(LayerRange(0, 0), 1)
    layers = np.zeros((2, most, *ends.shape[1:], model.layer_count))
    for back in range(1, most + 1):
        start = 0
        for run in model.layers:
            each = ask(LayerRange(start, 1), back)[0] - ends
            layers[:, -back, ..., start : start + run.count] = each[..., None]
            start += run.count
    return _Times(
        np.moveaxis(cumulated(folded(layers, virtual_stages)), -2, 2),
        ends,
        np.array([chain.send_s for chain in found]).reshape(len(found), -1),
        np.array([chain.wrap_s for chain in found]),
        tuple(
            tail.folded(virtual_stages) if virtual_stages > 1 else tail
            for tail in (tail_of(problem, whole, stage) for stage in whole.stages)
        ),
    )
