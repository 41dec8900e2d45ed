"""Every page of the built site in a browser: `make check-site`. It opens the pages as files, as on a file share.

The site is build/site, or the folder that IPU_COURSE_SITE names. The name of this file keeps it out of `make test`,
which runs before there is a site.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page

SITE = Path(os.environ.get("IPU_COURSE_SITE", Path(__file__).parents[2] / "build" / "site")).resolve()
PAGES = [file.relative_to(SITE).as_posix() for file in sorted(SITE.rglob("*.html"))]
LESSONS = [page for page in PAGES if page.startswith("notebooks/")]
WIDTHS = (420, 768, 1300, 1600)
GRAVE = ("serious", "critical")
# axe would otherwise load the page's styles a second time, which a page opened as a file may not.
AXE_OPTIONS = {"resultTypes": ["violations"], "preload": False}
# What has the focus: whether its outline can be seen, and whether it is inside the window from left to right.
FOCUSED = """() => {
    const element = document.activeElement, box = element.getBoundingClientRect(), style = getComputedStyle(element);
    return {
        words: `${element.tagName} ${(element.getAttribute('aria-label') || element.innerText || '').slice(0, 40)}`,
        seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1,
        inside: box.left >= -1 && box.right <= window.innerWidth + 1 && box.width > 1,
        ended: element === document.body,
    };
}"""
MOST_STOPS = 600
# By how much the page is wider than the window. In a narrow window the theme lets its middle part scroll instead.
TOO_WIDE = """() => Math.max(...[document.documentElement, document.querySelector('.content')].map(
    part => part.scrollWidth - part.clientWidth))"""


@dataclass
class Opened:
    """A page of the site, and everything that it complained about or asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def go(self, name: str) -> Page:
        """Open a page of the site by its path."""
        self.page.goto((SITE / name.partition("?")[0]).as_uri() + "".join(name.partition("?")[1:]))
        return self.page


@pytest.fixture
def opened(chromium: BrowserContext) -> Iterator[Opened]:
    page = chromium.new_page()
    result = Opened(page)
    page.on("console", lambda message: result.complaints.append(message.text))
    page.on("pageerror", lambda error: result.complaints.append(str(error)))
    page.on("requestfailed", lambda request: result.complaints.append(f"{request.url} failed"))
    page.on("request", lambda request: _note_request(result, request.url))
    yield result
    page.close()


def _note_request(opened: Opened, address: str) -> None:
    if not address.startswith(("file:", "data:")):
        opened.complaints.append(f"{address} was asked for")


def test_there_is_a_site() -> None:
    assert "index.html" in PAGES, f"{SITE} has no site: run `make site` first"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_grave_and_the_page_needs_no_network(opened: Opened, name: str, scheme: str) -> None:
    opened.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page = opened.go(name)
    found = Axe().run(page, options=AXE_OPTIONS).response["violations"]
    assert [
        (each["id"], each["nodes"][0]["html"], len(each["nodes"])) for each in found if each["impact"] in GRAVE
    ] == []
    assert opened.complaints == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways(opened: Opened, name: str) -> None:
    page = opened.go(name)
    widths = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        widths[width] = page.evaluate(TOO_WIDE)
    assert {width: more for width, more in widths.items() if more > 0} == {}


@pytest.mark.parametrize("width", [420, 1400])
@pytest.mark.parametrize("name", LESSONS)
def test_the_keyboard_reaches_everything_and_shows_where_it_is(opened: Opened, name: str, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 900})
    # Without this a stop is looked at while the page still slides there.
    opened.page.emulate_media(reduced_motion="reduce")
    page = opened.go(name)
    page.add_style_tag(content="* { transition: none !important; scroll-behavior: auto !important; }")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Skip to content"
    page.keyboard.press("Enter")
    reached = 0
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUSED)
        if stop["ended"]:
            break
        assert stop["seen"], stop
        assert stop["inside"], stop
        reached += page.evaluate("document.activeElement.matches('article summary, article input, article select')")
    controls = page.locator("article :is(summary, input:not([type=hidden]), select)")
    hidden = page.locator("article details:not([open]) > :not(summary) :is(summary, input, select)")
    assert reached == controls.count() - hidden.count()


@pytest.mark.parametrize("name", LESSONS)
def test_results_of_predictions_stay_hidden_on_paper_until_asked_for(opened: Opened, name: str) -> None:
    page = opened.go(name)
    results = page.locator("details.hide")
    for media in ("screen", "print"):
        page.emulate_media(media="print" if media == "print" else "screen")
        assert all(not each.is_visible() for each in results.locator(".cell_output").all())
    page.emulate_media(media="screen")
    for each in results.all():
        each.locator("summary").press("Enter")
        assert each.locator(".cell_output").is_visible()


@pytest.mark.parametrize("name", LESSONS)
def test_every_end_of_every_control_of_an_explorer_has_its_view(opened: Opened, name: str) -> None:
    page = opened.go(name)
    for explorer in page.locator(".explorer").all():
        for slider in explorer.get_by_role("slider").all():
            for key in ("Home", "End"):
                slider.press(key)
                page.wait_for_function(
                    "explorer => [...explorer.querySelectorAll('figure:not([hidden]) img')].every(i => i.complete)",
                    arg=explorer.element_handle(),
                )
                images = explorer.locator("figure:not([hidden]) img")
                assert images.evaluate_all("all => all.every(image => image.naturalWidth > 0)")
    assert opened.complaints == []


def test_the_search_works_without_a_server(opened: Opened) -> None:
    page = opened.go("search.html?q=recomputation")
    page.locator("#search-results li a").first.wait_for()
    titles = page.locator("#search-results li a").all_inner_texts()
    assert any("Gradient accumulation" in title for title in titles)
    assert len(titles) > 5
