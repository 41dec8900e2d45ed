"""The HTML report in a browser: it loads nothing, fits every window, and its pictures and tables do what they say.

The program is BERT-Large over four IPUs, as published with a hardware measurement (row B12 of the validation).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from offline import opened_offline
from playwright.sync_api import BrowserContext, Locator, Page, expect

ENGINE_TESTS = Path(__file__).resolve().parents[2] / "ipu_model" / "tests" / "engine"
PICTURES = {
    "timeline": "#timeline-picture",
    "tiles": "#tiles",
    "liveness": "#liveness",
    "roofline": "#roofline-picture",
    "frontier": "#frontier",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of BERT-Large, with some advice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ENGINE_TESTS))
        support = import_module("report_support")
    programs = import_module("published.transformers")
    predict = import_module("ipu_model.predict")
    page = import_module("ipu_model.report.page")
    path = tmp_path_factory.mktemp("report") / "report.html"
    profile = predict.profile_program(programs.bert_large_program())
    path.write_text(page.html_report(profile, support.ADVICE, support.search_result()))
    return path


@pytest.fixture
def opened(chromium: BrowserContext, report: Path) -> Iterator[Page]:
    """The report in a page of its own; whatever the page complains about, or asks the network for, fails the test."""
    with opened_offline(chromium, report) as page:
        yield page


def picture(page: Page, name: str) -> Locator:
    return page.locator(f"{PICTURES[name]} svg.picture")


def chosen(page: Page, name: str) -> dict[str, str]:
    """Return what the page says about the chosen part of a picture."""
    listed = page.locator(f"{PICTURES[name]} .chosen")
    names, values = listed.locator("dt").all_inner_texts(), listed.locator("dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


def ticks(page: Page, name: str) -> list[str]:
    return picture(page, name).locator("text.tick").all_text_contents()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_it_fits_the_window(opened: Page, screenshots: Path, width: int, theme: str) -> None:
    opened.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    opened.set_viewport_size({"width": width, "height": 900})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    for name in PICTURES:
        box = picture(opened, name).bounding_box()
        assert box is not None
        assert 0.8 * width - 60 < box["width"] <= width
    target = screenshots / f"report-{theme}-{width}.png"
    opened.screenshot(path=target, full_page=True)
    print(f"screenshot: {target}")


def test_it_is_one_small_file(report: Path) -> None:
    assert report.stat().st_size < 5_000_000


def test_the_theme_reaches_the_pictures(opened: Page) -> None:
    """Text of a picture has the colour of the page's text, which is light in the dark."""
    ink = "getComputedStyle(document.querySelector('svg.picture text.label')).fill"
    opened.emulate_media(color_scheme="light")
    light = opened.evaluate(ink)
    opened.emulate_media(color_scheme="dark")
    dark = opened.evaluate(ink)
    assert light == "rgb(34, 39, 43)"
    assert dark == "rgb(228, 231, 234)"
    assert opened.evaluate("getComputedStyle(document.body).color") == dark


