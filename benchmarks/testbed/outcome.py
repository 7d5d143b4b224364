"""What came of a scenario: predicted beside measured, plan by plan."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

__all__ = ["Outcome", "Row"]


@dataclass
class Row:
    """One plan that was run."""

    name: str
    predicted_s: float
    measured_s: float
    losses: tuple[float, ...]

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass
class Outcome:
    """A scenario's figures; `rows` are in the order of prediction, the planned one first."""

    name: str
    candidates: int
    realtime: bool = False
    # By how much the search misses the best plan of the space that it can express.
    search_excess: float = 0.0
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    # Of the machine, when the scenario was done.
    load: float = 0.0

    @property
    def mean_error(self) -> float:
        return statistics.mean(abs(row.error) for row in self.rows)

    @property
    def largest_error(self) -> float:
        return max(abs(row.error) for row in self.rows)

    @property
    def regret(self) -> float:
        """How much slower the planned plan is than the fastest that was run."""
        return self.rows[0].measured_s / min(row.measured_s for row in self.rows) - 1

    @property
    def rank_correlation(self) -> float:
        """Spearman's, between predicted and measured."""
        from scipy.stats import spearmanr

        predicted_s = [row.predicted_s for row in self.rows]
        return float(spearmanr(predicted_s, [row.measured_s for row in self.rows]).statistic)

    @property
    def loss_curves(self) -> int:
        """Distinct loss curves, to three decimals: 1 when all plans train alike."""
        return len({tuple(round(loss, 3) for loss in row.losses) for row in self.rows})

    def figures(self) -> dict[str, object]:
        """Everything but the plans' losses, to be kept and shown."""
        return {
            "candidates": self.candidates,
            "realtime": self.realtime,
            "load": self.load,
            "seconds": self.seconds,
            "mean_error": self.mean_error,
            "largest_error": self.largest_error,
            "regret": self.regret,
            "rank_correlation": self.rank_correlation,
            "loss_curves": self.loss_curves,
            "search_excess": self.search_excess,
            "plans": [
                {
                    "name": row.name,
                    "predicted_s": row.predicted_s,
                    "measured_s": row.measured_s,
                }
                for row in self.rows
            ],
        }
