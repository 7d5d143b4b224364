"""What a plan must satisfy beside memory: money, speed, nodes and quotas of devices.

Numbers of devices and nodes follow exactly from the stages of a shape; money and speed are decided
by a whole prediction, and before that a lower bound on seconds already rules out what can never
satisfy them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetcli.errors import ConfigurationError, UnknownNameError
from hetcli.perf.configuration import Configuration
from hetcli.perf.hardware import Hardware, Node
from hetcli.perf.prediction import Prediction
from hetcli.search.layout import Degrees
from hetcli.search.options import PlanOptions
from hetcli.search.placement import stages_per_node
from hetcli.search.pools import Pool
from hetcli.spec.workload import Pretrain

__all__ = ["COST", "NODES", "QUOTA", "SPEED", "UNUSED", "Requirements"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The names under which the search counts what a requirement rules out.
COST = "dearer than the limit"
SPEED = "slower than the limit"
NODES = "more nodes than the limit"
QUOTA = "more devices than a quota"
UNUSED = "without a type that must be used"


@dataclass(frozen=True, eq=False)
class Requirements:
    """The limits of one planning problem; seconds and dollars are those of a step."""

    options: PlanOptions
    workload: Pretrain
    hardware: Hardware
    pools: tuple[Pool, ...]

    def check(self) -> None:
        """Refuse limits that name nothing or that no price can be held against.

        Raises:
            UnknownNameError: a quota of a device type or place that the cluster does not have.
            ConfigurationError: a limit on money, and a node without a price.
        """
        for name in (*(name for name, _ in self.options.quotas), *self.options.must_use):
            if not any(name in _names(node) for node in self.hardware.nodes):
                known = dict.fromkeys(each for node in self.hardware.nodes for each in _names(node))
                raise UnknownNameError(
                    f"a limit for {name!r}",
                    why=f"{self.hardware.name} has no such device type or place",
                    fix=f"one of {', '.join(known)}",
                )
        if self.options.max_cost_per_step is None:
            return
        nodes = self.hardware.nodes
        without = sorted({node.group for node in nodes if node.price_per_device_hour is None})
        if without:
            raise ConfigurationError(
                "a limit on money, but not every price is known",
                why=f"no price_per_hour for {', '.join(without)}",
                fix="give these node groups a price_per_hour",
            )

    @cached_property
    def most_seconds(self) -> float:
        """What a step may take; infinite without a limit on speed."""
        options, work = self.options, self.workload
        limits = [np.inf]
        if options.min_steps_per_s is not None:
            limits.append(1 / options.min_steps_per_s)
        if options.min_tokens_per_s is not None:
            limits.append(work.global_batch * work.sequence / options.min_tokens_per_s)
        return float(min(limits))

    @cached_property
    def most_dollars(self) -> float:
        """What a step may cost; infinite without a limit."""
        limit = self.options.max_cost_per_step
        return np.inf if limit is None else limit

    @cached_property
    def quotas(self) -> tuple[tuple[Bools, int], ...]:
        """For each quota the pools that count against it, and how many devices it allows."""
        return tuple(
            (np.array([name in _names(pool.node) for pool in self.pools]), most)
            for name, most in self.options.quotas
        )

    @cached_property
    def _needed(self) -> tuple[Bools, ...]:
        """For each name that must take part the pools that have it."""
        return tuple(
            np.array([name in _names(pool.node) for pool in self.pools])
            for name in self.options.must_use
        )

    def most_stages(self, degrees: Degrees) -> Ints:
        """Stages of each pool that its quotas alone allow, [pools]."""
        most = np.full(len(self.pools), np.iinfo(np.int64).max)
        for counted, devices in self.quotas:
            most[counted] = np.minimum(most[counted], devices // degrees.devices_per_stage)
        return most

    def keep_shapes(
        self, degrees: Degrees, order: Sequence[int], counts: Ints, pruned: Counter[str]
    ) -> Bools:
        """Which shapes keep the limits on devices and nodes; what a limit rules out is counted.

        `counts` are the stages of each pool of `order`, [candidates, pools].
        """
        rules = []
        devices = counts * degrees.devices_per_stage
        for counted, most in self.quotas:
            rules.append((QUOTA, devices @ counted[list(order)] <= most))
        for counted in self._needed:
            rules.append((UNUSED, devices @ counted[list(order)] > 0))
        if self.options.max_nodes is not None:
            nodes = np.zeros(len(counts), dtype=np.int64)
            for column, index in enumerate(order):
                table = self._nodes(
                    degrees, self.pools[index], int(counts[:, column].max(initial=0))
                )
                nodes += table[counts[:, column]]
            rules.append((NODES, nodes <= self.options.max_nodes))
        return _kept(len(counts), rules, pruned)

    def _nodes(self, degrees: Degrees, pool: Pool, most: int) -> Ints:
        """Nodes that 0, 1, .. `most` stages of a pool lie on, as the placement lays them."""
        table = [0]
        for stages in range(1, most + 1):
            inside = stages_per_node(
                pool, tensor=degrees.tensor, members=degrees.members, stages=stages
            )
            groups = stages * degrees.members
            per_node = pool.groups_per_node(degrees.tensor)
            table.append(-(-stages // inside) if inside else -(-groups // per_node))
        return np.array(table)

    def keep_bounds(self, seconds: Floats, dollars: Floats, pruned: Counter[str]) -> Bools:
        """Which candidates may keep the limits on speed and money, by bounds on both."""
        rules = [(SPEED, seconds <= self.most_seconds), (COST, dollars <= self.most_dollars)]
        return _kept(len(seconds), rules, pruned)

    def broken_by(self, configuration: Configuration, prediction: Prediction) -> str | None:
        """The first requirement that a predicted plan does not satisfy; None when it does all."""
        if prediction.step_time_s > self.most_seconds:
            return SPEED
        cost = prediction.cost_per_step
        if cost is not None and cost > self.most_dollars:
            return COST
        used = [self.hardware.node_of(device) for device in configuration.devices]
        if (
            self.options.max_nodes is not None
            and len({node.machine for node in used}) > self.options.max_nodes
        ):
            return NODES
        for name, most in self.options.quotas:
            if sum(name in _names(node) for node in used) > most:
                return QUOTA
        return None


def _kept(number: int, rules: Sequence[tuple[str, Bools]], pruned: Counter[str]) -> Bools:
    kept = np.ones(number, dtype=np.bool_)
    for rule, mask in rules:
        broken = int((kept & ~mask).sum())
        if broken:
            pruned[rule] += broken
            kept &= mask
    return kept


def _names(node: Node) -> Mapping[str, None]:
    """The names that a quota may count a node's devices under, in a stable order."""
    names = (node.device_type.gpu.name, node.zone, node.region, node.fabric)
    return dict.fromkeys(name for name in names if name)
