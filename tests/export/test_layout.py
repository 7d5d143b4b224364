from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcli.export.megatron.layout import Layout, parse_layout, plan_layout

# case layout-string-roundtrip: NVIDIA's documentation of the pipeline layout, DeepSeek-V3's shape.
DEEPSEEK = "Et*3|(tt|)*29,m|L"


def test_the_documented_layout_is_read() -> None:
    layout = parse_layout(DEEPSEEK)
    assert len(layout.stages) == 32
    assert sum(layout.decoders) == 61
    assert layout.stages[0] == "Ettt"
    assert layout.stages[30:] == ("m", "L")
    layout.check(layers=61, prediction_layers=1, pipeline_parallel=16)
    assert parse_layout(layout.render()) == layout


@pytest.mark.parametrize(
    ("text", "decoders"),
    [
        ("Et*2|t*3|t*4|t*3L", (2, 3, 4, 3)),
        ("Et*2|t*3|(tt|)*2t*3L", (2, 3, 2, 2, 3)),
        ("Et*10|t*11|t*11|L", (10, 11, 11, 0)),
        ("Ettt,|(t*4|)*6,t*5,L", (3, 4, 4, 4, 4, 4, 4, 5)),
        ("(t|)*3", (1, 1, 1, 0)),
    ],
)
def test_layouts_are_read(text: str, decoders: tuple[int, ...]) -> None:
    assert parse_layout(text).decoders == decoders


@pytest.mark.parametrize(
    "text",
    ["Et*8 |t*8L", "Et*8|t*8l", "E((t*4|)*2t)*2L", "Et**2L", "Et|t\nL", "Etx2L", "E(tt|tL", "t*"],
)
def test_characters_that_megatron_refuses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the layout"):
        parse_layout(text)


@pytest.mark.parametrize("text", ["t*999999", "(" + "t" * 200 + ")*999999"])
def test_a_layout_cannot_fill_the_memory(text: str) -> None:
    with pytest.raises(ValueError, match="more than 100000 layers"):
        parse_layout(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Et|t|tL", "no multiple of pipeline_parallel"),
        ("t|tt|t|tL", "is the embedding E"),
        ("Et|t|t|t", "is the loss L"),
        ("Et|tE|t|tL", "is the embedding E"),
        ("Et|t|t|L", "3 decoder layers"),
        ("Et|t|t|tmL", "1 prediction layers"),
    ],
)
def test_layouts_that_megatron_refuses_break_a_rule(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        parse_layout(text).check(layers=4, prediction_layers=0, pipeline_parallel=4)


@pytest.mark.parametrize("text", ["Etm|ttL", "Ettt|mt|L|", "Em|m|tt|tL"])
def test_misplaced_prediction_layers_break_a_rule(text: str) -> None:
    layout = parse_layout(text)
    with pytest.raises(ValueError, match="breaks a rule"):
        layout.check(
            layers=sum(layout.decoders),
            prediction_layers=text.count("m"),
            pipeline_parallel=2,
        )


chunk_counts = st.integers(1, 4).flatmap(
    lambda chunks: st.lists(
        st.lists(st.integers(0, 9), min_size=chunks, max_size=chunks), min_size=2, max_size=9
    )
)


@given(chunk_counts, st.integers(0, 2))
def test_planned_chunks_survive_the_string(chunks: list[list[int]], predictions: int) -> None:
    layout = plan_layout(chunks, predictions)
    read = parse_layout(layout.render())
    assert read == layout
    assert read.chunks(len(chunks)) == tuple(map(tuple, chunks))
    read.check(
        layers=sum(map(sum, chunks)), prediction_layers=predictions, pipeline_parallel=len(chunks)
    )


@given(st.lists(st.text("EtmL", max_size=8), min_size=1, max_size=8))
def test_any_layout_is_read_as_it_was_written(stages: list[str]) -> None:
    layout = Layout(tuple(stages))
    assert parse_layout(layout.render()) == layout
