"""The page is complete, small, and safe whatever the names in the files are."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from report_plans import drifted, profile, tried

from hetcli.report import facts
from hetcli.report.forms import Report
from hetcli.report.lost import why_slower
from hetcli.report.origins import sources
from hetcli.report.page import report_page
from hetcli.report.places import drawn_places
from hetcli.search.explain import explain
from hetcli.units import format_bytes, format_duration

MB = 10**6


class Elements(HTMLParser):
    """All elements with their attributes, and all text outside of style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._silent = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._silent = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 (the parser's signature)
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(params=["mixed", "alike", "thousand", "hostile"])
def report(request: pytest.FixtureRequest) -> Report:
    found: Report = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def page(report: Report) -> Elements:
    return Elements(report.html())


def test_page_is_small_and_asks_for_nothing(report: Report) -> None:
    text = report.html()
    assert len(text.encode()) < MB
    elements = Elements(text)
    for _, attributes in elements.found:
        assert not {"src", "srcset", "data", "action"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(http" not in text
    assert "@import" not in text
    policy = next(a for a in elements.all("meta") if a.get("http-equiv"))
    assert policy["content"].startswith("default-src 'none'")


def test_links_of_the_page_lead_somewhere(page: Elements) -> None:
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(link["href"] or "").removeprefix("#") for link in page.all("a")}
    assert targets <= set(ids)
    labels = {a["aria-labelledby"] for _, a in page.found if "aria-labelledby" in a}
    assert labels <= set(ids)


def test_the_answer_stands_first_and_is_that_of_the_plan(report: Report) -> None:
    page = Elements(report.html())
    top = page.text[: page.text.index("Who does what", page.text.index("The answer"))]
    predicted = report.plan.predicted
    assert format_duration(predicted.step_time_s) in top
    worst = facts.worst_device(predicted.devices)
    assert format_bytes(worst.headroom_bytes) in top
    assert f"{worst.node}:{worst.index}" in top
    gap = report.plan.certificate.gap
    assert ("unknown" if gap is None else f"{gap:.1%}") in top


def test_every_chart_says_in_text_what_it_shows(page: Elements) -> None:
    charts = [a for _, a in page.found if a.get("role") == "img"]
    assert charts
    assert all(len(chart["aria-label"] or "") > 20 for chart in charts)
    drawings = page.all("svg")
    assert all(svg.get("role") == "img" for svg in drawings)


def test_every_device_is_drawn_with_its_stage(report: Report) -> None:
    drawn = Counter[str]()
    for box in re.findall(r'<li><span class="name">.*?</li>', report.html(), re.DOTALL):
        count = re.search(r"<b>(\d+) nodes</b>", box)
        for stage in re.findall(r'<span class="cell k\d">(\d+)</span>', box):
            drawn[stage] += int(count[1]) if count else 1
    for number, stage in enumerate(report.plan.stages):
        assert drawn[str(number)] == len(stage.devices)


def test_many_nodes_that_do_the_same_are_drawn_once(thousand: Report) -> None:
    drawn = drawn_places(thousand.plan, thousand.hardware)
    assert sum(place.node_count for place in drawn) == 128
    assert sum(len(place.nodes) for place in drawn) == len(thousand.plan.stages)


def test_many_measured_pairs_are_folded_away(mixed: Report) -> None:
    curve = mixed.hardware.nodes[0].nic
    pairs = {("a", f"b{number}"): curve for number in range(30)}
    many = replace(mixed, hardware=replace(mixed.hardware, pair_links=pairs))
    assert "34 links, from" in many.html()
    assert " links, from" not in mixed.html()


def test_faster_links_have_thicker_lines(mixed: Report) -> None:
    for place in drawn_places(mixed.plan, mixed.hardware):
        assert place.inside is not None
        assert place.outside is not None
        assert place.inside.bytes_per_s > place.outside.bytes_per_s
        assert place.inside.thickness > place.outside.thickness


def test_every_rank_behind_the_first_says_why_it_lost(mixed: Report) -> None:
    text = Elements(mixed.html()).text
    own = mixed.plan.predicted.breakdown_s
    assert len(mixed.plan.alternatives) > 1
    for each in mixed.plan.alternatives[1:]:
        for cause in why_slower(mixed.plan, each):
            assert cause in text
        # What is said to take longer is what grew most.
        more = {name: each.breakdown_s[name] - own[name] for name in own}
        grown = max(more, key=lambda name: more[name])
        assert why_slower(mixed.plan, each)[0].startswith(facts.BREAKDOWN_LABELS[grown])


def test_a_plan_without_parts_says_what_most_of_its_step_is(mixed: Report) -> None:
    other = mixed.plan.alternatives[1].model_copy(update={"breakdown_s": {}})
    assert why_slower(mixed.plan, other) == [f"mostly {facts.BREAKDOWN_LABELS[other.bound_by]}"]


def test_restrictions_and_their_cost_are_told(mixed: Report) -> None:
    page = Elements(mixed.html())
    assert mixed.plan.comparisons is not None
    assert mixed.plan.comparisons.entries
    for label, entry in facts.comparisons(mixed.plan):
        assert label in page.text
        if entry.step_time_s is not None:
            assert format_duration(entry.step_time_s) in page.text
    assert facts.shares(mixed.plan) in page.text


def test_every_source_has_a_value_and_a_place(report: Report) -> None:
    found = sources(report.plan, report.hardware)
    assert all(each.value and each.source for each in found)
    named = {each.what for each in found}
    for device in report.plan.predicted.devices:
        assert f"{device.gpu}: peaks" in named
        assert f"{device.gpu}: attention" in named
    assert "megatron: host layer s" in named


def test_memory_items_of_a_bar_add_up(report: Report) -> None:
    for each in facts.memory_classes(report.plan):
        assert sum(i.memory_bytes for i in each.device.items) == each.device.peak_memory_bytes
    devices = [d for each in facts.memory_classes(report.plan) for d in each.devices]
    assert len(devices) == len(report.plan.predicted.devices)


def test_names_from_files_stay_text(hostile: Report) -> None:
    text = hostile.html()
    elements = Elements(text)
    assert not elements.all("img")
    assert not elements.all("b") or all(not a for a in elements.all("b"))
    assert len(elements.all("script")) == 2
    handlers = [name for _, attributes in elements.found for name in attributes if name[:2] == "on"]
    assert not handlers
    assert "onerror=alert(1)" in elements.text


def test_a_plan_of_another_version_is_said_to_differ(mixed: Report) -> None:
    predicted = mixed.plan.predicted.model_copy(
        update={"step_time_s": mixed.plan.predicted.step_time_s * 1.01}
    )
    old = mixed.plan.model_copy(update={"predicted": predicted})
    other = Report(old, mixed.step, mixed.hardware)
    assert "plan again" in other.disagreement
    assert "this version simulates" in other.html()
    assert "this version simulates" not in mixed.html()


def test_a_profile_adds_matrix_and_roofline(mixed: Report) -> None:
    text = report_page(mixed.plan, mixed.step, mixed.hardware, profiles=(profile(),))
    page = Elements(text)
    assert "80 GB/s" in page.text
    assert "78 GB/s" in page.text
    assert "50 GB/s" not in page.text
    assert "4096 x 4096 x 4096: 200 TFLOP/s" in text
    assert not page.all("i") or all("class" in each for each in page.all("i"))
    assert "What was measured" not in mixed.html()


def test_an_explanation_adds_what_if(mixed: Report) -> None:
    explanation = explain(mixed.plan)
    page = Elements(replace(mixed, explanation=explanation).html())
    assert explanation.binds in page.text
    for each in explanation.what_if:
        assert each.change in page.text
        if each.gain:
            assert f"{each.gain:+.1%}" in page.text
    assert "what if" not in mixed.html().lower()


def test_an_observation_adds_what_the_logs_say(mixed: Report) -> None:
    observation = drifted()
    page = Elements(replace(mixed, observation=observation).html())
    for part in ("2 s2.5 s-20.0%", "1k800+25.0%", "unknownunknownunknown", "drifted"):
        assert part in page.text
    assert "<u>train.log: 20 iterations of megatron" in page.text
    assert "A100-SXM4-80GB takes 1.25 times as long as predicted" in page.text
    assert not page.all("u")


def test_a_trial_adds_predicted_against_measured(mixed: Report) -> None:
    trial = tried()
    text = Elements(replace(mixed, trial=trial).html()).text
    assert "2 s2.5 s-20.0%" in text
    assert "500 ms400 ms+25.0%" in text
    assert "unknown100 msunknown" in text
