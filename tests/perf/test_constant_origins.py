"""No number of the model is without an origin: catalogue entries, fitted terms, code."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

import hetcli
from hetcli.catalog.efficiency import MatmulCurve, Term, shipped_efficiency
from hetcli.perf.validation.knobs import MIN_ROWS
from hetcli.spec.base import Origin

ROOT = Path(hetcli.__file__).parent
MODEL = sorted(path for room in ("perf", "search") for path in (ROOT / room).rglob("*.py"))


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


WORDS = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
# Calls whose numbers are shapes of arrays.
SHAPES = {"zeros", "ones", "full", "empty", "reshape", "transpose"}


def free(value: float) -> bool:
    """Whether a number states no measurement: counts, halves, powers of ten and of two as units."""
    if value in (0, 0.5, 1, 2):
        return True
    ten, two = math.log10(value), math.log2(value)
    return abs(ten - round(ten)) < 1e-12 or (two >= 10 and two == round(two))


def chain(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The node with what holds it, and so on up to the module."""
    while node in parents:
        yield node, parents[node]
        node = parents[node]


def names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute):
            yield each.id if isinstance(each, ast.Name) else each.attr


def structural(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a number is an index, an exponent, a shape, a ZeRO stage or the size of a cache."""
    for child, holder in chain(node, parents):
        match holder:
            case ast.Subscript(slice=where) if where is child:
                return True
            case ast.BinOp(op=ast.Pow(), right=exponent) if exponent is child:
                return True
            case ast.Call(func=function):
                called = list(names(function))
                if "lru_cache" in called or SHAPES & set(called[:1]):
                    return True
            case ast.Compare() if any("zero" in name or name == "stage" for name in names(holder)):
                return True
            case ast.Assign(targets=[ast.Name(id="stage")]):
                return True
    return False


def documented(node: ast.AST, value: float, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the docstring of a function or class around a number speaks of it."""
    text = " ".join(
        ast.get_docstring(holder) or ""
        for _, holder in chain(node, parents)
        if isinstance(holder, ast.FunctionDef | ast.ClassDef)
    )
    digits = rf"(?<![\d.]){re.escape(f'{value:g}')}(?![\d])"
    return bool(re.search(digits, text)) or WORDS.get(int(value), "no word") in text.lower()


def commented(lines: Sequence[str], line: int) -> bool:
    """Whether a comment stands on the line or above it, in the block of lines that it ends."""
    if "#" in lines[line - 1]:
        return True
    for above in range(line - 2, -1, -1):
        text = lines[above].strip()
        if text.startswith("#"):
            return True
        if not text:
            return False
    return False


def silent(text: str) -> list[str]:
    """Numbers of a module that neither a comment nor a docstring explains."""
    lines, tree = text.splitlines(), ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return [
        f"{node.lineno}: {lines[node.lineno - 1].strip()}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and type(node.value) in (int, float)
        and not free(node.value)
        and not structural(node, parents)
        and not documented(node, node.value, parents)
        and not commented(lines, node.lineno)
    ]


@pytest.mark.parametrize("path", MODEL, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_number_of_the_model_and_the_search_says_why(path: Path) -> None:
    assert silent(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "explained"),
    [
        ("def f(x):\n    return 0.83 * x\n", False),
        ("def f(x):\n    return 7 * x\n", False),
        ("SHARE = 0.83\n", False),
        ("# arXiv 1903.07486, table 3.1.\nSHARE = 0.83\n", True),
        ("def f(x):\n    # Half a tile more.\n    return x + 64\n", True),
        ('def f(x):\n    """Seven copies of x."""\n    return 7 * x\n', True),
        ('def f(x):\n    """A share of x."""\n    return 0.83 * x\n', False),
        ("def f(x):\n    return x[3] * 1e9 / 2**30 + 1\n", True),
    ],
)
def test_a_number_needs_a_comment_or_a_docstring_that_names_it(text: str, explained: bool) -> None:
    assert (silent(text) == []) is explained
