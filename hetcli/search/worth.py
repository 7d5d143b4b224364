"""What a search minimises: seconds, or the dollars of the devices in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetcli.errors import ConfigurationError
from hetcli.search.costs import Family
from hetcli.search.families import Problem
from hetcli.search.requirements import Requirements

__all__ = ["SECONDS_PER_HOUR", "Worth", "check_prices"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SECONDS_PER_HOUR = 3600.0  # prices are per hour


@dataclass(frozen=True, eq=False)
class Worth:
    """The objective of one problem, and the limits on time and money."""

    problem: Problem
    requirements: Requirements

    @property
    def is_time(self) -> bool:
        """Whether seconds are minimised, not dollars."""
        return self.problem.workload.objective == "throughput"

    def rate(self, family: Family, rows: Ints, counts: Ints) -> Floats:
        """Dollars a second of whole shapes, [candidates]."""
        hourly = [row.pool.node.price_per_device_hour or 0.0 for row in family.rows]
        each = np.array(hourly) * family.degrees.devices_per_stage / SECONDS_PER_HOUR
        rate: Floats = (counts * each[rows]).sum(axis=1)
        return rate

    def value(self, seconds: Floats, rate: Floats) -> Floats:
        """What is minimised: the seconds, or the dollars of the devices in them."""
        return seconds if self.is_time else seconds * rate

    def seconds(self, value: Floats, rate: Floats) -> Floats:
        """The seconds of shapes that have a value."""
        if self.is_time:
            return np.asarray(np.broadcast_to(value, rate.shape))
        seconds: Floats = value / np.maximum(rate, 1e-300)
        return seconds

    def useful_seconds(self, rate: Floats, value: float) -> Floats:
        """Seconds within which a shape reaches a value and keeps the limits."""
        seconds = self.seconds(np.full(len(rate), value), rate)
        requirements = self.requirements
        seconds = np.minimum(seconds, requirements.most_seconds * (1 + 1e-12))
        useful: Floats = np.minimum(seconds, requirements.most_dollars / np.maximum(rate, 1e-300))
        return useful


def check_prices(problem: Problem) -> None:
    """Refuse to look for the cheapest plan where a price is unknown.

    Raises:
        ConfigurationError: it names the groups without a price.
    """
    without = sorted(
        {pool.node.group for pool in problem.pools if pool.node.price_per_device_hour is None}
    )
    if without:
        raise ConfigurationError(
            "the cheapest plan is asked for, but not every price is known",
            why=f"no price_per_hour for {', '.join(without)}",
            fix="give these node groups a price_per_hour, or --objective throughput",
        )
