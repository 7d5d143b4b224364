"""What a trial would measure wrongly is refused before any process starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny import configuration, devices, model, stage

from hetcli.errors import UnsupportedByTargetError
from hetcli.spec.model.architecture import Adapters
from hetcli.trial.support import check_supported


def given(**more: Any) -> Any:
    return replace(configuration([stage([(0, 4)], [(devices(0, 1), 4)])], batch=4), **more)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"precision": "fp8"}, "fp8 training"),
        ({"zero_stage": 3}, "ZeRO stage 3"),
        ({"offload": "optimizer"}, "offload of optimizer"),
    ],
)
def test_what_it_does_not_run_is_refused(more: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedByTargetError, match=what):
        check_supported(given(**more), model())


def test_adapters_are_refused_and_whole_models_are_not() -> None:
    check_supported(given(), model())
    adapted = model().model_copy(update={"adapters": Adapters(rank=4)})
    with pytest.raises(UnsupportedByTargetError, match="does not run adapters"):
        check_supported(given(), adapted)
