"""The free space against every mix of tiny problems, and against the grid."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from every_mix import columns, predictions, tiny_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hetcli.catalog.inputs import read_cluster, read_model
from hetcli.cli import app
from hetcli.errors import ConfigurationError
from hetcli.perf.chains import chains
from hetcli.perf.filling import pipeline_time
from hetcli.perf.stage import Costs
from hetcli.search import PlanOptions, plan
from hetcli.search.free.columns import Column
from hetcli.search.free.costs import Kind, PipelineCosts, Setting
from hetcli.search.free.layout import configuration
from hetcli.search.free.search import search_free
from hetcli.search.free.sets import sets_of
from hetcli.search.free.share import share, slowest
from hetcli.search.grid import Grid
from hetcli.spec.plan import Plan
from hetcli.spec.workload import Pretrain

TINY = [
    ("A100-SXM4-80GB:2+V100-SXM2-16GB:2", 2, 5),
    ("A100-SXM4-80GB:1+V100-SXM2-16GB:2", 3, 6),
    ("A100-SXM4-80GB:2+RTX-3090:1", 3, 7),
    ("V100-SXM2-16GB:2+T4:1", 4, 8),
    ("A100-SXM4-80GB:1+V100-SXM2-16GB:1+T4:1", 2, 7),
    ("A100-SXM4-80GB:1+V100-SXM2-16GB:1", 4, 16),
]


@pytest.mark.parametrize(("cluster", "layers", "batch"), TINY)
def test_no_mix_of_a_tiny_problem_is_faster(cluster: str, layers: int, batch: int) -> None:
    problem = tiny_problem(cluster, layers, batch)
    best_s = min(found.step_time_s for _, found in predictions(problem))
    grid = Grid(replace(problem, options=replace(problem.options, space="grid"))).run()
    grid_s = grid.plans[0].prediction.step_time_s
    found = search_free(problem, known_s=grid_s)
    free_s = min([grid_s, *(each.prediction.step_time_s for each in found.plans)])
    assert free_s == pytest.approx(best_s, rel=1e-9)
    assert min(found.bound_s, grid.bound) <= best_s * (1 + 1e-9)


@pytest.mark.parametrize("cluster", ["A100-SXM4-80GB:2+V100-SXM2-16GB:2", "T4:2+RTX-3090:2"])
def test_no_pipeline_does_more_micro_batches_than_its_bound(cluster: str) -> None:
    problem = tiny_problem(cluster, 5, 12)
    costs, setting = PipelineCosts(problem), Setting("fp16", 1, "none")
    seen = 0
    for column in columns(problem):
        kinds = [kind for kind, _ in column.runs]
        counts = np.array([[count for _, count in column.runs]])
        sets = sets_of(costs, setting, kinds, counts)
        for number in (column.depth, column.depth + 1, 3 * column.depth, 12):
            if number < column.depth:
                continue
            whole = configuration(problem, [(column, [number])], "replicas")
            assert whole is not None
            found = chains(whole, whole.pipelines[0], problem.hardware, Costs(problem.model))
            makespan_s = pipeline_time(found, whole.schedule).makespan_s
            assert sets.micro_batches(makespan_s, np.array([0]))[0] >= number
            seen += 1
    assert seen > 100


def unlike_replicas(**options: object) -> Plan:
    return plan(
        cluster=read_cluster("A100-SXM4-80GB:4+V100-SXM2-16GB:4+RTX-3090:4"),
        model=read_model("gpt2"),
        workload=Pretrain(global_batch=96, sequence=1024),
        options=PlanOptions(**options),  # type: ignore[arg-type]
    )


def test_unlike_replicas_beat_equal_ones_where_cards_are_unlike(tmp_path: Path) -> None:
    grid, free = unlike_replicas(compare=False), unlike_replicas(space="free")
    # Equal replicas leave the slower cards idle; unlike ones use all twelve.
    assert {stage.gpu for stage in grid.stages} == {"A100-SXM4-80GB"}
    assert free.search.space == "free"
    assert not free.search.idle_devices
    gain = grid.predicted.step_time_s / free.predicted.step_time_s - 1
    assert gain > 0.3
    assert any(f"{gain:.1%} faster" in note for note in free.notes)
    assert any("mean all-reduce" in note for note in free.notes)
    weights = {
        device.node: replica.gradient_weight
        for stage in free.stages
        for replica in stage.replicas
        for device in replica.devices
    }
    assert weights["a100-sxm4-80gb-0"] > weights["rtx-3090-0"]
    # The plan is a file like any other, and a target that cannot run it says so.
    path = tmp_path / "plan.json"
    path.write_text(free.model_dump_json())
    result = CliRunner().invoke(app, ["export", str(path), "-o", str(tmp_path / "launch")])
    assert result.exit_code != 0
    assert "replica" in result.stderr
    assert not (tmp_path / "launch").exists()


def test_the_same_problem_has_the_same_plans() -> None:
    problem = tiny_problem(*TINY[2])
    one, other = (search_free(problem, known_s=np.inf) for _ in range(2))
    assert one.plans
    assert [each.configuration for each in one.plans] == [
        each.configuration for each in other.plans
    ]
    assert one.bound_s == other.bound_s


@pytest.mark.parametrize(
    "options",
    [{"data_parallel": 2}, {"pipeline_parallel": 2}, {"context_parallel": 2}, {"pareto": True}],
)
def test_options_of_the_grid_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="free space"):
        unlike_replicas(space="free", **options)


def column(kind: Kind, size: int, pace: float, fill: float) -> Column:
    return Column(Setting("fp16", size, "none"), ((kind, 1),), (1,), fill, pace, 0.0)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 9), st.integers(0, 9)),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 14),
)
@settings(deadline=None)
def test_shares_make_up_the_batch_and_end_as_early_as_any(
    members: list[tuple[int, int, int]], batch: int
) -> None:
    kind = Kind(tiny_problem("T4:1", 1, 1).pools[0], 1)
    pipelines = [column(kind, size, float(pace), float(fill)) for size, pace, fill in members]
    every = [
        counts
        for counts in product(range(1, batch + 1), repeat=len(pipelines))
        if sum(size * number for (size, _, _), number in zip(members, counts, strict=True)) == batch
    ]
    found = share(pipelines, batch)
    if not every:
        assert found is None
        return
    assert found is not None
    assert tuple(found) in every
    if len({size for size, _, _ in members}) == 1:
        best = min(slowest(pipelines, counts) for counts in every)
        assert slowest(pipelines, found) == pytest.approx(best)
