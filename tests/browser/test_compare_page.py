"""The page of `compare` in a browser: bars on one axis, and tables of what moved that sort and filter."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from offline import opened_offline
from playwright.sync_api import BrowserContext, Page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet-101 over two IPUs, in half and in single precision."""
    programs = import_module("published.convolutional")
    predict = import_module("ipu_model.predict")
    compare_page = import_module("ipu_model.report.compare")
    before, after = (
        predict.profile_program(programs.day03_program(dtype=dtype)) for dtype in (torch.half, torch.float)
    )
    path = tmp_path_factory.mktemp("compare") / "compare.html"
    path.write_text(compare_page.compare_html(before, after, ("half", "single")))
    return path


@pytest.fixture
def opened(chromium: BrowserContext, written: Path) -> Iterator[Page]:
    """The comparison in a page of its own; whatever the page complains about fails the test."""
    with opened_offline(chromium, written) as page:
        yield page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_it_fits_the_window(opened: Page, screenshots: Path, width: int, theme: str) -> None:
    opened.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    opened.set_viewport_size({"width": width, "height": 900})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    target = screenshots / f"compare-{theme}-{width}.png"
    opened.screenshot(path=target, full_page=True)
    print(f"screenshot: {target}")


def test_bars_of_both_programs_have_one_axis(opened: Page) -> None:
    """Single precision takes more time: its bar is the longer one, and both are below the limit of their axis."""
    bars = opened.locator("table.pair").first.locator("svg.parts")
    lengths = [
        sum(float(part.get_attribute("width") or 0) for part in bar.locator("rect:not(.empty)").all())
        for bar in bars.all()
    ]
    assert len(lengths) == 2
    assert lengths[0] < lengths[1] <= 1000


def test_ops_that_account_for_it_are_found_and_sorted(opened: Page) -> None:
    ops = opened.locator("#moved-ops")
    ops.get_by_role("searchbox", name="Find ops").fill("weight gradient")
    rows = ops.locator("tbody tr")
    assert rows.count() > 0
    assert all("weight gradient" in text for text in rows.all_inner_texts())
    heading = ops.get_by_role("columnheader", name="half")
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"


def test_the_largest_change_is_first(opened: Page) -> None:
    changes = opened.locator("#moved-categories tbody tr td:nth-child(5)").all_inner_texts()
    numbers = [0 if text == "same" else int(text[1:].replace(",", "")) for text in changes]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 0
