"""Random plans: what a target runs comes back from the files, the rest is refused by its rule."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_breaks import BREAKS
from random_plans import feasible
from recording import written

from hetcli.errors import UnsupportedByTargetError
from hetcli.export import TARGETS, render
from hetcli.export.readback import check_directory

MANY = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("target", sorted(TARGETS))
@MANY
@given(st.data())
def test_a_feasible_plan_comes_back_from_its_directory(target: str, data: st.DataObject) -> None:
    plan = data.draw(feasible(target))
    with tempfile.TemporaryDirectory() as folder:
        checked = check_directory(written(render(plan, target=target), Path(folder)))
    assert checked.target == target
    assert checked.differences == ()


@pytest.mark.parametrize("target", sorted(BREAKS))
@MANY
@given(st.data())
def test_a_plan_that_a_target_cannot_run_is_refused_by_its_rule(
    target: str, data: st.DataObject
) -> None:
    plan = data.draw(feasible(target))
    wrong = data.draw(st.sampled_from([b for b in BREAKS[target] if b.applies(plan)]))
    with pytest.raises(UnsupportedByTargetError) as caught:
        render(wrong.change(plan), target=target)
    assert wrong.rule in caught.value.why
