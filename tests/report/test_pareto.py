"""The front against its definition."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from math import hypot

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetcli.report.forms import Report
from hetcli.report.pareto import Choice, Trade, trade
from hetcli.report.scatter import scatter
from hetcli.report.step_view import trade_lines

DOTS = st.lists(
    st.tuples(st.floats(1.0, 2.0), st.floats(1.0, 2.0)), min_size=1, max_size=6, unique=True
)
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


def drawn(points: list[tuple[float, float]]) -> Trade:
    return Trade(
        "cost",
        tuple(
            Choice(rank, "tp1", speed, cost, best=rank == 1)
            for rank, (speed, cost) in enumerate(points, start=1)
        ),
    )


@settings(deadline=None)
@given(DOTS)
def test_labels_of_the_plot_cover_no_dot_and_no_other_label(
    points: list[tuple[float, float]],
) -> None:
    marks = scatter(drawn(points)).marks
    for mark in marks:
        assert all(hypot(mark.label_x - each.x, mark.label_y - each.y) > 8 for each in marks)
    for one, other in combinations(marks, 2):
        assert hypot(one.label_x - other.label_x, one.label_y - other.label_y) > 12


@settings(deadline=None)
@given(DOTS)
def test_every_plan_can_be_read_off_the_terminal_plot(points: list[tuple[float, float]]) -> None:
    lines = trade_lines(drawn(points))
    ranks = [int(mark) for line in lines[:-2] for mark in re.findall(r"\d+", line.split("│")[1])]
    assert sorted(ranks) == list(range(1, len(points) + 1))
    assert max(len(line) for line in lines) <= 98
