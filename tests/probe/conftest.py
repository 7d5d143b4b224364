"""Recorded drivers, and folders that look like parts of sysfs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "nvml"


def _player() -> Any:
    spec = importlib.util.spec_from_file_location("recorded_nvml", RECORDINGS / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def recorded() -> Callable[..., Any]:
    """`recorded("dgx_a100")` answers like pynvml on that machine."""
    load: Callable[..., Any] = _player().load
    return load
