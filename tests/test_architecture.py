"""The walls of the house: who may import whom, who may need a GPU library, how large a file is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "hetcli"
# What a room reads, beside what is common: data flow one way.
READS = {
    "spec": set[str](),
    "catalog": {"spec"},
    "perf": {"spec", "catalog"},
    "probe": {"spec", "catalog"},
    "search": {"spec", "catalog", "perf"},
    "export": {"spec", "catalog", "perf", "search"},
    "adapt": {"spec", "catalog", "perf", "search"},
    "trial": {"spec", "catalog", "perf", "search"},
    # The renderings of a launch directory and of the doctor's findings stand with the others.
    "report": {"spec", "catalog", "perf", "export", "probe"},
}
ROOMS = {*READS, "cli"}
HEAVY = {"torch", "pynvml"}
MOST_LINES = 500


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Dotted names of everything that a module imports, late or for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", sorted(READS))
def test_imports_run_one_way(room: str) -> None:
    for path in modules():
        if room_of(path) != room:
            continue
        for name in imported(path):
            package, _, rest = name.partition(".")
            other = rest.split(".")[0]
            if package == "hetcli" and other in ROOMS - {room}:
                assert other in READS[room], f"{path} imports {name}"


def test_every_room_is_known() -> None:
    rooms = {room_of(path) for path in modules() if path.parent != PACKAGE}
    assert rooms == ROOMS


def test_only_probes_and_trials_need_torch_or_nvml() -> None:
    for path in modules():
        found = {name.split(".")[0] for name in imported(path)} & HEAVY
        assert not found or room_of(path) in {"probe", "trial"}, f"{path} imports {found}"


def test_no_module_is_longer_than_a_reader_holds_in_mind() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path: size for path, size in sizes.items() if size > MOST_LINES} == {}