class TestTimeline:
    def test_there_is_a_row_for_the_host_and_each_ipu(self, opened: Page) -> None:
        assert picture(opened, "timeline").locator("text.label").all_text_contents() == [
            "host", "IPU 0", "IPU 1", "IPU 2", "IPU 3",
        ]  # fmt: skip

    def test_buttons_zoom_move_and_show_all(self, opened: Page) -> None:
        whole = ticks(opened, "timeline")
        tools = opened.get_by_role("group", name="View of the timeline")
        tools.get_by_role("button", name="Zoom in").click()
        closer = ticks(opened, "timeline")
        assert closer != whole
        tools.get_by_role("button", name="Move right").click()
        assert ticks(opened, "timeline") != closer
        tools.get_by_role("button", name="Show all").click()
        assert ticks(opened, "timeline") == whole

    def test_the_wheel_zooms_with_control_only(self, opened: Page) -> None:
        whole = ticks(opened, "timeline")
        picture(opened, "timeline").hover()
        opened.mouse.wheel(0, 1)
        assert ticks(opened, "timeline") == whole
        picture(opened, "timeline").scroll_into_view_if_needed()
        picture(opened, "timeline").hover()
        opened.keyboard.down("Control")
        opened.mouse.wheel(0, -600)
        opened.keyboard.up("Control")
        expect(picture(opened, "timeline").locator("text.tick").first).not_to_have_text(whole[0])

    def test_dragging_moves_it(self, opened: Page) -> None:
        opened.get_by_role("group", name="View of the timeline").get_by_role("button", name="Zoom in").click()
        before = ticks(opened, "timeline")
        picture(opened, "timeline").scroll_into_view_if_needed()
        box = picture(opened, "timeline").bounding_box()
        assert box is not None
        opened.mouse.move(box["x"] + 600, box["y"] + 60)
        opened.mouse.down()
        opened.mouse.move(box["x"] + 300, box["y"] + 60, steps=4)
        opened.mouse.up()
        assert ticks(opened, "timeline") != before

    def test_keys_lead_from_the_call_into_a_cycle_a_pass_and_an_op(self, opened: Page) -> None:
        """Recomputation and backward pass of a micro-batch alternate, layer by layer."""
        self.go_to_a_backward_pass(opened)
        assert chosen(opened, "timeline")["where"] == "IPU 1"
        opened.keyboard.press("Enter")
        bars = picture(opened, "timeline").locator("rect[fill='url(#down-56b4e9-0072b2)']")
        assert bars.count() > 3  # recomputation again and again, not once
        opened.keyboard.press("ArrowDown")
        found = chosen(opened, "timeline")
        assert found["pass"] in ("recompute", "backward")
        assert re.fullmatch(r".*(float16|bool|int).*\[[0-9, ]+\].*", found["reads"])
        path = opened.get_by_role("navigation", name="Where the chosen part is").get_by_role("button")
        assert path.first.inner_text() == "one call"
        assert "recomputation and backward, micro-batch" in path.nth(path.count() - 2).inner_text()

    def test_the_path_leads_back_out(self, opened: Page) -> None:
        whole = ticks(opened, "timeline")
        self.go_to_a_backward_pass(opened)
        opened.keyboard.press("Enter")
        assert ticks(opened, "timeline") != whole
        opened.get_by_role("navigation", name="Where the chosen part is").get_by_role("button", name="one call").click()
        assert ticks(opened, "timeline") == whole

    @staticmethod
    def go_to_a_backward_pass(page: Page) -> None:
        picture(page, "timeline").focus()
        for key in ("ArrowDown", "ArrowDown", *"+" * 10):
            page.keyboard.press(key)
        for _ in range(8):
            page.keyboard.press("ArrowRight")
            if chosen(page, "timeline")["what"].startswith("recomputation and backward"):
                return
        pytest.fail("no backward pass in view")


class TestMemory:
    def test_the_fullest_tile_is_chosen_first_and_keys_choose_others(self, opened: Page) -> None:
        first = chosen(opened, "tiles")
        number, ipu = re.fullmatch(r"([0-9,]+) of (IPU \d)", first["tile"]).groups()  # type: ignore[union-attr]
        fullest = opened.get_by_text("Fullest tile:", exact=False).first.inner_text()
        assert first["at its fullest"].split(" bytes")[0] in fullest
        picture(opened, "tiles").focus()
        opened.keyboard.press("ArrowLeft")
        assert chosen(opened, "tiles")["tile"] == f"{int(number.replace(',', '')) - 1:,} of {ipu}"
        opened.keyboard.press("Enter")
        assert chosen(opened, "tiles") == first

    def test_one_ipu_can_be_shown(self, opened: Page) -> None:
        select = opened.locator("#tiles-choice select")
        assert select.locator("option").count() == 5
        select.select_option(index=4)
        shown = chosen(opened, "tiles")["tile"]
        assert select.locator("option").nth(4).inner_text() in shown

    def test_over_time_it_starts_at_the_peak_and_names_the_op(self, opened: Page) -> None:
        at_peak = chosen(opened, "liveness")
        assert "This is the peak." in at_peak.values()
        picture(opened, "liveness").focus()
        opened.keyboard.press("ArrowRight")
        assert "This is the peak." not in chosen(opened, "liveness").values()

    def test_tensors_alive_at_the_peak_are_found_by_text(self, opened: Page) -> None:
        tensors = opened.locator("#tensors")
        tensors.get_by_role("searchbox", name="Find tensors").fill("variables")
        kinds = tensors.locator("tbody tr td:nth-child(5)").all_inner_texts()
        assert kinds
        assert set(kinds) == {"variables"}

    def test_tensors_of_equal_layers_are_one_row_that_opens(self, opened: Page) -> None:
        rows = opened.locator("#tensors tbody tr")
        folded = rows.filter(has_text="×").first
        count = int(folded.locator(".times").inner_text().split("×")[1])
        before = rows.count()
        folded.locator(".toggle").click()
        opened.locator("#tensors .more").click()
        assert rows.count() >= before + count
        assert opened.locator("#tensors tbody tr[aria-level='2']").count() == count


