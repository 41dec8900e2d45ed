"""The learner's report in a browser: it loads nothing, fits wide and narrow windows, the theme and paper."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from importlib import import_module
from pathlib import Path

import pytest
from offline import opened_offline
from playwright.sync_api import BrowserContext, Page

from ipu_course.programs.report.page import report_page

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a learner who is half-way through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TESTS))
        support = import_module("learner_report_support")
    path = tmp_path_factory.mktemp("learner") / "report.html"
    path.write_text(report_page(support.HALF_WAY, date(2026, 3, 2)), encoding="utf-8")
    return path


@pytest.fixture
def opened(chromium: BrowserContext, report: Path) -> Iterator[Page]:
    """The report in a page of its own; whatever the page complains about, or asks the network for, fails the test."""
    with opened_offline(chromium, report) as page:
        yield page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420])
def test_it_fits_the_window(opened: Page, screenshots: Path, width: int, theme: str) -> None:
    opened.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    opened.set_viewport_size({"width": width, "height": 900})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    target = screenshots / f"learner-report-{theme}-{width}.png"
    opened.screenshot(path=target, full_page=True)
    print(f"screenshot: {target}")


def test_the_ladder_is_drawn_and_described(opened: Page) -> None:
    figure = opened.get_by_role("img", name="half precision 52.6 seconds modelled, 52.4 seconds derived")
    box = figure.bounding_box()
    assert box is not None
    assert box["width"] > 600
    assert box["height"] > 150


def test_the_theme_reaches_the_figure(opened: Page) -> None:
    """Text of the figure has the colour of the page's text, which is light in the dark."""
    colours = {}
    for theme in ("light", "dark"):
        opened.emulate_media(color_scheme=theme)
        ink = opened.evaluate("getComputedStyle(document.querySelector('svg.figure text')).fill")
        assert opened.evaluate("getComputedStyle(document.body).color") == ink
        colours[theme] = ink
    assert colours == {"light": "rgb(34, 39, 43)", "dark": "rgb(228, 231, 234)"}


def test_tables_have_names_and_the_rows_have_headings(opened: Page) -> None:
    table = opened.get_by_role("table", name="Tried so far")
    assert table.get_by_role("rowheader", name="01: Exercise 1").is_visible()
    assert table.get_by_role("columnheader").all_inner_texts() == ["lesson and exercise", "verdict", "attempts"]


def test_a_table_too_wide_for_the_window_scrolls_with_the_keyboard(opened: Page) -> None:
    opened.set_viewport_size({"width": 420, "height": 900})
    region = opened.get_by_role("region", name="Lesson 01")
    region.focus()
    opened.keyboard.press("ArrowRight")
    # Scrolling takes some frames. The page's own policy forbids the script with which Playwright would wait for it.
    for _ in range(100):
        if opened.evaluate("document.activeElement.scrollLeft") > 0:
            return
        opened.wait_for_timeout(50)
    pytest.fail("The table did not scroll within five seconds.")


def test_on_paper_it_is_light_and_nothing_is_cut_off(opened: Page, tmp_path: Path) -> None:
    opened.emulate_media(media="print", color_scheme="dark")
    opened.set_viewport_size({"width": 718, "height": 1000})  # A4 less margins of 1 cm, at 96 dots per inch
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    boxes = "[...document.querySelectorAll('table, svg')].map(each => each.getBoundingClientRect().right)"
    assert max(opened.evaluate(boxes)) <= 718
    opened.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().count(b"/Type /Page\n") in (1, 2, 3)
