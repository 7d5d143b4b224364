"""The planner: `plan` searches, `estimate` predicts what a user gives."""

from __future__ import annotations

from hetcli.search.document import configuration_of
from hetcli.search.estimate import estimate
from hetcli.search.options import EstimateRequest, PlanOptions
from hetcli.search.planner import plan

__all__ = ["EstimateRequest", "PlanOptions", "configuration_of", "estimate", "plan"]
