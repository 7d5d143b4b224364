from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.perf.pipeline.list_scheduling import list_schedule
from hetcli.perf.pipeline.schedules import schedule
from hetcli.perf.pipeline.work import Place, Schedule


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 12))
def test_with_1f1bs_limits_and_equal_passes_it_finds_1f1b(stages: int, micro_batches: int) -> None:
    route = tuple(Place(stage, 0) for stage in range(stages))
    limits = {place: stages - place.stage for place in route}
    order = list_schedule(stages, (route,), (0,) * micro_batches, limits=limits, forward_first=True)
    assert order == schedule("1f1b", stages, micro_batches).order


@settings(deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
    st.booleans(),
    st.data(),
)
def test_no_limits_and_no_times_can_block_it(
    stages: int, chunks: int, route_of: list[int], forward_first: bool, data: st.DataObject
) -> None:
    down = tuple(Place(stage, chunk) for chunk in range(chunks) for stage in range(stages))
    up = tuple(Place(stage, chunk + chunks) for stage, chunk in reversed(down))
    limits = {place: data.draw(st.integers(1, 3)) for place in (*down, *up)}
    seconds = {place: data.draw(st.floats(0, 3)) for place in (*down, *up)}
    order = list_schedule(
        stages,
        (down, up),
        route_of,
        limits=limits,
        forward_s=seconds.__getitem__,
        backward_s=lambda place: 3 - seconds[place],
        forward_first=forward_first,
    )
    result = Schedule("fused", order, (down, up), tuple(route_of))
    assert len(result.steps) == 2 * len(down) * len(route_of)
    for place, limit in limits.items():
        sizes = [1.0 if chunk == place.chunk else 0.0 for chunk in range(2 * chunks)]
        assert max(result.held(place.stage, sizes), default=0) <= limit
