"""Terminal and Markdown: within their width, safe, and the numbers of the plan."""

from __future__ import annotations

import re

import pytest
from report_plans import ATTACK

from hetcli.report import facts
from hetcli.report.comparison import compare, comparison_document
from hetcli.report.forms import Report
from hetcli.report.markdown import comparison_markdown
from hetcli.report.step_view import COLUMNS, step_lines
from hetcli.report.steps import step_data
from hetcli.units import format_duration


def code_spans(markdown: str) -> str:
    """The text with fenced blocks and code spans taken out."""
    plain = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", plain)


@pytest.fixture(params=["mixed", "alike", "thousand", "hostile"])
def report(request: pytest.FixtureRequest) -> Report:
    found: Report = request.getfixturevalue(request.param)
    return found


def test_text_fits_a_hundred_columns(report: Report) -> None:
    lines = report.text().splitlines()
    assert max(len(line) for line in lines) <= 100
    assert any(format_duration(report.plan.predicted.step_time_s) in line for line in lines)


def test_timeline_shows_every_stage_from_start_to_end(report: Report) -> None:
    lines = step_lines(step_data(report.step))
    assert len(lines) == len(report.plan.stages)
    drawn = [line.split(maxsplit=2)[2] for line in lines]
    assert {len(line) for line in drawn} == {COLUMNS}
    # The first stage starts at once, and marks have the shares of what they stand for.
    assert drawn[0][0] == "▒"
    works = [sum(mark in "▒█" for mark in line) / COLUMNS for line in drawn]
    for share, stage in zip(works, step_data(report.step)["chains"][0]["stages"], strict=True):
        assert share == pytest.approx(stage["busy"] / step_data(report.step)["end"], abs=0.03)


def test_markdown_tables_are_whole(report: Report) -> None:
    table: list[str] = []
    for line in [*report.markdown().splitlines(), ""]:
        if line.startswith("|"):
            table.append(re.sub(r"\\.", "", line))
        elif table:
            assert len({each.count("|") for each in table}) == 1
            table = []


def test_markdown_keeps_names_in_code_spans(hostile: Report) -> None:
    text = hostile.markdown()
    assert "onerror=alert(1)" in text
    assert "onerror" not in code_spans(text.replace(r"\|", ""))
    assert ATTACK.replace("|", r"\|") in text


def test_comparison_tells_changes_against_the_first(mixed: Report, alike: Report) -> None:
    plans = [("a.json", mixed.plan), ("b.json", alike.plan), ("c.json", mixed.plan)]
    rows = {row.label: row for row in compare(plans).rows}
    one, other = mixed.plan.predicted, alike.plan.predicted
    change = f"{other.step_time_s / one.step_time_s - 1:+.1%}"
    assert rows["step time"].changes == ("", change, "")
    assert rows["step time"].values[1] == format_duration(other.step_time_s)
    assert rows["model"].values == ("llama-3-8b", "llama-3-70b", "llama-3-8b")
    document = comparison_document(plans)
    assert [each["name"] for each in document["plans"]] == ["a.json", "b.json", "c.json"]
    assert document["plans"][2]["step_time_change"] == 0


def test_equal_inputs_are_not_listed(mixed: Report) -> None:
    labels = {row.label for row in compare([("a", mixed.plan), ("b", mixed.plan)]).rows}
    assert not labels & {"model", "cluster", "assumes", "cluster file"}


def test_a_changed_cluster_file_of_the_same_name_is_said(mixed: Report) -> None:
    cluster = mixed.plan.inputs.cluster.model_copy(update={"description": "other"})
    inputs = mixed.plan.inputs.model_copy(update={"cluster": cluster})
    other = mixed.plan.model_copy(update={"inputs": inputs})
    rows = {row.label: row for row in compare([("a", mixed.plan), ("b", other)]).rows}
    assert rows["cluster file"].values == ("as the first", "changed")


def test_comparison_markdown_escapes_names(hostile: Report) -> None:
    text = comparison_markdown(compare([("a|`b`", hostile.plan), ("c", hostile.plan)]))
    assert "onerror" not in code_spans(text.replace(r"\|", ""))
    assert len({re.sub(r"\\.", "", line).count("|") for line in text.splitlines()}) == 1


def test_every_device_is_in_one_memory_class(report: Report) -> None:
    named = [device for each in facts.memory_classes(report.plan) for device in each.devices]
    assert sorted(named, key=str) == sorted(
        (device for stage in report.plan.stages for device in stage.devices), key=str
    )
