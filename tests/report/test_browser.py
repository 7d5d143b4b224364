"""The page in a real browser: no error, no request, usable by eye, hand, keyboard and reader."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_plans import drifted, profile, tried

from hetcli.report.forms import Report
from hetcli.search.explain import explain

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine's PATH")

WIDTHS = (360, 1000, 1600)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        # Containers run tests as root, where Chromium's sandbox does not start.
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module", params=["mixed", "alike", "thousand", "hostile"])
def page_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    report: Report = request.getfixturevalue(request.param)
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    path.write_text(report.html(), encoding="utf-8")
    return path


class Visit:
    """An open page without a network, with everything that it complained of or asked for."""

    def __init__(
        self, browser: Any, path: Path, *, width: int = 1000, theme: str = "light"
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, offline=True
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        began = time.monotonic()
        self.page.goto(path.as_uri(), wait_until="load")
        self.page.wait_for_selector("#canvas svg")
        self.seconds = time.monotonic() - began

    def text(self, selector: str) -> str:
        return str(self.page.text_content(selector))

    def window(self, text: str, *, same: bool) -> None:
        """Wait until the shown part of the step is, or is no longer, what `text` says."""
        shown = playwright.expect(self.page.locator("#window"))
        if same:
            shown.to_have_text(text)
        else:
            shown.not_to_have_text(text)

    def color(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.fixture
def visit(browser: Any, page_file: Path) -> Iterator[Visit]:
    opened = Visit(browser, page_file)
    yield opened
    opened.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_opens_quietly_and_fits(browser: Any, page_file: Path, width: int, theme: str) -> None:
    visit = Visit(browser, page_file, width=width, theme=theme)
    assert visit.complaints == []
    assert visit.requests == [page_file.as_uri()]
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_has_no_serious_barrier(browser: Any, page_file: Path, theme: str) -> None:
    visit = Visit(browser, page_file, theme=theme)
    found = axe.Axe().run(visit.page).response["violations"]
    serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
    assert serious == []
    visit.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_with_measurements_is_quiet_narrow_and_has_no_barrier(
    browser: Any, mixed: Report, tmp_path: Path, theme: str
) -> None:
    path = tmp_path / "measured.html"
    shown = replace(
        mixed,
        profiles=(profile(),),
        explanation=explain(mixed.plan, what_if=False),
        trial=tried(),
        observation=drifted(),
    )
    path.write_text(shown.html(), encoding="utf-8")
    visit = Visit(browser, path, width=360, theme=theme)
    assert visit.complaints == []
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    found = axe.Axe().run(visit.page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    visit.context.close()


def test_page_opens_in_two_seconds(browser: Any, page_file: Path) -> None:
    # The best of three, since other tests run beside this one.
    seconds = []
    for _ in range(3):
        visit = Visit(browser, page_file)
        seconds.append(visit.seconds)
        visit.context.close()
    assert min(seconds) < 2


def test_zoom_buttons_change_what_is_shown(visit: Visit) -> None:
    whole = visit.text("#window")
    visit.page.click("text=Zoom in")
    visit.window(whole, same=False)
    zoomed = visit.text("#window")
    visit.page.click("text=Earlier")
    visit.window(zoomed, same=False)
    assert visit.text("#window").startswith("0 s")
    visit.page.click("text=Whole step")
    visit.window(whole, same=True)


def test_pointing_at_a_work_names_its_micro_batch(visit: Visit) -> None:
    visit.page.locator("#canvas").scroll_into_view_if_needed()
    box = visit.page.locator("#canvas").bounding_box()
    visit.page.mouse.move(box["x"] + 68, box["y"] + 12)
    assert "Stage 0, forward of micro-batch 0" in visit.text("#said")


def test_pointing_at_a_bubble_says_what_is_waited_for(visit: Visit) -> None:
    visit.page.locator("#canvas").scroll_into_view_if_needed()
    box = visit.page.locator("#canvas").bounding_box()
    # The last stage waits for the first micro-batch at the start of the step.
    last = visit.page.locator("#canvas text.label").last.bounding_box()
    visit.page.mouse.move(box["x"] + 67.2, last["y"] + last["height"] / 2)
    assert "is idle: it waits for the forward of micro-batch 0" in visit.text("#said")


def test_keys_walk_through_works_and_stages(visit: Visit) -> None:
    visit.page.focus("#canvas")
    visit.page.keyboard.press("ArrowRight")
    assert visit.text("#said").startswith("Stage 0, forward of micro-batch 0")
    visit.page.keyboard.press("ArrowRight")
    assert visit.text("#said").startswith("Stage 0, ")
    assert not visit.text("#said").startswith("Stage 0, forward of micro-batch 0")
    visit.page.keyboard.press("ArrowDown")
    assert visit.text("#said").startswith("Stage 1, ")
    before = visit.text("#window")
    visit.page.keyboard.press("+")
    visit.window(before, same=False)
    visit.page.keyboard.press("0")
    visit.window(before, same=True)


def test_theme_button_turns_the_page_dark_and_back(visit: Visit) -> None:
    light = visit.color()
    visit.page.click("#theme")
    dark = visit.color()
    assert dark != light
    assert visit.text("#theme") == "Light theme"
    visit.page.click("#theme")
    assert visit.color() == light


def test_print_is_light_and_without_controls(browser: Any, page_file: Path) -> None:
    visit = Visit(browser, page_file, theme="dark")
    visit.page.emulate_media(media="print")
    assert visit.color() == "rgb(255, 255, 255)"
    assert not visit.page.is_visible(".controls")
    assert visit.page.is_visible("#canvas svg")
    # The width of A4 between Chromium's margins, in which nothing can be scrolled into view.
    visit.page.set_viewport_size({"width": 718, "height": 900})
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert visit.page.evaluate(f"{cut}.map(e => e.getAttribute('aria-label'))") == []
    assert visit.page.pdf().startswith(b"%PDF")
    visit.context.close()


def test_page_says_it_all_without_scripts(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert "The drawing needs JavaScript" in page.text_content("noscript")
    assert page.is_visible("text=What each stage does")
    context.close()
