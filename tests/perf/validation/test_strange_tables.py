"""Tables as strangers write them: other separators, missing columns, cells that make no sense."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetcli.errors import SpecError
from hetcli.perf.validation.predict import predict_rows, runs_of
from hetcli.perf.validation.table import parse_table, read_table

RUNS = Path(__file__).parents[2] / "published" / "training_runs.csv"
TEXT = RUNS.read_text("utf-8")
[HEADING, FIRST, *_] = TEXT.splitlines()
COLUMNS = HEADING.split(",")
# Columns that a table must have, and those without which no row of it can be predicted.
REQUIRED = ("model", "seq_len", "tp", "pp", "global_batch")
NEEDED = ("gpu", "gpus", "layers", "hidden", "heads", "micro_batch")


def written(rows: list[dict[str, str]], delimiter: str = ",") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cells() -> dict[str, str]:
    return dict(next(csv.DictReader(io.StringIO(TEXT))))


def reason(**changes: str) -> str:
    """Why a row with other cells is skipped."""
    runs, skipped = runs_of(parse_table(written([cells() | changes]), "mine.csv"))
    assert runs == []
    return skipped[0].reason


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_cells_may_be_separated_by_what_spreadsheets_write(delimiter: str) -> None:
    rows = list(csv.DictReader(io.StringIO(TEXT)))
    assert parse_table(written(rows, delimiter), "mine") == parse_table(TEXT, "mine")


def test_a_byte_order_mark_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEADING}\n\n{FIRST}\n" + "," * (len(COLUMNS) - 1) + "\n", "utf-8-sig")
    [row] = read_table(path)
    assert row.id == cells()["id"]


def test_rows_without_a_name_are_called_by_their_line_and_file() -> None:
    row = cells()
    del row["id"], row["source"]
    runs, _ = runs_of(parse_table(written([row, row | {"gpu": "no such card"}]), "mine.csv"))
    assert [(run.id, run.source) for run in runs] == [("line 2", "mine.csv")]


def test_columns_that_nobody_asked_for_are_ignored() -> None:
    runs, _ = runs_of(parse_table(written([cells() | {"favourite colour": "blue"}]), "mine"))
    assert len(runs) == 1


@pytest.mark.parametrize("column", REQUIRED)
def test_a_table_without_a_required_column_is_refused_by_its_name(column: str) -> None:
    row = cells()
    del row[column]
    with pytest.raises(SpecError, match=f"no column {column}"):
        parse_table(written([row]), "mine")


@pytest.mark.parametrize("column", sorted(set(COLUMNS) - set(REQUIRED)))
def test_any_other_missing_column_skips_rows_or_is_not_needed(column: str) -> None:
    row = cells()
    del row[column]
    runs, skipped = runs_of(parse_table(written([row]), "mine"))
    assert len(runs) + len(skipped) == 1
    assert bool(skipped) == (column in NEEDED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "RTX-9999"}, "unknown GPU 'RTX-9999'"),
        ({"gpus": ""}, "gpus is not given"),
        ({"tp": "0"}, "tp is 0"),
        ({"tp": "3"}, "tp 3 x pp 1"),
        ({"heads": "0"}, "heads is 0"),
        ({"kv_heads": "7"}, "32 heads cannot share 7 kv_heads"),
        ({"hidden": "wide"}, "hidden is 'wide', not a whole number"),
        ({"micro_batch": "-4"}, "micro_batch is '-4'"),
        ({"gpus": "1000000007"}, "less than or equal to 100000"),
        ({"dtype": "int4"}, "precision int4 is not modelled"),
        ({"ep": "5", "num_experts": "8"}, "ep 5"),
        (
            {"measured_tflops_per_gpu": "", "measured_tokens_per_s_per_gpu": "fast"},
            "measured_tokens_per_s_per_gpu is 'fast'",
        ),
        ({"measured_step_time_s": "-3"}, "measured_step_time_s is '-3'"),
        ({"measured_step_time_s": "nan"}, "measured_step_time_s is 'nan'"),
    ],
)
def test_a_row_that_makes_no_sense_is_skipped_with_the_reason(
    changes: dict[str, str], words: str
) -> None:
    found = reason(**changes)
    assert words in found
    assert "\n" not in found
    assert "pydantic" not in found


def strange() -> st.SearchStrategy[str]:
    numbers = st.integers(-3, 4096).map(str)
    return st.one_of(numbers, st.sampled_from(("", "1e9", "0.5", "nan", "x", "A100", "fp8")))


@settings(max_examples=150, deadline=None)
@given(column=st.sampled_from(COLUMNS), cell=strange(), other=st.sampled_from(COLUMNS),
       second=strange())  # fmt: skip
def test_no_cell_whatever_it_says_raises(column: str, cell: str, other: str, second: str) -> None:
    changed = cells() | {column: cell} | {other: second}
    runs, skipped = runs_of(parse_table(written([changed]), "mine"))
    results, unpredicted = predict_rows(runs)
    assert len(results) + len(skipped) + len(unpredicted) == 1
    for row in (*skipped, *unpredicted):
        assert row.reason


@pytest.mark.parametrize(
    "broken", [lambda: "", lambda: "a;b\n1;2\n", lambda: HEADING.replace("tp,", "")]
)
def test_a_table_without_the_columns_names_them(broken: Callable[[], str]) -> None:
    with pytest.raises(SpecError, match="tp"):
        parse_table(broken(), "mine.csv")
