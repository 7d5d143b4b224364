"""No number of the model is without an origin: catalogue entries, fitted terms, code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

import hetcli
from hetcli.catalog.efficiency import MatmulCurve, Term, shipped_efficiency
from hetcli.perf.validation.knobs import MIN_ROWS
from hetcli.spec.base import Origin

PERF = sorted((Path(hetcli.__file__).parent / "perf").rglob("*.py"))
# Numbers that state no measurement: counts, halves, conversions.
PLAIN = {0, 1, 2, 3, 4, 0.5, 1.5, 10, 100, 1e3, 1e6, 1e9, 1e12, 1e-9, 1e-6, 1024, 2**20, 2**30}


def fitted_terms() -> Iterator[tuple[str, Term | MatmulCurve]]:
    table = shipped_efficiency()
    for device in table.devices:
        for dtype, curve in device.matmul.items():
            yield f"{device.name} matmul {dtype}", curve
        for dtype, term in device.sustained.items():
            yield f"{device.name} sustained {dtype}", term
        for name in ("attention", "attention_backward", "grouped", "streaming"):
            yield f"{device.name} {name}", getattr(device, name)
    for framework in table.frameworks:
        for name in type(framework).model_fields:
            term = getattr(framework, name)
            if isinstance(term, Term):
                yield f"{framework.name} {framework.since or ''} {name}", term


def test_no_term_is_fitted_on_fewer_than_ten_rows() -> None:
    terms = dict(fitted_terms())
    fitted = {name: term for name, term in terms.items() if term.origin is Origin.FITTED}
    assert len(fitted) > 50
    assert {name: term.rows for name, term in fitted.items() if term.rows < MIN_ROWS} == {}
    assert MIN_ROWS >= 10


def test_every_efficiency_says_where_it_comes_from() -> None:
    assert [name for name, term in fitted_terms() if len(term.source) < 5] == []


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("hetcli.catalog", "gpus.yaml"),
        ("hetcli.catalog", "links.yaml"),
        ("hetcli.perf.memory", "constants.yaml"),
    ],
)
def test_every_entry_of_a_data_file_has_a_source(package: str, name: str) -> None:
    document = yaml.safe_load(resources.files(package).joinpath(name).read_text("utf-8"))
    document.pop("sources", None)
    entries: list[dict[str, Any]] = []
    for value in document.values():
        entries += value if isinstance(value, list) else [value]
    assert len(entries) > 5
    assert [entry for entry in entries if not entry.get("source")] == []


def numbers(node: ast.AST) -> set[float]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant)
        and isinstance(each.value, int | float)
        and not isinstance(each.value, bool)
        and each.value not in PLAIN
    }


def commented(lines: list[str], line: int) -> bool:
    """Whether a comment stands on the line or right above the block of lines that it ends."""
    if "#" in lines[line - 1]:
        return True
    for above in range(line - 2, -1, -1):
        text = lines[above].strip()
        if text.startswith("#"):
            return True
        if not text:
            return False
    return False


@pytest.mark.parametrize("path", PERF, ids=lambda path: str(path.relative_to(PERF[0].parent)))
def test_every_constant_of_the_model_says_why(path: Path) -> None:
    text = path.read_text("utf-8")
    lines = text.splitlines()
    silent = [
        f"{path.name}:{node.lineno}: {sorted(found)}"
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and (found := numbers(node.value))
        and not commented(lines, node.lineno)
    ]
    assert silent == []


@pytest.mark.parametrize("path", PERF, ids=lambda path: str(path.relative_to(PERF[0].parent)))
def test_no_number_with_digits_hides_inside_a_function(path: Path) -> None:
    text = path.read_text("utf-8")
    lines = text.splitlines()
    silent = []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef):
            continue
        documented = ast.get_docstring(function) is not None
        for node in ast.walk(function):
            if isinstance(node, ast.Constant) and isinstance(node.value, float):
                plain = node.value in PLAIN
                if not plain and not documented and not commented(lines, node.lineno):
                    silent.append(f"{path.name}:{node.lineno}: {node.value}")
    assert silent == []