class TestSearch:
    """Three settings: the program as it is, one too close to call, and one that fits."""

    def test_it_starts_at_the_fastest_and_keys_choose_others(self, opened: Page) -> None:
        assert chosen(opened, "frontier")["this is"] == "fastest, cheapest"
        picture(opened, "frontier").focus()
        opened.keyboard.press("ArrowRight")
        assert chosen(opened, "frontier")["verdict"] == "too close to call"

    @pytest.mark.parametrize("width", [1200, 420])
    def test_no_label_hides_another_or_leaves_the_picture(self, opened: Page, width: int) -> None:
        opened.set_viewport_size({"width": width, "height": 900})
        drawing = picture(opened, "frontier").bounding_box()
        labels = [each.bounding_box() for each in picture(opened, "frontier").locator("text.halo").all()]
        assert drawing is not None
        assert len(labels) == 2
        for box in labels:
            assert box is not None
            assert drawing["x"] <= box["x"]
            assert box["x"] + box["width"] <= drawing["x"] + drawing["width"]
        first, second = labels
        assert first is not None
        assert second is not None
        apart = abs(first["x"] - second["x"]) > min(first["width"], second["width"])
        assert apart or abs(first["y"] - second["y"]) > 10

    def test_the_table_says_what_was_split_and_finds_by_text(self, opened: Page) -> None:
        tried = opened.locator("#tried")
        headings = [each.removesuffix(" ↕") for each in tried.locator("thead th").all_inner_texts()]
        column = headings.index("split")
        tried.get_by_role("searchbox", name="Find settings").fill("fastest")
        (row,) = tried.locator("tbody tr").all()
        assert row.locator("th, td").nth(column).inner_text() == "layer on IPU 1"


class TestModules:
    def share(self, row: Locator) -> float:
        return float(row.locator("td").first.inner_text().removesuffix(" %"))

    def rows(self, page: Page, level: int) -> list[Locator]:
        return page.locator(f"#modules tr[aria-level='{level}']").all()

    def test_shares_of_the_outermost_rows_add_up(self, opened: Page) -> None:
        assert sum(map(self.share, self.rows(opened, 1))) == pytest.approx(100, abs=0.3)

    def test_alike_layers_are_one_row_that_opens(self, opened: Page) -> None:
        """The encoder's 24 layers have equal contents."""
        folded = opened.locator("#modules tr").filter(has_text="× 24").first
        opened.locator("#modules").get_by_role("button", name="close all").click()
        assert folded.count() == 0
        opened.locator("#modules").get_by_role("button", name="open all").click()
        assert folded.get_attribute("aria-expanded") == "true"

    def test_a_row_opens_with_the_keyboard(self, opened: Page) -> None:
        opened.locator("#modules").get_by_role("button", name="close all").click()
        toggle = opened.locator("#modules .toggle").first
        toggle.focus()
        before = opened.locator("#modules tbody tr").count()
        opened.keyboard.press("ArrowRight")
        assert opened.locator("#modules tbody tr").count() > before
        opened.keyboard.press("ArrowLeft")
        assert opened.locator("#modules tbody tr").count() == before

    def test_text_finds_ops_with_the_modules_around_them(self, opened: Page) -> None:
        opened.get_by_role("searchbox", name="Find modules and ops").fill("softmax backward")
        rows = opened.locator("#modules tbody tr")
        leaves = rows.filter(has_not=opened.locator(".toggle"))
        assert leaves.count() > 0
        assert all("softmax backward" in text.lower() for text in leaves.all_inner_texts())
        assert rows.count() > leaves.count()

    def test_a_click_on_a_heading_sorts_all_ops(self, opened: Page) -> None:
        opened.locator("#modules-choice select").select_option(label="all ops in one list")
        table = opened.get_by_role("table", name="All ops")
        heading = table.get_by_role("columnheader", name="cycles of a call")
        costs = table.locator("tbody tr td:nth-child(3)")

        def values() -> list[int]:
            return [int(text.replace(",", "")) for text in costs.all_inner_texts()]

        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == "descending"
        assert values() == sorted(values(), reverse=True)
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == "ascending"
        assert values() == sorted(values())

    def test_of_many_ops_only_the_first_are_drawn_until_more_are_wanted(self, opened: Page) -> None:
        opened.locator("#modules-choice select").select_option(label="all ops in one list")
        rows = opened.locator("#modules tbody tr")
        assert rows.count() == 100
        opened.locator("#modules .more").click()
        assert rows.count() == 600


def test_links_lead_to_their_sections(opened: Page) -> None:
    for link in opened.get_by_role("navigation", name="Sections").get_by_role("link").all():
        target = link.get_attribute("href")
        assert target
        assert opened.locator(target).get_by_role("heading", name=link.inner_text(), exact=True).count() == 1


def test_on_paper_it_is_light_and_nothing_is_cut_off(opened: Page) -> None:
    opened.emulate_media(media="print", color_scheme="dark")
    opened.set_viewport_size({"width": 718, "height": 1000})  # A4 less margins of 1 cm, at 96 dots per inch
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.evaluate("document.documentElement.scrollWidth") <= 718
