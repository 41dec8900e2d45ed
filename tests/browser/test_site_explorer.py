"""An explorer of the site, opened as a file: it moves without a kernel and without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from playwright.sync_api import Page

from course_site.explorer_html import explorer_html, states_script
from course_site.recorded import record
from ipu_course.explorers import Choice, Explorer, Slider, Switch, View

SCRIPT = Path(__file__).parents[2] / "tools" / "course_site" / "static" / "explorer.js"
NAME = "02_sums/1"


def view(factor: int, shape: str, squared: bool) -> View:
    """Show three times the factor; the shape "none" has no picture."""
    if shape == "none":
        return View(text="There is nothing to draw.")
    value = (3 * factor) ** (2 if squared else 1)
    return View(
        Figure(figsize=(2, 1)), f"The product is {value}.", f"A drawing of {value} & more.", [{"product": value}]
    )


EXPLORER = Explorer(
    {
        "factor": Slider("factor", (1, 2, 1000), 2),
        "shape": Choice("shape", {"a disc": "disc", "nothing": "none"}, "disc"),
        "squared": Switch("squared"),
    },
    view,
)


@pytest.fixture
def explorer(tmp_path: Path, page: Page) -> Page:
    """A page that holds nothing but the explorer."""
    folder = tmp_path / "_static" / "explorers" / NAME
    recorded = record(EXPLORER, (), folder)
    (folder / "states.js").write_text(states_script(NAME, recorded), encoding="utf-8")
    lesson = tmp_path / "notebooks" / "02_sums.html"
    lesson.parent.mkdir()
    script = SCRIPT.read_text(encoding="utf-8")
    lesson.write_text(f"<script>{script}</script>{explorer_html(NAME, recorded)}", encoding="utf-8")
    page.goto(lesson.as_uri())
    return page


def test_the_first_view_is_there_before_anything_moves(explorer: Page) -> None:
    assert explorer.locator("figcaption").inner_text() == "The product is 6."
    assert explorer.locator("figure img").evaluate("image => image.complete && image.naturalWidth > 0")


def test_a_slider_moves_from_the_keyboard_and_says_its_value(explorer: Page) -> None:
    slider = explorer.get_by_role("slider", name="factor")
    slider.focus()
    explorer.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "1,000"
    assert explorer.locator("figcaption").inner_text() == "The product is 3000."
    assert explorer.locator("figure img").get_attribute("alt") == "A drawing of 3000 & more."


def test_switches_and_menus_choose_among_the_views_too(explorer: Page) -> None:
    explorer.get_by_role("checkbox", name="squared").check()
    assert explorer.locator("figcaption").inner_text() == "The product is 36."
    explorer.get_by_role("combobox", name="shape").select_option("nothing")
    assert explorer.locator(".explorer-below").inner_text().strip() == "There is nothing to draw."
    assert not explorer.locator("figure").is_visible()
