from __future__ import annotations

import random

import pytest
from brute_force import small_problem

from hetcli.catalog.inputs import read_model
from hetcli.catalog.samples import read_cluster
from hetcli.errors import EnvironmentFailure, Interrupted
from hetcli.search import PlanOptions, plan
from hetcli.search.entries import Item
from hetcli.search.grid import Grid
from hetcli.spec.workload import Pretrain


def interrupting(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search be interrupted in its `after`-th step."""
    refine = Grid._refine
    steps = iter(range(after))

    def stop(self: Grid, value: float, item: Item) -> None:
        refine(self, value, item)
        if next(steps, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(Grid, "_refine", stop)


@pytest.mark.parametrize("after", [20, 40, 80, 160])
def test_an_interrupted_search_bounds_the_best_plan(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small_problem(random.Random(7))
    whole = Grid(problem).run()
    interrupting(after, monkeypatch)
    found = Grid(problem).run()
    assert found.bound <= whole.plans[0].value * (1 + 1e-12)
    assert found.seen == found.scored + sum(found.pruned.values())
    assert found.interrupted != found.complete
    for each in found.plans:
        assert each.value >= whole.plans[0].value * (1 - 1e-12)


def test_ctrl_c_before_the_first_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(0, monkeypatch)
    with pytest.raises(Interrupted, match="interrupted"):
        plan(
            cluster=read_cluster("sample:flashflex"),
            model=read_model("gpt2"),
            workload=Pretrain(global_batch=8, sequence=512),
        )


def test_a_limit_on_time_gives_the_best_so_far_or_says_that_there_is_none() -> None:
    cluster, model = read_cluster("sample:zorse-c"), read_model("llama-2-7b")
    workload = Pretrain(global_batch=256, sequence=2048)
    with pytest.raises(EnvironmentFailure, match="no plan was found in"):
        plan(
            cluster=cluster,
            model=model,
            workload=workload,
            options=PlanOptions(time_limit_s=1e-6, compare=False),
        )
