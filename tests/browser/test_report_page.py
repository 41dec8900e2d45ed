"""The HTML report in a browser: it loads nothing, fits wide and narrow windows, sorts, and follows the theme."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

ENGINE_TESTS = Path(__file__).resolve().parents[2] / "ipu_model" / "tests" / "engine"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the ResNet-101-sized pipeline that the tests of the reports use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ENGINE_TESTS))
        support = import_module("report_support")
    files = import_module("ipu_model.report.files")
    written = files.write_report(
        support.pipeline_profile(collapsed=True), tmp_path_factory.mktemp("report"), support.ADVICE
    )
    return Path(written.html)


@pytest.fixture
def opened(chromium: BrowserContext, report: Path) -> Iterator[Page]:
    """The report in a page of its own; whatever the page complains about, or asks the network for, fails the test."""
    page = chromium.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url != report.as_uri() else None)
    page.goto(report.as_uri())
    yield page
    page.close()
    assert complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420])
def test_it_fits_the_window(opened: Page, screenshots: Path, width: int, theme: str) -> None:
    opened.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    opened.set_viewport_size({"width": width, "height": 900})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    target = screenshots / f"report-{theme}-{width}.png"
    opened.screenshot(path=target, full_page=True)
    print(f"screenshot: {target}")


def test_figures_are_drawn_and_described(opened: Page) -> None:
    figures = opened.get_by_role("img")
    assert figures.count() == 6
    for figure in figures.all():
        box = figure.bounding_box()
        assert box is not None
        assert box["width"] > 600
        assert box["height"] > 60
    assert opened.get_by_role("img", name="What the device does in one call").is_visible()


def test_the_theme_reaches_the_figures(opened: Page) -> None:
    """Text of a figure has the colour of the page's text, which is light in the dark."""
    ink = "getComputedStyle(document.querySelector('svg.figure text')).fill"
    opened.emulate_media(color_scheme="light")
    light = opened.evaluate(ink)
    opened.emulate_media(color_scheme="dark")
    dark = opened.evaluate(ink)
    assert light == "rgb(34, 39, 43)"
    assert dark == "rgb(228, 231, 234)"
    assert opened.evaluate("getComputedStyle(document.body).color") == dark


def test_a_click_on_a_heading_sorts_the_ops(opened: Page) -> None:
    table = opened.get_by_role("table", name="most expensive of")
    costs = table.locator("tbody tr td:nth-child(6)")
    heading = table.get_by_role("columnheader", name="cycles a call")

    def values() -> list[int]:
        return [int(text.replace(",", "")) for text in costs.all_inner_texts()]

    before = values()
    assert before == sorted(before, reverse=True)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert values() == sorted(before)


def test_words_sort_from_a_to_z_first(opened: Page) -> None:
    table = opened.get_by_role("table", name="by part of the model")
    table.get_by_role("columnheader", name="part of the model").get_by_role("button").click()
    names = table.locator("tbody th").all_inner_texts()
    assert names == sorted(names)


def test_all_ops_unfold(opened: Page) -> None:
    every = opened.get_by_role("table", name="All ops, modelled")
    assert every.count() == 0
    opened.get_by_text("All ops: 702 rows").click()
    assert every.locator("tbody tr").count() == 702


def test_links_lead_to_their_sections(opened: Page) -> None:
    for link in opened.get_by_role("navigation", name="Sections").get_by_role("link").all():
        target = link.get_attribute("href")
        assert target
        assert opened.locator(target).get_by_role("heading", name=link.inner_text()).count() == 1


def test_on_paper_it_is_light_and_nothing_is_cut_off(opened: Page) -> None:
    opened.emulate_media(media="print", color_scheme="dark")
    opened.set_viewport_size({"width": 718, "height": 1000})  # A4 less margins of 1 cm, at 96 dots per inch
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.evaluate("document.documentElement.scrollWidth") <= 718
