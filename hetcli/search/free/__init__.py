"""The free space: replicas of unlike shape with unequal micro-batches, mixed by linear programming.

A column is one pipeline: stages of several device types, each with its own tensor degree, its own
layers and its own micro-batch size. A mix takes every column a number of times; the rows are the
devices of every pool. For a given step time every column processes a number of sequences, so the
fastest mix is found by asking which step time lets the mix process the whole batch.
"""

from __future__ import annotations

from hetcli.search.free.plan import check_free, free_plan

__all__ = ["check_free", "free_plan"]
