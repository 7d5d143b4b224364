"""Who adds up gradients with whom."""

from __future__ import annotations

import pytest
from tiny import EXPERTS, configuration, devices, model, stage

from hetcli.errors import ConfigurationError
from hetcli.perf.configuration import Configuration, DeviceId
from hetcli.spec.model.architecture import Model
from hetcli.trial.holders import Content, parts
from hetcli.trial.program import programs


def members(given: Configuration, made: Model) -> dict[tuple[Content, int], tuple[int, ...]]:
    """Device indices by content and region."""
    found = parts(given, made, programs(given))
    return {
        (part.content, part.region): tuple(device.index for device in part.members)
        for held in found.values()
        for part in held
    }


def test_only_the_replicas_of_a_stage_hold_its_layers() -> None:
    given = configuration(
        [
            stage([(0, 2)], [(devices(0, 1), 1), (devices(1, 1), 1)]),
            stage([(2, 2)], [(devices(2, 1), 1), (devices(3, 1), 1)]),
        ],
        batch=2,
    )
    found = members(given, model())
    assert found[Content("layer", 1), 0] == (0, 1)
    assert found[Content("layer", 2), 0] == (2, 3)
    assert found[Content("embedding"), 0] == (0, 1)
    assert found[Content("head"), 0] == (2, 3)


def test_a_tied_table_is_held_by_both_ends() -> None:
    given = configuration(
        [stage([(at, 1)], [(devices(at, 1), 1)]) for at in range(4)],
        batch=1,
    )
    found = members(given, model(tied_embeddings=True))
    assert found[Content("embedding"), 0] == (0, 3)
    assert found[Content("head"), 0] == (3,)


def test_a_layer_is_summed_over_pipelines_that_cut_elsewhere() -> None:
    given = configuration(
        [stage([(0, 3)], [(devices(0, 1), 1)]), stage([(3, 1)], [(devices(1, 1), 1)])],
        [stage([(0, 1)], [(devices(2, 1), 1)]), stage([(1, 3)], [(devices(3, 1), 1)])],
        batch=2,
    )
    found = members(given, model())
    assert found[Content("layer", 0), 0] == (0, 2)
    assert found[Content("layer", 1), 0] == (0, 3)
    assert found[Content("layer", 3), 0] == (1, 3)


def test_a_device_with_the_smaller_degree_holds_several_regions() -> None:
    given = configuration(
        [stage([(0, 4)], [(devices(0, 2), 1)], tp=2)],
        [stage([(0, 4)], [(devices(2, 1), 1)])],
        batch=2,
    )
    found = members(given, model())
    assert found[Content("layer", 0), 0] == (0, 2)
    assert found[Content("layer", 0), 1] == (1, 2)


def test_experts_are_summed_over_those_who_hold_the_same_ones() -> None:
    given = configuration(
        [stage([(0, 4)], [(devices(at, 1), 1) for at in range(4)])], batch=4, expert_parallel=2
    )
    found = members(given, model(layer=EXPERTS))
    assert found[Content("experts", 0), 0] == (0, 2)
    assert found[Content("experts", 0), 1] == (1, 3)
    assert found[Content("layer", 0), 0] == (0, 1, 2, 3)


def test_both_directions_hold_a_copy_of_every_layer() -> None:
    given = configuration(
        [stage([(0, 2), (0, 2)], [(devices(at, 1), 2)]) for at in range(2)],
        batch=2,
        schedule="bidirectional",
    )
    found = members(given, model())
    assert all(found[Content("layer", number), 0] == (0, 1) for number in range(4))


def test_degrees_that_do_not_divide_each_other_are_refused() -> None:
    given = configuration(
        [stage([(0, 4)], [(devices(0, 2), 1)], tp=2)],
        [stage([(0, 4)], [(devices(2, 3), 1)], tp=3)],
        batch=2,
    )
    with pytest.raises(ConfigurationError, match=r"tensor_parallel \[2, 3\]"):
        parts(given, model(), programs(given))


def test_every_device_lists_its_parts_in_model_order() -> None:
    given = configuration([stage([(0, 4)], [(devices(0, 1), 1)])], batch=1)
    held = parts(given, model(), programs(given))[DeviceId("n0", 0)]
    kinds = [(part.content.kind, part.content.layer) for part in held]
    assert kinds == [("embedding", 0), *(("layer", number) for number in range(4)), ("head", 0)]
