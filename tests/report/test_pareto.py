"""The front against its definition."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetcli.report.forms import Report
from hetcli.report.pareto import trade

POINTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(POINTS)
def test_best_plans_are_those_that_no_other_beats(
    mixed: Report, points: list[tuple[int, int]]
) -> None:
    first = mixed.plan.alternatives[0]
    plan = mixed.plan.model_copy(
        update={
            "alternatives": tuple(
                first.model_copy(
                    update={
                        "rank": rank,
                        "tokens_per_s": float(speed),
                        "cost_per_step": float(cost),
                    }
                )
                for rank, (speed, cost) in enumerate(points, start=1)
            )
        }
    )
    found = trade(plan)
    assert found.against == "cost"
    for choice, (speed, cost) in zip(found.choices, points, strict=True):
        better = [s for s, c in points if (s >= speed and c < cost) or (s > speed and c <= cost)]
        assert choice.best == (not better)


def test_memory_takes_the_place_of_unknown_prices(mixed: Report) -> None:
    entries = tuple(
        each.model_copy(update={"cost_per_step": None}) for each in mixed.plan.alternatives
    )
    found = trade(mixed.plan.model_copy(update={"alternatives": entries}))
    assert found.against == "memory"
    assert [each.value for each in found.choices] == [each.headroom_bytes for each in entries]


def test_a_plan_without_a_search_stands_alone(mixed: Report) -> None:
    found = trade(mixed.plan.model_copy(update={"alternatives": ()}))
    assert [(each.rank, each.best) for each in found.choices] == [(1, True)]
    lone = replace(mixed, plan=mixed.plan.model_copy(update={"alternatives": ()}))
    assert "No search was made" in lone.html()
    assert "[1]" in lone.text()
